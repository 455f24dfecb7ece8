"""Loads torch and farstep once and forks the processes of a chaos run: `python -m tests.train.chaos.zygote`.

Lines of JSON on standard input say what to start or to signal. Standard output carries what happens to the processes,
and what members say themselves: all of them write to the same pipe, in lines short enough to stay whole. Nothing here
opens a file, so that a process without space to write on can still tell what it does. When standard input ends,
every process is killed.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import traceback
from typing import Any

import torch

import farstep
from farstep.membership.client import MembershipClient
from tests.train.chaos import coordinator, member

LOADED = (farstep.join, farstep.Trainer, farstep.Checkpoint, MembershipClient)
"""What the processes need, loaded before the first of them is forked."""

MAIN = {"member": member.main, "solo": member.solo, "coordinator": coordinator.main}


class Zygote:
    """Forks processes and tells of their ends."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._inbox = b""

    def run(self) -> None:
        """Serves until standard input ends."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # loads half of torch
        gc.collect()
        gc.freeze()
        say(zygote=os.getpid())
        while True:
            ready, _, _ = select.select([0, reading], [], [])
            if reading in ready:
                os.read(reading, 4096)
                self._reap()
            if 0 in ready and not self._read():
                break
        for pid in self._names:
            os.kill(pid, signal.SIGKILL)
        while self._names:
            self._reap(is_last=True)

    def _read(self) -> bool:
        received = os.read(0, 1 << 16)
        self._inbox += received
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(received)

    def _obey(self, order: dict[str, Any]) -> None:
        match order["op"]:
            case "start":
                self._start(order)
            case "signal":
                if order["pid"] in self._names:  # not reaped yet, so the number is still that of the process
                    os.kill(order["pid"], order["number"])
            case "space":
                if order["pid"] in self._names:
                    _, hard = resource.prlimit(order["pid"], resource.RLIMIT_FSIZE)
                    soft = resource.RLIM_INFINITY if order["is_there"] else 0
                    resource.prlimit(order["pid"], resource.RLIMIT_FSIZE, (soft, hard))

    def _start(self, order: dict[str, Any]) -> None:
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            self._names[pid] = order["name"]
            say(started=order["name"], pid=pid)
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, 0)
            os.dup2(log, 2)
            if order["role"] == "coordinator":
                os.dup2(log, 1)
            os.environ.update(order["env"])
            gc.unfreeze()
            status = MAIN[order["role"]](order)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self, *, is_last: bool = False) -> None:
        while self._names:
            pid, status = os.waitpid(-1, 0 if is_last else os.WNOHANG)
            if not pid:
                return
            say(ended=self._names.pop(pid), pid=pid, status=os.waitstatus_to_exitcode(status))


def say(**values: Any) -> None:
    """Writes one line in one piece."""
    line = json.dumps(values).encode() + b"\n"
    assert len(line) <= select.PIPE_BUF, "longer lines could be mixed up with others"
    os.write(1, line)


if __name__ == "__main__":
    Zygote().run()
