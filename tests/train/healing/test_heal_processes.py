"""Healing among real processes over loopback: sources that are killed or stopped while they serve."""

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farstep.train.elastic.launch import LocalJob

MEMBER = Path(__file__).with_name("member.py")
CHUNK_BYTES = 1 << 20


STEPS = 1500
"""Long enough for a newcomer to start and heal, on a fast machine as well."""


def job_of(folder: Path, *, groups: int, steps: int, **config: Any) -> LocalJob:
    """A job with 8.6 MB of state, served so slowly that a transfer takes a second or more."""
    return LocalJob(
        [sys.executable, str(MEMBER)],
        groups=groups,
        folder=folder,
        env={"TEST_STEPS": str(steps), "TEST_RATE_MBPS": "12"},
        config={"max_groups": groups, "spares": 1, **config},
    )


def lines(job: LocalJob, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in job.log(name).splitlines() if line.startswith("{") and line.endswith("}")
    ]


def wait_for(
    job: LocalJob, name: str, is_there: Callable[[dict[str, Any]], bool], timeout_s: float = 100.0
) -> None:
    """Waits for a line of a member."""
    end_s = time.monotonic() + timeout_s
    while not any(is_there(line) for line in lines(job, name)):
        assert time.monotonic() < end_s, f"{name} did not get so far: {job.log(name)[-2000:]}"
        assert job.members[name].poll() is None, f"{name} ended: {job.log(name)[-2000:]}"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_source_lost_halfway_leaves_the_rest_to_the_others(tmp_path: Path, how: signal.Signals) -> None:
    with job_of(tmp_path, groups=3, steps=STEPS) as job:
        wait_for(job, "group-0", lambda line: line.get("step", 0) >= 5)
        job.start_member("late")
        wait_for(job, "group-1", lambda line: line.get("chunks", 0) >= 1)
        job.send("group-1", how)
        wait_for(job, "group-0", lambda line: "end" in line)
        if how is signal.SIGSTOP:
            job.send("group-1", signal.SIGKILL)
        job.wait(30)
        ends = {name: lines(job, name)[-1] for name in ("group-0", "group-2", "late")}
    assert {end["end"] for end in ends.values()} == {STEPS}
    assert len({end["digest"] for end in ends.values()}) == 1
    pulled = ends["late"]["pulled"]
    assert pulled["fetched"] == -(-pulled["bytes"] // CHUNK_BYTES)  # nothing twice
    assert pulled["rejected"] == pulled["kept"] == 0
    assert pulled["sources"].keys() >= {"group-0", "group-2"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hot_spare_takes_a_seat_within_a_step_and_the_numbers_stay(tmp_path: Path) -> None:
    digests = []
    for is_disturbed in (False, True):
        with job_of(tmp_path / str(is_disturbed), groups=2, steps=120) as job:
            job.start_member("spare", is_spare=True)
            if is_disturbed:
                wait_for(job, "group-0", lambda line: line.get("step", 0) >= 60)
                job.send("group-1", signal.SIGKILL)
            wait_for(job, "group-0", lambda line: "end" in line)
            job.wait(30)
            digests += [lines(job, name)[-1]["digest"] for name in ("group-0", "spare")]
            if is_disturbed:
                steps = [line for line in lines(job, "group-0") if "step" in line]
                assert {line["groups"] for line in steps} == {2}
                assert max(line["attempts"] for line in steps) == 2
                assert [line["step"] for line in steps] == list(range(1, 121)) or len(steps) == 120
    assert len(set(digests)) == 1
