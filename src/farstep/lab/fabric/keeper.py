"""The process a lab may need: it holds the namespaces of a lab without root, and carries packets over links with delay.

`python -m farstep.lab.fabric.keeper FOLDER` says in one JSON line that it is ready. Until it has been told to stay, by
a line on its standard input, it ends with whoever started it; from then on, on request or on SIGTERM.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farstep.fabric.channels import ChannelState
from farstep.lab.control import ControlServer, Handler, RequestError, Result
from farstep.lab.fabric.tunnels import TunnelEnd, Tunnels
from farstep.lab.poller import Poller
from farstep.lab.process import GC_THRESHOLD
from farstep.lab.timer import Timer, raise_priority, reduce_timer_slack

__all__ = ["CONTROL", "NAMESPACES", "Keeper", "main"]

CONTROL = "control"
"""Name of its control socket in the folder of the lab."""

NAMESPACES = "netns"
"""Folder of the files that stand for namespaces, in a lab without root."""


class Keeper:
    """Everything the process consists of.

    Args:
        folder: of the lab.

    Raises:
        OSError: the control socket cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self._is_stopping = False
        self._is_staying = False
        self._poller = Poller()
        self._timer = Timer()
        self._poller.add(self._timer.fd, self._timer.acknowledge, only_news=True)
        self._tunnels = Tunnels(self._poller)
        handlers = {
            "ping": lambda request: {"pid": os.getpid(), "cables": self._tunnels.numbers()},
            "cable": _guarded(self._cable),
            "link": _guarded(self._link),
            "carrier": _guarded(self._carrier),
        }
        self._control = ControlServer(str(folder / CONTROL), self._poller, handlers)
        self._poller.add(sys.stdin.fileno(), self._hear)
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._poller.add(reading, lambda: self._drain(reading))

    def run(self) -> None:
        """Carries packets until told to stop."""
        reduce_timer_slack()
        raise_priority()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        while not self._is_stopping:
            due_ns = self._tunnels.next_due_ns
            if due_ns is not None:
                now_ns = time.monotonic_ns()
                if due_ns <= now_ns:
                    self._tunnels.release(now_ns)
                    continue
            self._timer.arm(due_ns)
            self._poller.wait()
        self._tunnels.close()
        self._control.close()

    def _stop(self) -> None:
        self._is_stopping = True

    def _hear(self) -> None:
        """Takes what comes on standard input: the word to stay, or the end of whoever started us."""
        if os.read(sys.stdin.fileno(), 4096):
            self._is_staying = True
            return
        self._poller.remove(sys.stdin.fileno())
        if not self._is_staying:
            self._stop()

    @staticmethod
    def _drain(fd: int) -> None:
        os.read(fd, 4096)

    def _cable(self, request: Mapping[str, Any]) -> Result:
        ends = [TunnelEnd(**end) for end in request["ends"]]
        try:
            self._tunnels.add(request["number"], ends, [ChannelState(**state) for state in request["states"]])
        except OSError as error:
            raise RequestError(f"a TUN device cannot be made: {error.strerror or error}") from error
        return True

    def _link(self, request: Mapping[str, Any]) -> Result:
        self._tunnels.set_state(request["number"], ChannelState(**request["state"]))
        return True

    def _carrier(self, request: Mapping[str, Any]) -> Result:
        self._tunnels.set_carrier(request["cable"], request["is_on"])
        return True


def _guarded(handler: Handler) -> Handler:
    """Answers a request that lacks something, instead of dying of it."""

    def guarded(request: Mapping[str, Any]) -> Result:
        try:
            return handler(request)
        except (LookupError, TypeError) as error:
            raise RequestError(f"{type(error).__name__}: {error}") from error

    return guarded


def main() -> int:
    """Keeps a lab; returns the exit status."""
    folder = Path(sys.argv[1])
    try:
        if "--rootless" in sys.argv[2:]:
            place = folder / NAMESPACES
            place.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True, capture_output=True)
        keeper = Keeper(folder)
    except subprocess.CalledProcessError as error:
        _say({"ok": False, "error": error.stderr.decode().strip()})
        return 2
    except OSError as error:
        _say({"ok": False, "error": str(error)})
        return 2
    _say({"ok": True})
    keeper.run()
    return 0


def _say(message: dict[str, object]) -> None:
    os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
