"""Runs that do not reach their last step end in seconds, with one message, and leave nothing behind."""

import os
import signal
import sys
import time
from pathlib import Path

LONG = 1_000_000


def test_a_rank_killed_while_all_start_ends_the_run_with_one_clear_message(start):
    run = start("", "--no-report", steps=LONG)
    deadline = time.monotonic() + 60
    while len(pids := run.worker_pids()) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(pids[2], signal.SIGKILL)
    assert run.end() == 3
    errors = [line for line in run.stderr.splitlines() if line.startswith("error:")]
    assert errors == ["error: rank 2 was killed by SIGKILL"]
    assert "Traceback" not in run.stderr
    assert not any(run.is_alive(pid) for pid in pids)
    assert run.end_event["status"] == "failed"


def test_ctrl_c_stops_after_the_step_and_still_writes_the_report(start):
    run = start(steps=LONG)
    run.wait_for_step(3)
    pids = run.worker_pids()
    os.kill(run.process.pid, signal.SIGINT)
    began = time.monotonic()
    assert run.end() == 130
    assert time.monotonic() - began < 15
    assert "Traceback" not in run.stderr
    assert not any(run.is_alive(pid) for pid in pids)
    assert run.end_event["status"] == "interrupted"
    assert run.end_event["steps"] == len(run.events("step"))
    assert len(set(run.end_event["replica_hashes"].values())) == 1
    assert "<html" in (run.folder / "report.html").read_text()


def test_a_closed_terminal_stops_after_the_step_and_still_writes_the_report(start):
    run = start(steps=LONG)
    run.wait_for_step(3)
    pids = run.worker_pids()
    for pid in (*pids, run.process.pid):  # the kernel tells every process of the terminal
        os.kill(pid, signal.SIGHUP)
    assert run.end() == 130
    assert not any(run.is_alive(pid) for pid in pids)
    assert run.end_event["status"] == "interrupted"
    assert run.end_event["steps"] == len(run.events("step"))
    assert "<html" in (run.folder / "report.html").read_text()


def test_ctrl_c_while_the_ranks_start_ends_them(start):
    run = start("", "--no-report", steps=LONG)
    deadline = time.monotonic() + 20
    while len(pids := run.worker_pids()) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert "Traceback" not in run.stderr
    assert not any(run.is_alive(pid) for pid in pids)


def test_ranks_do_not_outlive_a_killed_launcher(start):
    run = start("", "--no-report", steps=LONG)
    run.wait_for_step(3)
    pids = [*run.worker_pids(), *run.coordinator_pids()]
    assert len(pids) == 5
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate(timeout=10)
    deadline = time.monotonic() + 8
    while any(run.is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(run.is_alive(pid) for pid in pids)


def test_a_diverging_run_says_what_may_help(start):
    run = start(
        "[optimizer]\nlearning_rate = 10.0\nclip_norm = 1e30\nwarmup_steps = 0\nweight_decay = 10.0\n"
        '[[sites]]\nname = "home"\nreplica_groups = 1\n',
        "--no-report",
        steps=2000,
    )
    assert run.end() == 3
    (error,) = [line for line in run.stderr.splitlines() if line.startswith("error:")]
    assert "steps in a row had no finite gradient" in error
    assert "a lower learning rate may help (optimizer.learning_rate = 10)" in error


def test_torchrun_ends_all_when_a_rank_is_killed_and_rank_0_tells_which(start):
    two = '[[sites]]\nname = "east"\nreplica_groups = 1\n[[sites]]\nname = "west"\nreplica_groups = 1\n'
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    run = start(two, "--no-report", steps=LONG, command=(torchrun, "--nproc-per-node", "2", "-m", "farstep"))
    run.wait_for_step(3)
    (victim,) = [pid for pid in run.rank_pids() if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    os.kill(victim, signal.SIGKILL)
    assert run.end() != 0  # torchrun ends the others
    assert " rank 1 (west-0) ended without a word" in run.stderr
    assert not [line for line in run.stderr.splitlines() if line.startswith("error:")]
    assert run.end_event["status"] == "interrupted"


def test_ranks_do_not_outlive_their_killed_parent(start):
    run = start("", "--no-report", steps=LONG)
    run.wait_for_step(3)
    pids = run.worker_pids()
    os.kill(run.nursery_pid(), signal.SIGKILL)
    assert run.end() == 3
    assert "error: the process that has started the ranks was killed by SIGKILL\n" in run.stderr
    deadline = time.monotonic() + 8
    while any(run.is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(run.is_alive(pid) for pid in pids)
