"""Members that are stopped for less than the silence limit, time and again: nobody may lose a seat over it."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from farstep.train.elastic.launch import LocalJob

MEMBER = Path(__file__).with_name("member.py")
ROOT = Path(__file__).parents[3]
PAUSES = 100
SILENCE_S = 1.2
GAP_S = 0.15
"""Between two pauses, so that two of one member are two for the coordinator as well."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_hundred_pauses_below_the_limit_evict_nobody(tmp_path: Path) -> None:
    draw = random.Random(1)
    end = tmp_path / "end"
    env = {"PYTHONPATH": str(ROOT), "TEST_STEPS": "1000000", "TEST_END": str(end)}
    job = LocalJob(
        [sys.executable, str(MEMBER)],
        groups=3,
        folder=tmp_path / "job",
        env=env,
        config={"silence_s": SILENCE_S},
    )

    def newest_step() -> int:
        lines = [line for line in job.log("group-0").splitlines() if '"step"' in line and line.endswith("}")]
        return json.loads(lines[-1])["step"] if lines else -1

    def wait_for_step(step: int) -> None:
        deadline_s = time.monotonic() + 90
        while newest_step() < step:
            assert time.monotonic() < deadline_s, job.log("group-0")[-2000:]
            time.sleep(0.05)

    with job:
        wait_for_step(10)
        for _ in range(PAUSES):
            name = draw.choice(job.names)
            job.send(name, signal.SIGSTOP)
            time.sleep(draw.uniform(0.05, 0.8) * SILENCE_S)
            job.send(name, signal.SIGCONT)
            time.sleep(GAP_S)
        wait_for_step(newest_step() + 10)
        end.touch()
        assert job.wait(90) == {"group-0": 0, "group-1": 0, "group-2": 0}
        noted = {}
        for event in job.events():
            noted.setdefault(event["kind"], []).append(event)
        rows = [json.loads(line) for line in job.log("group-0").splitlines() if '"step"' in line]
    assert not {"member_lost", "evict", "step_failed", "failure_report"} & noted.keys(), noted
    assert [event["number"] for event in noted["generation"]] == [1]
    assert all(row["attempts"] == 1 for row in rows), "no step was run again"
