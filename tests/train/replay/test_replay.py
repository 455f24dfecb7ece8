"""A run is hurt and recorded; its event log is enough to come to the same bits again."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farstep.train.elastic.launch import LocalJob
from farstep.train.replay import read_plan, replay

ROOT = Path(__file__).resolve().parents[3]
MEMBER = ROOT / "tests" / "train" / "elastic" / "member.py"
OPEN_END = 10**9
"""Steps of a job that is ended when the test has seen what it waited for."""


def rows_of(job: LocalJob, name: str) -> list[dict[str, Any]]:
    lines = [line for line in job.log(name).splitlines() if line.startswith("{") and line.endswith("}")]
    return [row for row in map(json.loads, lines) if "step" in row]


def wait_for_row(job: LocalJob, name: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Waits for a step of a member that is as it should be, the newest one."""
    end_s = time.monotonic() + 90
    while not any(condition(row) for row in rows_of(job, name)[-1:]):
        assert time.monotonic() < end_s, job.log(name)[-2000:]
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_replays_of_a_hurt_run_end_in_what_was_recorded(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT), "TEST_STEPS": str(OPEN_END), "TEST_COMPUTE_S": "0.03"}
    env["TEST_END"] = str(tmp_path / "end")
    command = [sys.executable, str(MEMBER)]
    with LocalJob(command, groups=3, folder=tmp_path / "job", env=env) as job:
        wait_for_row(job, "group-0", lambda row: row["step"] >= 20)
        job.send("group-1", signal.SIGKILL)
        job.members["group-1"].wait()
        wait_for_row(job, "group-0", lambda row: row["groups"] == 2)
        job.start_member("group-1")
        wait_for_row(job, "group-0", lambda row: row["groups"] == 3)
        job.send("group-2", signal.SIGTERM)
        wait_for_row(job, "group-0", lambda row: row["groups"] == 2)
        (tmp_path / "end").touch()
        statuses = job.wait(120)
    assert statuses == {"group-0": 0, "group-1": 0, "group-2": 0}
    plan = read_plan(tmp_path / "job" / "events.jsonl")
    assert plan.spans[0].names == ("group-0", "group-1", "group-2")
    assert [len(span.names) for span in plan.spans] == [3, 2, 3, 2], plan.spans
    steps = plan.end_step
    assert steps is not None
    quick = {"PYTHONPATH": str(ROOT), "TEST_STEPS": str(steps), "TEST_COMPUTE_S": "0"}
    ends = [replay(plan, command, folder=tmp_path / str(n), env=quick, timeout_s=120) for n in range(2)]
    assert ends[0] == ends[1]
    assert (ends[0].step, ends[0].sha256) == (steps, plan.sha256)
    rows = [
        json.loads(line) for line in (tmp_path / "0" / "replay-0.log").read_text().splitlines() if "{" in line
    ]
    assert {row["groups"] for row in rows if "groups" in row} == {2, 3}
