"""A sweep over Ray as it is, on a cluster of one machine."""

import sys

import pytest

from farstep import sim
from farstep.sim.sweep import Sweep, run_sweep

pytest.importorskip("ray", reason="Ray is not installed; it is the extra `ray`, 240 MB")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="worker processes are started as on Linux")
def test_a_sweep_on_ray_gives_the_rows_of_this_process(tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    scenario = sim.parse_scenario(
        {
            "fabric": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "nics_per_leaf": 2},
            "workload": {"kind": "permutation", "size_bytes": 10_000},
        }
    )
    sweep = Sweep(scenario, {"transport.name": ["mrc", "tcp"]}, [1, 2])
    seen = []
    rows = run_sweep(sweep, tmp_path / "ray", use_ray=True, on_point=lambda done, *_: seen.append(done))
    assert not ray.is_initialized(), "what was started is ended"
    assert seen == [1, 2, 3, 4]
    alone = run_sweep(sweep, tmp_path / "alone")
    assert [{**row, "wall_s": 0} for row in rows] == [{**row, "wall_s": 0} for row in alone]
    again = run_sweep(sweep, tmp_path / "ray", use_ray=True)
    assert [row["wall_s"] for row in again] == [row["wall_s"] for row in rows], "nothing is run twice"
