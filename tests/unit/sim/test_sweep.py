"""Sweeps: points, going on after a break, rows and files."""

import contextlib
import csv
import errno
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from farstep import sim
from farstep.fabric.errors import ConfigError
from farstep.sim import run as runs
from farstep.sim import scenario as scenarios
from farstep.sim import sweep as module
from farstep.sim.sweep import Sweep, grouped, parse_seeds, parse_settings, run_sweep, write_rows


def small(**overrides):
    return sim.parse_scenario(
        {
            "fabric": {"kind": "leaf-spine", "leaves": 2, "spines": 2, "nics_per_leaf": 2},
            "workload": {"kind": "permutation", "size_bytes": 50_000},
            "run": {"level": "flow"},
        },
        overrides=overrides,
    )


def test_settings_and_seeds_are_read_as_the_command_line_has_them():
    assert parse_settings(
        ["transport.evs=16,64", "switch.trimming=true,false", "transport.name=mrc, roce"]
    ) == {
        "transport.evs": [16, 64],
        "switch.trimming": [True, False],
        "transport.name": ["mrc", "roce"],
    }
    assert parse_settings(["workload.senders=[1,2],[3,4]"]) == {"workload.senders": [[1, 2], [3, 4]]}
    assert parse_seeds("0:3") == [0, 1, 2]
    assert parse_seeds("7, 9:11") == [7, 9, 10]


