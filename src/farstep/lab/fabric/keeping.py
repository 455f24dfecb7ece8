"""Starting, finding and ending the keeper of a lab, and the processes users have left in it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import farstep
from farstep.lab.emulator import CONTROL_PATH_BYTES_MAX, START_TIMEOUT_S
from farstep.lab.fabric.errors import LabError
from farstep.lab.fabric.keeper import CONTROL
from farstep.lab.fabric.places import FOLDER_VARIABLE, process_start

__all__ = ["KeeperStart", "end_processes", "namespace_of", "processes_in"]

END_S_MAX = 2.0
"""Time processes get to end by themselves."""

_POLL_S = 0.01


class KeeperStart:
    """A keeper that has been started, and ends with us until it is told to stay.

    Args:
        folder: of the lab.
        is_rootless: whether it makes user, mount and network namespaces of its own.

    Raises:
        LabError: it does not come up.
    """

    def __init__(self, folder: Path, *, is_rootless: bool) -> None:
        if len(os.fsencode(folder)) + len(CONTROL) + 1 > CONTROL_PATH_BYTES_MAX:
            raise LabError(
                f"{folder} is too long a name for a socket; set {FOLDER_VARIABLE} to a shorter one"
            )
        own = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--"] if is_rootless else []
        source = str(Path(farstep.__file__).parent.parent)
        searched = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with (folder / "keeper.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*own, sys.executable, "-P", "-m", "farstep.lab.fabric.keeper", str(folder)]
                + (["--rootless"] if is_rootless else []),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us, and the lab outlives the terminal
                cwd="/",
                env={**os.environ, "PYTHONPATH": searched},
            )
        try:
            answer = self._first_words()
        except BaseException:
            self.abandon()
            raise
        if not answer.get("ok"):
            self.abandon()
            said = answer.get("error") or (folder / "keeper.log").read_text(errors="replace").strip()
            reason = said.splitlines()[-1] if said else f"exit status {self._process.returncode}"
            raise LabError(_refusal(reason) if is_rootless else f"the keeper did not come up: {reason}")
        self.pid = self._process.pid
        self.start = process_start(self.pid) or 0

    def _first_words(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else b""
        answer: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        return answer

    def stay(self) -> None:
        """Lets it outlive us."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"stay\n")
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.returncode = 0  # no longer ours to wait for

    def abandon(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _refusal(reason: str) -> str:
    return (
        f"no lab without root here: {reason}. The kernel must let users make user namespaces (sysctl"
        " user.max_user_namespaces and kernel.unprivileged_userns_clone or"
        " kernel.apparmor_restrict_unprivileged_userns); or run farstep lab up as root"
    )


def namespace_of(path: str, kind: str = "") -> int | None:
    """Returns what tells a namespace from others; None if there is none.

    Args:
        path: a file that stands for it, or the folder of a process in `/proc`.
        kind: of a process' namespaces, `net` or `user`.
    """
    try:
        return os.stat(f"{path}/ns/{kind}" if kind else path).st_ino
    except OSError:
        return None


def processes_in(namespaces: Iterable[int | None], kind: str) -> list[int]:
    """Returns the processes in namespaces of a kind (`net` or `user`), without this one and those above it."""
    wanted = {namespace for namespace in namespaces if namespace is not None}
    ours = _ancestors()
    return [
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdecimal() and int(entry.name) not in ours and namespace_of(entry.path, kind) in wanted
    ]


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:
            break
        pid = int(text.rpartition(")")[2].split()[1])
    return found


def end_processes(pids: Iterable[int]) -> None:
    """Asks processes to end, waits, and kills those that do not."""
    started = {pid: process_start(pid) for pid in pids}
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [pid for pid, start in started.items() if start is not None and process_start(pid) == start]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        deadline = time.monotonic() + END_S_MAX
        while time.monotonic() < deadline and any(process_start(pid) == started[pid] for pid in left):
            time.sleep(_POLL_S)
