"""The built-in demo as it is shown to a new user."""

import subprocess
import sys

import pytest

from farstep.observe.events import read_events
from farstep.observe.step_times import fault_costs
from farstep.observe.timeline import Timeline


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_learns_and_rides_through_the_cut(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "farstep", "train", "--plain", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    timeline = Timeline.of(read_events(folder / "events.jsonl"))
    assert timeline.end is not None
    assert timeline.end.bit_identical
    losses = [loss for _, _, loss in timeline.evals]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 5
    assert losses[-1] < 2.3
    (cost,) = fault_costs(timeline)
    assert cost.fault.end_ns is not None, "the cut was taken back while the run went on"
    assert cost.num_steps > 2, "training went on while the path was cut"
    assert timeline.paths["east-west:1"].lost > 0
    assert (folder / "report.html").stat().st_size > 10_000
