"""Ends a process only when the threads of torch's gloo groups have put everything down.

A gloo thread says that a collective is done before it lets go of the tensors. For that it needs the interpreter, and
if the interpreter has begun to end by then, the thread cannot be ended in an orderly way: the process aborts with
"terminate called without an active exception", long after all work was done and the state was written
(pytorch/pytorch issues 179291 and 190489; seen with torch 2.13 and FSDP2). So the process waits at its end until
these threads are asleep. They are found by the name that torch gives them, whether or not their group was destroyed:
a model on FSDP2 holds its group as long as it lives.
"""

from __future__ import annotations

import atexit
import time
from pathlib import Path

__all__ = ["settle_at_exit", "wait_until_settled"]

THREADS = Path("/proc/self/task")
NAME = "pt_gloo_runloop"

LOOK_EVERY_S = 0.002
LOOKS = 2
"""A thread that is asleep so many times in a row has nothing in hand."""

PATIENCE_S = 2.0
"""A thread that is still busy then is in a collective that nobody waits for."""

_is_registered = False


def settle_at_exit() -> None:
    """Makes the end of this process wait for gloo's threads; it costs a few milliseconds if there are any."""
    global _is_registered
    if not _is_registered:
        _is_registered = True
        atexit.register(wait_until_settled)


def wait_until_settled(threads: Path = THREADS, patience_s: float = PATIENCE_S) -> bool:
    """Waits until all threads that carry out collectives of gloo are asleep; returns whether they are.

    Args:
        threads: folder of the kernel with one folder per thread of this process.
        patience_s: longest wait, in seconds.
    """
    deadline_s = time.monotonic() + patience_s
    in_a_row = 0
    while states := _states(threads):
        in_a_row = in_a_row + 1 if set(states) == {"S"} else 0
        if in_a_row > LOOKS:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(LOOK_EVERY_S)  # lets go of the interpreter, for which such a thread may be waiting
    return True


def _states(threads: Path) -> list[str]:
    """States of gloo's threads, as in proc_pid_stat(5); none where the system does not tell."""
    states = []
    for thread in threads.glob("*"):
        try:
            if (thread / "comm").read_text().strip() == NAME:
                states.append((thread / "stat").read_text().rpartition(") ")[2][:1])
        except OSError:  # it has just ended
            continue
    return states
