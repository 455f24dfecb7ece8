"""Jobs of real processes that lose all who have the newest state, and go on from their checkpoints."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from farstep.train.checkpoint import CheckpointFolder
from tests.train.elastic.test_processes import Job, make_job

__all__ = ["make_job"]

STEPS_AFTER = 40
"""Steps of the job that goes on, beyond the checkpoint."""


def lose_power(job: Job) -> None:
    for process in job.local.members.values():
        process.send_signal(signal.SIGKILL)
    job.local.kill_coordinator()
    job.local.wait(30)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_that_lost_power_ends_as_if_it_had_not(make_job: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    first = make_job(groups=2, checkpoints=folder)
    first.wait_for(lambda: first.events("checkpoint_saved"), "a checkpoint")
    lose_power(first)
    info, broken = CheckpointFolder(folder).newest()
    assert info.step >= 10
    assert broken == []
    assert info.manifest.info["group"] in ("group-0", "group-1")
    assert any("member.py" in word for word in info.manifest.info["command"])

    steps = info.step + STEPS_AFTER
    again = make_job(groups=2, steps=steps, checkpoints=folder)
    assert again.local.wait(120) == {"group-0": 0, "group-1": 0}
    assert [row["step"] for row in again.rows("group-0")] == list(range(info.step, steps))
    undisturbed = make_job(groups=2, steps=steps)
    undisturbed.local.wait(120)
    ends = {job.end(name)["digest"] for job in (undisturbed, again) for name in ("group-0", "group-1")}
    assert len(ends) == 1
    loaded = again.events("checkpoint_loaded")
    assert {event["step"] for event in loaded} == {info.step}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_spares_go_on_from_the_shards_they_hold_when_all_seats_are_lost(make_job: Any) -> None:
    """The state is so large for the rate that no spare has got it when both seats die."""
    while (
        True
    ):  # until all spares are there when the run begins: whoever comes later has nothing to be a spare with
        job = make_job(
            groups=2,
            spares=3,
            config={"min_groups": 2, "max_groups": 2, "spares": 3},
            width=1000,
            rate_mbps=0.1,
            memory_every=10,
        )
        job.wait_for(lambda job=job: job.events("generation"), "the run's beginning")
        if len(job.events("generation")[0]["spares"]) == 3:
            break
        job.local.close()
    job.wait_for(lambda: len(job.events("memory_checkpoint")) >= 2, "two checkpoints in memory")
    for name in job.local.names:
        job.local.send(name, signal.SIGKILL)
    assert not job.events("heal_done")
    job.wait_for(lambda: any(job.rows(name) for name in job.local.spare_names), "a step of a spare")
    (first, *_) = [name for name in job.local.spare_names if job.rows(name)]
    statuses = job.end_after(first, 20)
    assert {statuses[name] for name in job.local.spare_names} == {0}
    seated = [name for name in job.local.spare_names if job.rows(name)]
    assert len(seated) == 2
    start = job.rows(first)[0]["step"]
    assert {job.rows(name)[0]["step"] for name in seated} == {start}
    assert start in {event["step"] for event in job.events("memory_checkpoint")}
    assert {event["step"] for event in job.events("memory_recalled")} == {start}
    ends = [job.end(name) for name in seated]
    undisturbed = make_job(groups=2, steps=ends[0]["end"], width=1000)
    undisturbed.local.wait(120)
    ends.append(undisturbed.end("group-0"))
    assert len({(end["end"], end["digest"]) for end in ends}) == 1
