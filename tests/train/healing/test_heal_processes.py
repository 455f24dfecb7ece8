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
OPEN_END = 10**9
"""Steps of a job that ends when the test has seen what it waited for."""
WAIT_S = 100.0
RATE_MBPS = 8
"""Serves the 8.6 MB of state so slowly that the transfer takes seconds."""


def job_of(folder: Path, *, groups: int, steps: int = OPEN_END, rate_mbps: int | None = None) -> LocalJob:
    env = {"TEST_STEPS": str(steps), "TEST_END": str(folder / "end")}
    if rate_mbps is not None:
        env["TEST_RATE_MBPS"] = str(rate_mbps)
    config = {"max_groups": groups, "spares": 1}
    return LocalJob([sys.executable, str(MEMBER)], groups=groups, folder=folder, env=env, config=config)


def lines(job: LocalJob, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in job.log(name).splitlines() if line.startswith("{") and line.endswith("}")
    ]


def wait_until(job: LocalJob, condition: Callable[[], Any], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        logs = {name: job.log(name)[-800:] for name in job.members}
        assert time.monotonic() < end_s, f"{what} did not happen: {logs}"
        time.sleep(0.02)


def wait_for_line(job: LocalJob, name: str, is_there: Callable[[dict[str, Any]], bool], what: str) -> None:
    """Waits for a line of a member that runs."""

    def is_seen() -> bool:
        is_over = job.members[name].poll() is not None
        found = any(is_there(line) for line in lines(job, name))
        assert found or not is_over, f"{name} ended before {what}: {job.log(name)[-2000:]}"
        return found

    wait_until(job, is_seen, what)


def wait_for_spare(job: LocalJob, name: str) -> None:
    """Waits until a member is a spare of the generation in force, and ready."""

    def is_announced() -> bool:
        events = job.events()
        newest = [event for event in events if event["kind"] == "generation"][-1:]
        is_healed = any(event["kind"] == "heal_done" for event in events)
        return is_healed and any(name in event["spares"] for event in newest)

    wait_until(job, is_announced, f"{name} being a spare that is ready")


def newest_step(job: LocalJob, name: str) -> int:
    return max((line["step"] for line in lines(job, name) if "step" in line), default=-1)


def end_after(job: LocalJob, name: str, steps: int) -> None:
    """Ends the run when a member has made so many more steps."""
    start = newest_step(job, name)
    wait_for_line(job, name, lambda line: line.get("step", -1) >= start + steps, f"{steps} more steps")
    (job.folder / "end").touch()
    wait_until(job, lambda: any("end" in line for line in lines(job, name)), "the end")


def chunks_of(job: LocalJob, name: str) -> int:
    return max((line["chunks"] for line in lines(job, name) if "chunks" in line), default=0)


def start_late(job: LocalJob) -> str:
    """Starts a newcomer; returns one of the sources, while it and another have sent their first chunks.

    On a busy machine a newcomer may have found just one source in time; it is then started anew.
    """
    for _ in range(5):
        before = {name: chunks_of(job, name) for name in job.names}
        job.start_member("late")

        def serving(before: dict[str, int] = before) -> list[str]:
            return [name for name in job.names if chunks_of(job, name) > before[name]]

        def trains() -> bool:
            return any("step" in line for line in lines(job, "late"))

        wait_until(job, lambda: len(serving()) >= 2 or trains(), "two sources serving")
        if not trains():
            return serving()[-1]
        job.send("late", signal.SIGKILL)
        job.members["late"].wait()
        (job.folder / "late.log").unlink()
        wait_for_line(job, "group-0", lambda line: line.get("groups") == len(job.names), "its absence")
    pytest.fail("no newcomer found two sources")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_source_lost_halfway_leaves_the_rest_to_the_others(tmp_path: Path, how: signal.Signals) -> None:
    with job_of(tmp_path, groups=3, rate_mbps=RATE_MBPS) as job:
        wait_for_line(job, "group-0", lambda line: line.get("step", 0) >= 5, "step 5")
        lost = start_late(job)
        job.send(lost, how)
        left = [name for name in job.names if name != lost]
        wait_for_line(job, "late", lambda line: "step" in line, "a step of the newcomer")
        end_after(job, left[0], 10)
        if how is signal.SIGSTOP:
            job.send(lost, signal.SIGKILL)
        job.wait(WAIT_S)
        ends = {name: lines(job, name)[-1] for name in (*left, "late")}
    assert len({end["end"] for end in ends.values()}) == 1
    assert len({end["digest"] for end in ends.values()}) == 1
    pulled = ends["late"]["pulled"]
    assert pulled["fetched"] == -(-pulled["bytes"] // CHUNK_BYTES)  # nothing twice
    assert pulled["rejected"] == pulled["kept"] == 0
    assert pulled["sources"].keys() & set(left)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hot_spare_takes_a_seat_within_a_step_and_the_numbers_stay(tmp_path: Path) -> None:
    with job_of(tmp_path / "hurt", groups=2) as job:
        job.start_member("spare", is_spare=True)
        wait_for_spare(job, "spare")
        job.send("group-1", signal.SIGKILL)
        wait_for_line(job, "spare", lambda line: "step" in line, "a step of the spare")
        end_after(job, "group-0", 20)
        job.wait(WAIT_S)
        ends = [lines(job, name)[-1] for name in ("group-0", "spare")]
        steps = [line for line in lines(job, "group-0") if "step" in line]
    number = ends[0]["end"]
    assert [line["step"] for line in steps] == list(range(number))
    assert {line["groups"] for line in steps} == {2}, "no step had a seat less"
    assert sum(line["attempts"] - 1 for line in steps) <= 1, "no more than one step was run again"
    with job_of(tmp_path / "calm", groups=2, steps=number) as job:
        job.wait(WAIT_S)
        ends += [lines(job, name)[-1] for name in ("group-0", "group-1")]
    assert {end["end"] for end in ends} == {number}
    assert len({end["digest"] for end in ends}) == 1
