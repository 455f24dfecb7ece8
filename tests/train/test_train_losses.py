"""Runs that lose ranks go on with those that are left, and end well."""

import os
import signal
import time

import pytest

STEPS = 200


def has_members(run, num_groups: int, timeout_s: float = 60.0) -> None:
    """Waits until so many replica groups train together."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        (log,) = run.out.glob("*/events.jsonl")
        found = [line for line in log.read_text().splitlines() if '"kind":"members_changed"' in line]
        if found and found[-1].partition('"groups":[')[2].partition("]")[0].count('"') == 2 * num_groups:
            return
        assert run.process.poll() is None, run.process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"there were not {num_groups} replica groups within {timeout_s} s")


def check_end(run, *, lost: dict[int, str], left: set[str]) -> None:
    assert run.end() == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert run.end_event["status"] == "finished"
    assert set(run.end_event["replica_hashes"]) == left
    assert len(set(run.end_event["replica_hashes"].values())) == 1
    assert {event["rank"]: event["cause"] for event in run.events("rank_lost")} == lost
    assert [event["step"] for event in run.events("step")] == list(range(STEPS))
    assert {event["tokens"] for event in run.events("step")} == {4 * 2 * 16}


def test_a_killed_rank_costs_a_step_and_the_others_go_on(start):
    run = start(steps=STEPS)
    run.wait_for_step(3)
    os.kill(run.worker_pids()[2], signal.SIGKILL)
    check_end(run, lost={2: "was killed by SIGKILL"}, left={"east-0", "east-1", "west-1"})
    changes = run.events("members_changed")
    assert {event["rank"] for event in changes} == {0, 1, 3}
    assert all(event["groups"] == ["east-0", "east-1", "west-1"] and event["is_urgent"] for event in changes)
    assert (
        " rank 2 (west-0) was killed by SIGKILL; training went on with 3 replica groups"
        in run.stderr.splitlines()[-1]
    )
    assert run.stderr.splitlines()[-1].startswith("note: at step ")
    assert "All 3 replicas that were left hold bit-identical parameters" in " ".join(run.stdout.split())
    assert "Losses and recoveries" in (run.folder / "report.html").read_text()
    last = run.events("eval")[-1]
    assert (last["step"], last["windows"]) == (STEPS, 8)


def test_a_site_lost_with_most_of_the_ranks_leaves_the_other_training(start):
    sites = '[[sites]]\nname = "east"\nreplica_groups = 1\n[[sites]]\nname = "west"\nreplica_groups = 3\n'
    run = start(sites, "--no-report", steps=STEPS)
    run.wait_for_step(3)
    for pid in run.worker_pids()[1:]:
        os.kill(pid, signal.SIGKILL)
    check_end(run, lost=dict.fromkeys((1, 2, 3), "was killed by SIGKILL"), left={"east-0"})


@pytest.mark.slow
def test_fewer_ranks_than_wanted_end_the_run_with_one_clear_message(start):
    run = start("", "--no-report", steps=1_000_000, run_keys="min_groups = 4")
    run.wait_for_step(3)
    pids = run.worker_pids()
    os.kill(pids[1], signal.SIGKILL)
    assert run.end() == 3
    errors = [line for line in run.stderr.splitlines() if line.startswith("error:")]
    assert errors == [
        "error: rank 1 (east-1) was killed by SIGKILL: 3 replica groups are left, run.min_groups = 4"
    ]
    assert not any(run.is_alive(pid) for pid in pids)


@pytest.mark.slow
def test_a_rank_told_to_end_leaves_and_the_others_go_on(start):
    run = start("", "--no-report", steps=STEPS)
    run.wait_for_step(3)
    os.kill(run.worker_pids()[0], signal.SIGTERM)
    check_end(run, lost={0: "left the run, as it was asked to"}, left={"east-1", "west-0", "west-1"})
    assert not any(event["is_urgent"] for event in run.events("members_changed"))


@pytest.mark.slow
def test_a_rank_is_lost_while_the_coordinator_is_down(start):
    run = start("", "--no-report", steps=STEPS)
    run.wait_for_step(3)
    os.kill(run.coordinator_pids()[0], signal.SIGKILL)
    os.kill(run.worker_pids()[3], signal.SIGKILL)
    check_end(run, lost={3: "was killed by SIGKILL"}, left={"east-0", "east-1", "west-0"})


@pytest.mark.slow
def test_a_rank_that_hangs_is_given_up_and_comes_back(start):
    run = start("", "--no-report", steps=1_000_000, run_keys="silence_s = 2.0")
    run.wait_for_step(3)
    pid = run.worker_pids()[3]
    os.kill(pid, signal.SIGSTOP)
    has_members(run, 3)
    os.kill(pid, signal.SIGCONT)
    has_members(run, 4)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130, run.stderr
    assert len(run.end_event["replica_hashes"]) == 4
    assert len(set(run.end_event["replica_hashes"].values())) == 1
    assert [event["step"] for event in run.events("step")] == list(range(run.end_event["steps"]))
