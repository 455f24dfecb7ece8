"""Whether a process has exited, as its own kernel sees it.

An identity names a process beyond any doubt: boot, process-id namespace, process id and start time. Whoever
is on the same host in the same namespace can ask the kernel; everybody else cannot tell, and says so.
"""

from __future__ import annotations

import functools
import os
import select
from pathlib import Path

__all__ = ["has_exited", "process_identity", "same_host"]


def process_identity(pid: int | None = None) -> str:
    """Returns `boot:namespace:pid:start` of a process, by default of this one; empty if the kernel hides it."""
    try:
        pid = os.getpid() if pid is None else pid
        return f"{_here()}:{pid}:{_start_ticks(pid)}"
    except (OSError, ValueError, IndexError):
        return ""


def has_exited(identity: str) -> bool | None:
    """Asks the kernel whether the process has exited with all its threads.

    Args:
        identity: as :func:`process_identity` gave it in that process.

    Returns:
        None if it cannot be told from here: another host, another namespace, or no answer.
    """
    here, _, rest = identity.rpartition(":")[0].rpartition(":")
    start = identity.rpartition(":")[2]
    try:
        if not here or here != _here():
            return None
        return not _runs(int(rest), start)
    except (OSError, ValueError, IndexError):
        return None


def _runs(pid: int, start: str) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        try:
            if _start_ticks(pid) != start:
                return False  # the number belongs to another process by now
        except FileNotFoundError:
            return False
        # Readable once the last thread is gone. The leader alone being a zombie would not be enough.
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return not poll.poll(0)
    finally:
        os.close(handle)


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _here() -> str:
    return f"{_boot()}:{os.stat('/proc/self/ns/pid').st_ino}"


def _start_ticks(pid: int) -> str:
    # The second field is the program's name in parentheses and may hold anything; the start time is the
    # twentieth after it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def same_host(one: str, other: str) -> bool:
    """Whether two processes can ask the same kernel about each other."""
    place = one.rpartition(":")[0].rpartition(":")[0]
    return bool(place) and place == other.rpartition(":")[0].rpartition(":")[0]
