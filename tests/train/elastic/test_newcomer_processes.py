"""Newcomers in processes of their own: they, or the coordinator, are killed while their lane is opened."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.train.elastic.test_processes import Job, make_job

__all__ = ["make_job"]

POINTS = ["/lane0/link/2/0", "/lane0/link/2/1", "/lane0/open/2/0", "/lane0/open/2/1"]
"""What seat 2 publishes for seats 0 and 1: how to reach it, and that its end is open."""


def stop_newcomer(job: Job, point: str) -> Path:
    """Kills group-2 and starts it again; returns the file that holds it while it opens its lane."""
    job.wait_for_step("group-0", 20)
    job.local.send("group-2", signal.SIGKILL)
    job.local.members["group-2"].wait()
    job.wait_for_groups("group-0", 2)
    file = job.local.folder / "held"
    job.local.start_member("group-2", env={"TEST_POINT": point, "TEST_POINT_FILE": str(file)})
    job.wait_for(file.exists, "the newcomer opening its lane")
    step = job.newest_step("group-0")
    job.wait_for_step("group-0", step + 10)  # nobody waits for it
    assert all(row["groups"] == 2 for row in job.rows("group-0")[-8:])
    return file


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_a_newcomer_killed_while_its_lane_is_opened(make_job: Any, point: str) -> None:
    job = make_job(groups=3)
    stop_newcomer(job, point)
    job.local.send("group-2", signal.SIGKILL)
    job.wait_for(lambda: len(job.events("member_lost")) == 2, "the newcomer being given up")
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0, "group-2": -9}
    for name in ("group-0", "group-1"):
        rows = job.rows(name)
        assert [row["step"] for row in rows] == list(range(job.end("group-0")["end"]))
        assert sum(row["attempts"] - 1 for row in rows) <= 2, "one for each of the two kills"
    assert job.end("group-0")["digest"] == job.end("group-1")["digest"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", [POINTS[0], POINTS[3]])
def test_a_coordinator_killed_while_a_lane_is_opened(make_job: Any, point: str) -> None:
    job = make_job(groups=3)
    file = stop_newcomer(job, point)
    attempts = sum(row["attempts"] - 1 for row in job.rows("group-0"))
    job.local.kill_coordinator()
    file.unlink()
    job.wait_for_step("group-0", job.newest_step("group-0") + 10)
    assert job.rows("group-0")[-1]["groups"] == 2
    job.local.start_coordinator()
    job.wait_for_groups("group-0", 3)
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0, "group-2": 0}
    assert sum(row["attempts"] - 1 for row in job.rows("group-0")) == attempts, "no step was run again"
    assert len({job.end(name)["digest"] for name in job.local.names}) == 1