@pytest.mark.parametrize("text", ["", "x", "3:", "-1", "5:5", "1:2:3", "0:99999999999"])
def test_wrong_seeds_are_told(text):
    with pytest.raises(ConfigError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize("texts", [["evs"], ["=3"], ["a.b="], ["a.b=1", "a.b=2"]])
def test_wrong_settings_are_told(texts):
    with pytest.raises(ConfigError, match="--set"):
        parse_settings(texts)


def test_points_are_all_combinations_with_all_seeds():
    points = Sweep(small(), {"workload.size_bytes": [1000, 2000], "transport.evs": [8, 16]}, [4, 5]).points()
    assert len(points) == len({point.digest for point in points}) == 8
    assert points[1].values == {"workload.size_bytes": 1000, "transport.evs": 8}
    assert points[1].scenario["run"]["seed"] == 5


def test_a_wrong_value_is_told_before_anything_runs(tmp_path):
    for settings, message in (
        ({"transport.evs": [16, 0]}, "transport.evs = 0"),
        ({"run.seed": [1]}, "run.seed: a sweep takes seeds apart"),
        ({"transport.evs": []}, "transport.evs: no value is given"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_sweep(Sweep(small(), settings), tmp_path)
    with pytest.raises(ConfigError, match="at most 1000000"):
        Sweep(small(), {"transport.evs": [8] * 2000}, range(1000)).points()


def test_a_sweep_goes_on_where_it_was(tmp_path, monkeypatch):
    ran = []
    original = module._run_point
    monkeypatch.setattr(module, "_run_point", lambda work: (ran.append(work[0]), original(work))[1])
    first = run_sweep(Sweep(small(), {"workload.size_bytes": [1000, 2000]}, [1, 2]), tmp_path)
    assert ran == [0, 1, 2, 3]
    files = sorted((tmp_path / "points").glob("*.json"))
    files[2].write_text("{")  # a file that is not whole
    told = []
    second = run_sweep(
        Sweep(small(), {"workload.size_bytes": [1000, 2000, 3000]}, [1, 2]),
        tmp_path,
        on_point=lambda done, total, row: told.append((done, total)),
    )
    assert len(ran) == 4 + 1 + 2
    assert told[0] == (3, 6)
    assert told[-1] == (6, 6)
    assert [row["workload.size_bytes"] for row in second] == [1000, 1000, 2000, 2000, 3000, 3000]
    same = ("seed", "flow_time_p100_ns", "goodput_gbps")
    assert [[row[key] for key in same] for row in second[:4]] == [[row[key] for key in same] for row in first]
    assert not list((tmp_path / "points").glob("*.part"))


def test_processes_give_the_same_rows(tmp_path):
    sweep = Sweep(small(), {"workload.size_bytes": [1000, 2000]}, [1, 2])
    alone = run_sweep(sweep, tmp_path / "one")
    together = run_sweep(sweep, tmp_path / "two", processes=2)
    for left, right in zip(alone, together, strict=True):
        assert {**left, "wall_s": 0} == {**right, "wall_s": 0}


def test_a_process_builds_equal_fabrics_once(tmp_path, monkeypatch):
    built = []
    build = scenarios.build_topology
    monkeypatch.setattr(scenarios, "build_topology", lambda *a, **k: built.append(k) or build(*a, **k))
    knobs = {"fabric.spines": [2, 3], "workload.size_bytes": [1000, 2000]}
    shared = run_sweep(Sweep(small(), knobs, [1, 2, 3]), tmp_path / "all")
    assert [row["status"] for row in shared] == ["done"] * 12
    assert [parameters["spines"] for parameters in built] == [2, 3]
    alone = run_sweep(
        Sweep(small(), {"fabric.spines": [3], "workload.size_bytes": [2000]}, [3]), tmp_path / "one"
    )
    assert len(built) == 3, "nothing stays behind"
    ours = {key: value for key, value in alone[0].items() if key != "wall_s"}
    assert ours == {key: value for key, value in shared[-1].items() if key != "wall_s"}


def test_a_ray_cluster_gives_the_same_rows(tmp_path, monkeypatch):
    calls = []

    class Remote:
        def __init__(self, function):
            self.remote = lambda item: (calls.append(item), function(item))[1]

    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: calls.append("init"),
        shutdown=lambda: calls.append("shutdown"),
        cluster_resources=lambda: {"CPU": 2.0},
        remote=Remote,
        wait=lambda running: (running[:1], running[1:]),
        get=lambda reference: reference,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    sweep = Sweep(small(), {"workload.size_bytes": [1000, 2000]}, [1])
    through_ray = run_sweep(sweep, tmp_path / "one", use_ray=True)
    alone = run_sweep(sweep, tmp_path / "two")
    assert calls[0] == "init"
    assert calls[-1] == "shutdown"
    assert len(calls) == 4
    assert [{**row, "wall_s": 0} for row in through_ray] == [{**row, "wall_s": 0} for row in alone]


def test_a_point_that_fails_is_a_row_and_is_tried_again(tmp_path):
    scenario = small(**{"workload.size_bytes": 50_000_000})
    cut = sim.parse_scenario(
        {**scenario.table(), "faults": [{"kind": "nic_down", "nic": 0, "at_us": 1, "duration_us": 5}]}
    )
    rows = run_sweep(
        Sweep(cut, {"transport.name": ["mrc", "uet-oblivious"], "faults.duration_us": [5]}), tmp_path
    )
    assert {row["status"] for row in rows} == {"done"}
    endless = sim.parse_scenario({**scenario.table(), "faults": [{"kind": "nic_down", "nic": 0, "at_us": 1}]})
    (row,) = run_sweep(Sweep(endless), tmp_path)
    assert row["status"] == "failed"
    assert "NIC" in row["error"]
    assert len(list((tmp_path / "points").iterdir())) == 2


def test_rows_are_written_in_every_format(tmp_path):
    rows = [
        {"a.b": [1, 2], "seed": 1, "status": "done", "time": 1.5},
        {"a.b": "x", "seed": 2, "status": "failed", "error": "no"},
    ]
    assert json.loads(write_rows(rows, tmp_path / "r.json").read_text()) == rows
    with write_rows(rows, tmp_path / "r.csv").open() as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["1", "2"]
    with pytest.raises(ConfigError, match=r"r\.txt: valid endings: \.parquet, \.csv, \.json"):
        write_rows(rows, tmp_path / "r.txt")
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(write_rows(rows, tmp_path / "r.parquet")).to_pylist()[0]["a.b"] == "[1, 2]"


def test_seeds_of_a_combination_are_put_together():
    rows = [
        {"k": 1, "seed": seed, "status": status, "time": time}
        for seed, status, time in ((1, "done", 5.0), (2, "done", 7.0), (3, "failed", None))
    ]
    (group,) = grouped(rows, ["k"])
    assert (group.values, group.seeds, group.median("time"), group.highest("time")) == ((1,), 2, 6.0, 7.0)
    assert group.median("nothing") is None


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_process_that_is_killed_costs_its_point_at_most(tmp_path, monkeypatch, deaths):
    """What ran beside it is run again; the point itself has failed when it took a second process with it."""

    def dying(scenario, **options):
        if scenario.workload[0].size_bytes == 2000 and scenario.run.seed == 2:
            for attempt in range(deaths):
                with contextlib.suppress(FileExistsError):
                    (tmp_path / f"death-{attempt}").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
        return run_scenario(scenario, **options)

    run_scenario = runs.run_scenario
    monkeypatch.setattr(runs, "run_scenario", dying)
    monkeypatch.setattr(
        module, "_pool", lambda work, n: ProcessPoolExecutor(n, mp_context=get_context("fork"))
    )
    sweep = Sweep(small(), {"workload.size_bytes": [1000, 2000, 3000, 4000]}, [1, 2])
    rows = run_sweep(sweep, tmp_path / "out", processes=2)
    assert [row["seed"] for row in rows] == [1, 2] * 4
    failed = [row for row in rows if row["status"] != "done"]
    assert [row["error"] for row in failed] == [module.PROCESS_ENDED] * (deaths - 1)
    assert len(list((tmp_path / "out" / "points").glob("*.json"))) == len(rows) - len(failed)
    again = run_sweep(sweep, tmp_path / "out", processes=2)
    assert {row["status"] for row in again} == {"done"}


def test_a_full_disk_is_told_and_leaves_no_half_of_a_point(tmp_path, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "replace", full)
    with pytest.raises(ConfigError, match=r"points: cannot be written: No space left on device"):
        run_sweep(Sweep(small()), tmp_path)
    assert not list((tmp_path / "points").iterdir())


def test_nobody_waits_for_points_under_way_when_a_sweep_is_stopped(tmp_path, monkeypatch):
    def slow(scenario, **options):
        if scenario.run.seed > 1:
            time.sleep(60.0)
        return run_scenario(scenario, **options)

    def stop(done, total, row):
        raise KeyboardInterrupt

    run_scenario = runs.run_scenario
    monkeypatch.setattr(runs, "run_scenario", slow)
    monkeypatch.setattr(
        module, "_pool", lambda work, n: ProcessPoolExecutor(n, mp_context=get_context("fork"))
    )
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(Sweep(small(), {}, [1, 2, 3, 4]), tmp_path, processes=2, on_point=stop)
    assert time.monotonic() - began < 30.0
    assert len(list((tmp_path / "points").glob("*.json"))) == 1
