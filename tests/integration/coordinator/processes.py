"""Coordinators and members as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from farstep.membership import MemberInfo
from farstep.membership.client import MembershipClient

COORDINATOR = """
import json, sys
from farstep.coordinator import Coordinator, ServerSettings, create_app, serve_coordinator
from farstep.membership import MembershipConfig
import asyncio
settings = json.loads(sys.argv[1])
coordinator = Coordinator(MembershipConfig(**settings["config"]))
coordinator.listeners.append(
    lambda note: print(json.dumps({"kind": note.kind, "member": note.member, **note.fields}), flush=True)
)
asyncio.run(serve_coordinator(
    create_app(coordinator),
    ServerSettings(port=settings["port"]),
    on_listening=lambda url: print(json.dumps({"url": url}), flush=True),
))
"""

MEMBER = """
import json, sys, threading, time
from farstep.membership import MemberInfo
from farstep.membership.client import MembershipClient
settings = json.loads(sys.argv[1])
def say(**fields):
    print(json.dumps({"t": time.time(), **fields}), flush=True)
member = MembershipClient(settings["coordinators"], MemberInfo.create(settings["name"]), wants=settings["wants"])
member.on_generation(lambda g: say(number=g.number, seats=[s.name for s in g.seats], urgent=g.is_urgent))
member.report_progress(0)
if settings["wants"] == "spare":
    member.announce_ready(0)
def hog():
    while True:
        sum(range(2000))
for _ in range(settings["hogs"]):
    threading.Thread(target=hog, daemon=True).start()
if settings["forks"]:
    import os
    member.wait_generation(0)
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
for line in sys.stdin:
    pass
"""


class Process:
    """A child that says JSON lines."""

    def __init__(self, program: str, settings: dict[str, Any]) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: list[dict[str, Any]] = []
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            said = json.loads(line)
            self.said.append(said)
            self._lines.put(said)

    def wait_for(self, is_it: Callable[[dict[str, Any]], bool], timeout_s: float = 20.0) -> dict[str, Any]:
        """Returns the next thing said that is the one."""
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                said = self._lines.get(timeout=max(0.0, end_s - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not said within {timeout_s} s; last: {self.said[-5:]}") from None
            if is_it(said):
                return said

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def kill(self) -> None:
        """Ends the process, and all it has forked, if they still run."""
        with contextlib.suppress(ProcessLookupError):
            self.child.kill()
        self.child.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.kill()
        self._thread.join(timeout=5.0)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()


class Stage:
    """Starts coordinators and members, and ends all of them."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.clients: list[MembershipClient] = []

    def coordinator(self, port: int = 0, **config: Any) -> tuple[Process, str]:
        """Starts a coordinator; returns it and its address."""
        config.setdefault("settle_s", 0.1)
        process = Process(COORDINATOR, {"port": port, "config": config})
        self.processes.append(process)
        url = process.wait_for(lambda said: "url" in said)["url"]
        return process, url.removeprefix("ws://")

    def member(
        self, coordinators: Any, name: str, *, wants: str = "seat", hogs: int = 0, forks: bool = False
    ) -> Process:
        """Starts a member as a process of its own."""
        settings = {"coordinators": coordinators, "name": name, "wants": wants, "hogs": hogs, "forks": forks}
        process = Process(MEMBER, settings)
        self.processes.append(process)
        return process

    def client(self, coordinators: Any, name: str, **more: Any) -> MembershipClient:
        """Makes a member inside this process; kernels cannot tell it from others here."""
        info = MemberInfo.create(name).model_copy(update={"process": ""})
        client = MembershipClient(coordinators, info, **more)
        client.report_progress(0)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    made = Stage()
    try:
        yield made
    finally:
        made.close()


def wait_until(is_true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end_s, f"not true within {timeout_s} s"
        time.sleep(0.005)
