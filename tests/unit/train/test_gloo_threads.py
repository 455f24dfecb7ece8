"""A process that had a gloo group ends when the group's threads have nothing in hand any more."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from farstep.train.gloo_threads import wait_until_settled


def put(folder: Path, number: int, name: str, state: str) -> None:
    thread = folder / str(number)
    thread.mkdir(exist_ok=True)
    (thread / "comm").write_text(f"{name}\n")
    (thread / "stat").write_text(f"{number} (odd ) name) {state} 1 1 0")


def test_without_gloo_nothing_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path, 1, "python", "R")
    began_s = time.monotonic()
    assert wait_until_settled(tmp_path, patience_s=60.0)
    assert time.monotonic() - began_s < 30.0


def test_a_thread_at_work_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path, 1, "pt_gloo_runloop", "R")
    put(tmp_path, 2, "pt_gloo_runloop", "S")
    found: list[bool] = []
    waiter = threading.Thread(target=lambda: found.append(wait_until_settled(tmp_path, patience_s=60.0)))
    waiter.start()
    time.sleep(0.05)
    assert found == []
    put(tmp_path, 1, "pt_gloo_runloop", "S")
    waiter.join(30)
    assert found == [True]


def test_a_thread_that_never_sleeps_does_not_keep_the_process(tmp_path: Path) -> None:
    put(tmp_path, 1, "pt_gloo_runloop", "R")
    assert not wait_until_settled(tmp_path, patience_s=0.05)


PROGRAM = """
import atexit, sys
from datetime import timedelta
import torch, torch.distributed as dist
from farstep.train import gloo_threads

atexit.register(lambda: print("states", *gloo_threads._states(gloo_threads.THREADS)))
gloo_threads.settle_at_exit()
gloo_threads.settle_at_exit()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
kept = [torch.ones(8) for _ in range(200)]
work = [dist.all_reduce(tensor, async_op=True) for tensor in kept]
for one in work:
    one.wait()
"""


def test_torch_names_its_threads_as_expected(tmp_path: Path) -> None:
    """The name is torch's own affair; when another version has another, this says so."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "meeting")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.split()
    assert words[0] == "states"
    assert len(words) > 1
    assert set(words[1:]) == {"S"}
