"""Members that hang without being silent for long: stopped time and again, or with a thread that is stuck."""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farstep.train.elastic.launch import LocalJob

MEMBER = Path(__file__).with_name("member.py")
ROOT = Path(__file__).parents[3]
PAUSES = 100
SILENCE_S = 1.2
GAP_S = 0.15
"""Between two pauses, so that two of one member are two for the coordinator as well."""


class Job:
    """Three replica groups that train until they are told to end."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._end = folder / "end"
        self.local = LocalJob(
            [sys.executable, str(MEMBER)],
            groups=3,
            folder=folder / "job",
            env={"PYTHONPATH": str(ROOT), "TEST_STEPS": "1000000", "TEST_END": str(self._end), **env},
            config={"silence_s": SILENCE_S},
        )

    def said(self, name: str, key: str) -> list[dict[str, Any]]:
        lines = [line for line in self.local.log(name).splitlines() if line.endswith("}")]
        return [json.loads(line) for line in lines if line.startswith("{") and f'"{key}"' in line]

    def newest_step(self) -> int:
        return max((row["step"] for row in self.said("group-0", "step")), default=-1)

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 90
        while not is_true():
            assert time.monotonic() < deadline_s, self.local.log("group-0")[-2000:]
            time.sleep(0.05)

    def train_on(self, steps: int) -> None:
        step = self.newest_step() + steps
        self.wait_for(lambda: self.newest_step() >= step)

    def end(self) -> None:
        self._end.touch()

    def events(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for event in self.local.events():
            found.setdefault(event["kind"], []).append(event)
        return found


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(**env: str) -> Job:
        jobs.append(Job(tmp_path, **env))
        jobs[-1].local.start()
        return jobs[-1]

    yield make
    for job in jobs:
        job.local.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_hundred_pauses_below_the_limit_evict_nobody(make_job: Callable[..., Job]) -> None:
    draw = random.Random(1)
    job = make_job()
    job.train_on(10)
    for _ in range(PAUSES):
        name = draw.choice(job.local.names)
        job.local.send(name, signal.SIGSTOP)
        time.sleep(draw.uniform(0.05, 0.8) * SILENCE_S)
        job.local.send(name, signal.SIGCONT)
        time.sleep(GAP_S)
    job.train_on(10)
    job.end()
    assert job.local.wait(90) == {"group-0": 0, "group-1": 0, "group-2": 0}
    noted = job.events()
    assert not {"member_lost", "evict", "step_failed", "failure_report"} & noted.keys(), noted
    assert [event["number"] for event in noted["generation"]] == [1]
    rows = job.said("group-0", "step")
    assert all(row["attempts"] == 1 for row in rows), "no step was run again"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stuck_thread_costs_one_step_deadline(make_job: Callable[..., Job]) -> None:
    job = make_job(TEST_DEADLINE_S="5", TEST_STUCK_GROUP="group-1", TEST_STUCK_STEP="20")
    job.wait_for(lambda: bool(job.said("group-1", "stuck")))
    job.train_on(30)
    job.end()
    job.wait_for(lambda: all(job.said(name, "end") for name in ("group-0", "group-2")))
    ends = [job.said(name, "end")[-1] for name in ("group-0", "group-2")]
    assert ends[0]["digest"] == ends[1]["digest"]
    (evict,) = job.events()["evict"]
    assert evict["member"] == "group-1"
    assert "its training thread is stuck" in evict["reason"]
    members = [event["members"] for event in job.events()["generation"]]
    assert members == [["group-0", "group-1", "group-2"], ["group-0", "group-2"]], (
        "nobody tried with it again"
    )
    attempts = [row["attempts"] for row in job.said("group-0", "step")]
    assert max(attempts) == 2
    assert sum(attempts) == len(attempts) + 1
