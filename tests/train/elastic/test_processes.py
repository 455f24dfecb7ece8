"""Jobs of real processes under a real coordinator, whose members are killed, stopped, replaced and told to go."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farstep.train.elastic.launch import LocalJob

MEMBER = Path(__file__).with_name("member.py")
ROOT = Path(__file__).parents[3]


OPEN_END = 10**9
"""Steps of a job that is ended when the test has seen what it waited for."""


class Job:
    """A local job with what its members say. Without a number of steps it goes on until it is told to end."""

    def __init__(
        self,
        folder: Path,
        *,
        groups: int,
        spares: int = 0,
        steps: int = OPEN_END,
        config: dict[str, Any] | None = None,
        **env: Any,
    ) -> None:
        variables = {
            "PYTHONPATH": str(ROOT),
            "TEST_STEPS": str(steps),
            "TEST_END": str(folder / "end"),
            **{f"TEST_{key.upper()}": str(value) for key, value in env.items()},
        }
        self.local = LocalJob(
            [sys.executable, str(MEMBER)],
            groups=groups,
            spares=spares,
            folder=folder,
            env=variables,
            config=config,
        )

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Steps of a member."""
        return [row for row in self._all(name) if "step" in row]

    def end(self, name: str) -> dict[str, Any]:
        """How a member ended."""
        ends = [row for row in self._all(name) if "end" in row]
        assert ends, self.local.log(name)
        return ends[-1]

    def _all(self, name: str) -> list[dict[str, Any]]:
        lines = self.local.log(name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events that the coordinator has noted."""
        return [row for row in self.local.events() if row["kind"] == kind]

    def wait_for(self, condition: Any, what: str, timeout_s: float = 90.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            logs = [self.local.log(name)[-600:] for name in self.local.members]
            assert time.monotonic() < deadline_s, f"{what} did not happen\n{logs}"
            time.sleep(0.02)

    def newest_step(self, name: str) -> int:
        return max((row["step"] for row in self.rows(name)), default=-1)

    def wait_for_step(self, name: str, step: int) -> None:
        self.wait_for(lambda: self.newest_step(name) >= step, f"step {step} of {name}")

    def wait_for_groups(self, name: str, groups: int) -> None:
        """Waits for a member's step among so many replica groups."""
        self.wait_for(lambda: self.rows(name)[-1]["groups"] == groups, f"a step of {groups} groups")

    def end_after(self, name: str, steps: int) -> dict[str, int]:
        """Ends the run when a member has made so many more steps; returns the exit statuses of all."""
        self.wait_for_step(name, self.newest_step(name) + steps)
        (self.local.folder / "end").touch()
        return self.local.wait(90)


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def make(**options: Any) -> Job:
        jobs.append(Job(tmp_path / f"job-{len(jobs)}", **options))
        jobs[-1].local.start()
        return jobs[-1]

    yield make
    for job in jobs:
        job.local.close()


def test_survivors_of_a_killed_member_go_on(make_job: Any) -> None:
    job = make_job(groups=3)
    job.wait_for_step("group-0", 20)
    job.local.send("group-1", signal.SIGKILL)
    job.wait_for_groups("group-0", 2)
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": -9, "group-2": 0}
    ends = [job.end(name) for name in ("group-0", "group-2")]
    assert (ends[0]["end"], ends[0]["digest"]) == (ends[1]["end"], ends[1]["digest"])
    rows = job.rows("group-0")
    assert [row["step"] for row in rows] == list(range(ends[0]["end"]))
    assert {row["samples"] for row in rows if row["step"] % 86 != 85} == {48}, (
        "the global batch stays what it was"
    )
    assert sum(row["attempts"] - 1 for row in rows) <= 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("form", ["batch", "closure"])
def test_a_hot_spare_leaves_the_numbers_as_they_were(make_job: Any, form: str) -> None:
    job = make_job(groups=2, spares=1, form=form)
    job.wait_for(lambda: job.events("heal_done"), "the spare being ready")
    job.local.send("group-1", signal.SIGKILL)
    job.wait_for(lambda: job.rows("spare-0"), "a step of the spare")
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": -9, "spare-0": 0}
    ends = [job.end("group-0"), job.end("spare-0")]
    undisturbed = make_job(groups=2, steps=ends[0]["end"], form=form)
    undisturbed.local.wait(120)
    ends.append(undisturbed.end("group-0"))
    assert len({(end["end"], end["digest"]) for end in ends}) == 1
    assert {row["groups"] for row in job.rows("group-0")} == {2}, "no step had a seat less"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_restarted_member_comes_back_while_the_others_train(make_job: Any) -> None:
    job = make_job(groups=2)
    job.wait_for_step("group-0", 20)
    job.local.send("group-1", signal.SIGKILL)
    job.local.members["group-1"].wait()
    job.wait_for_groups("group-0", 1)
    job.local.start_member("group-1")
    job.wait_for_groups("group-0", 2)
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0}
    assert job.end("group-0")["digest"] == job.end("group-1")["digest"]
    assert [row["step"] for row in job.rows("group-0")] == list(range(job.end("group-0")["end"]))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_notice_is_a_clean_leave(make_job: Any) -> None:
    job = make_job(groups=3)
    job.wait_for_step("group-0", 20)
    job.local.send("group-1", signal.SIGTERM)
    job.wait_for_groups("group-0", 2)
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0, "group-2": 0}
    assert all(row["attempts"] == 1 for row in job.rows("group-0")), "no step was run again"
    assert job.end("group-0")["digest"] == job.end("group-2")["digest"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stopped_member_costs_the_silence_limit_and_comes_back(make_job: Any) -> None:
    job = make_job(groups=3)
    job.wait_for_step("group-0", 20)
    job.local.send("group-1", signal.SIGSTOP)
    job.wait_for(lambda: job.events("member_lost"), "the stopped member being given up")
    job.wait_for_groups("group-0", 2)
    job.local.send("group-1", signal.SIGCONT)
    job.wait_for_groups("group-0", 3)
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0, "group-2": 0}
    digests = {job.end(name)["digest"] for name in job.local.names}
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nobody_notices_that_the_coordinator_is_gone(make_job: Any) -> None:
    job = make_job(groups=2)
    job.wait_for_step("group-0", 20)
    for _ in range(3):
        job.local.kill_coordinator()
        job.wait_for_step("group-0", job.newest_step("group-0") + 10)
        job.local.start_coordinator()
    assert job.end_after("group-0", 20) == {"group-0": 0, "group-1": 0}
    assert all(row["attempts"] == 1 for row in job.rows("group-0"))
    assert job.end("group-0")["digest"] == job.end("group-1")["digest"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_error_of_the_user_takes_one_member_out(make_job: Any) -> None:
    job = make_job(groups=2, steps=80, fail_group="group-1", fail_step=30)
    assert job.local.wait(90) == {"group-0": 0, "group-1": 1}
    assert "ZeroDivisionError" in job.local.log("group-1")
    assert job.end("group-0")["end"] == 80
    assert [row["step"] for row in job.rows("group-0")] == list(range(80))
