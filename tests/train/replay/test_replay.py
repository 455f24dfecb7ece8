"""A run is hurt and recorded; its event log is enough to come to the same bits again."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from farstep.train.elastic.launch import LocalJob
from farstep.train.replay import read_plan, replay

ROOT = Path(__file__).resolve().parents[3]
MEMBER = ROOT / "tests" / "train" / "elastic" / "member.py"
STEPS = 250


def steps_of(job: LocalJob, name: str) -> int:
    return sum(line.startswith('{"t"') and '"step"' in line for line in job.log(name).splitlines())


def wait_for_step(job: LocalJob, name: str, step: int) -> None:
    end_s = time.monotonic() + 90
    while steps_of(job, name) < step:
        assert time.monotonic() < end_s, job.log(name)[-2000:]
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_replays_of_a_hurt_run_end_in_what_was_recorded(tmp_path: Path) -> None:
    env = {"PYTHONPATH": str(ROOT), "TEST_STEPS": str(STEPS), "TEST_COMPUTE_S": "0.03"}
    command = [sys.executable, str(MEMBER)]
    with LocalJob(command, groups=3, folder=tmp_path / "job", env=env) as job:
        wait_for_step(job, "group-0", 20)
        job.send("group-1", signal.SIGKILL)
        job.members["group-1"].wait()
        job.start_member("group-1")
        wait_for_step(job, "group-0", 60)
        job.send("group-2", signal.SIGTERM)
        statuses = job.wait(120)
    assert statuses == {"group-0": 0, "group-1": 0, "group-2": 0}
    plan = read_plan(tmp_path / "job" / "events.jsonl")
    assert plan.spans[0].names == ("group-0", "group-1", "group-2")
    assert [len(span.names) for span in plan.spans][:2] == [3, 2], plan.spans
    assert plan.end_step == STEPS
    quick = {**env, "TEST_COMPUTE_S": "0"}
    ends = [replay(plan, command, folder=tmp_path / str(n), env=quick, timeout_s=120) for n in range(2)]
    assert ends[0] == ends[1]
    assert (ends[0].step, ends[0].sha256) == (STEPS, plan.sha256)
    seats = [len(span.names) for span in plan.spans for _ in range(1)]
    rows = [
        json.loads(line) for line in (tmp_path / "0" / "replay-0.log").read_text().splitlines() if "{" in line
    ]
    assert {row["groups"] for row in rows if "groups" in row} == set(seats)
