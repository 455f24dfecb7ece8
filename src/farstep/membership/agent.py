"""Keeps the command of one replica group running on this machine, and testifies when it has died.

Where a launcher does that already (torchrun, Slurm, Kubernetes) nothing of this is needed. What an agent adds: it
stays when its command dies, so that there is somebody on this host who can certify the death at once, and half of
a run that has lost the other half may go on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Protocol

from farstep.membership.records import new_member_id

__all__ = ["Agent", "Witness"]

FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Signals of the agent that are meant for its command."""

ENDING = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)
"""Those after which the command is not started again."""

RESTART_WAIT_S = (1.0, 30.0)
"""Wait before the first restart, doubled each time, and the longest."""

HEALTHY_S = 600.0
"""A command that has lived so long has its restarts back: one failure a day never ends a run."""

_log = logging.getLogger("farstep.membership.agent")


class Witness(Protocol):
    """Whom deaths are told: a :class:`~farstep.membership.interface.Membership`."""

    def certify_death(self, member_id: str) -> None:
        """Tells that this process has exited."""
        ...


class Agent:
    """Runs a command as a member of a run.

    Args:
        command: what to run.
        group: name of the replica group.
        environment: variables of the command; the member's identity is added.
        witness: whom its deaths are told.
        restarts: how often it is started again when it dies.
        say: told in one line what happens.
        wait_s: wait before the first restart, and the longest.
    """

    def __init__(
        self,
        command: Sequence[str],
        group: str,
        *,
        environment: Mapping[str, str],
        witness: Witness,
        restarts: int = 0,
        say: Callable[[str], None] = _log.warning,
        wait_s: tuple[float, float] = RESTART_WAIT_S,
    ) -> None:
        self._command = list(command)
        self._group = group
        self._environment = dict(environment)
        self._witness = witness
        self._restarts = restarts
        self._say = say
        self._wait_s = wait_s
        self._child: subprocess.Popen[bytes] | None = None
        self._ending: int | None = None

    def run(self) -> int:
        """Runs the command until it ends well, is told to end, or has died too often.

        Returns:
            Its exit status; 128 and the number of the signal that killed it.

        Raises:
            OSError: it cannot be started.
        """
        left, wait_s = self._restarts, self._wait_s[0]
        with self._forwarding():
            while True:
                began_s = time.monotonic()
                status = self._run_once()
                if status == 0 or self._ending is not None:
                    return status
                if time.monotonic() - began_s >= HEALTHY_S:
                    left, wait_s = self._restarts, self._wait_s[0]
                if left == 0:
                    return status
                left -= 1
                count = f"{self._restarts - left} of {self._restarts}"
                self._say(f"{self._group}: {_ending(status)}; starting it again in {wait_s:g} s ({count})")
                if not self._pause(wait_s):
                    return status
                wait_s = min(2 * wait_s, self._wait_s[1])

    def _run_once(self) -> int:
        member_id = new_member_id(self._group)
        variables = {**self._environment, "FARSTEP_MEMBER_ID": member_id}
        # A group of its own: a terminal's Ctrl-C comes once, and nothing the command has started outlives it.
        self._child = child = subprocess.Popen(self._command, env=variables, process_group=0)
        with _guard(child.pid):
            if self._ending is not None:
                child.send_signal(self._ending)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
        self._child = None
        status = child.wait()
        self._witness.certify_death(member_id)
        return status if status >= 0 else 128 - status

    def _pause(self, seconds: float) -> bool:
        """Waits before a restart; returns False if the agent is told to end meanwhile."""
        end_s = time.monotonic() + seconds
        while self._ending is None and (rest_s := end_s - time.monotonic()) > 0:
            time.sleep(min(rest_s, 0.1))
        return self._ending is None

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if number in ENDING:
            self._ending = number
        child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)

    @contextlib.contextmanager
    def _forwarding(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._pass_on) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _guard(group: int) -> Iterator[None]:
    """Has a shell wait beside a group of processes, which kills them all once this process is gone, however it went.

    A signal at the parent's death would reach the command alone, not what it has started.
    """
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r line; kill -s KILL -- -{group}"],
            stdin=subprocess.PIPE,  # ends with this process: nobody else holds the other end
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        _log.warning("if this process is killed its command goes on: /bin/sh cannot be started: %s", error)
        yield
        return
    try:
        yield
    finally:  # the group is not reaped yet, so that the number is still its own
        guard.kill()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()


def _ending(status: int) -> str:
    if status <= 128:
        return f"ended with status {status}"
    try:
        return f"killed by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"ended with status {status}"
