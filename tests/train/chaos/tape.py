"""What the processes of a chaos run have said, as it comes in."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import IO, Any

__all__ = ["Line", "Tape"]

Line = dict[str, Any]


class Tape:
    """Keeps all lines, and the newest facts of every process.

    Attributes:
        lines: everything that members said, in the order of arrival.
        pids: process ids by name of those that run.
        ends: exit statuses by process id.
    """

    def __init__(self, source: IO[bytes]) -> None:
        self.lines: list[Line] = []
        self.pids: dict[str, int] = {}
        self.ends: dict[int, int] = {}
        self.member_ids: dict[str, str] = {}
        self.ports: dict[str, list[Line]] = {}
        self.last_commit: dict[str, Line] = {}
        self.newest: Line | None = None
        self.writer = ""
        self.garbage: list[bytes] = []
        self.is_ready = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._thread.start()

    def wait(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        """Waits until something holds that the processes bring about."""
        with self._news:
            return bool(self._news.wait_for(condition, timeout_s))

    def commits(self) -> list[Line]:
        """All commits so far, of all members."""
        return [line for line in list(self.lines) if line["kind"] == "commit"]

    def calm(self, name: str) -> list[float]:
        """Losses of an undisturbed run."""
        lines = [line for line in list(self.lines) if line["kind"] == "calm" and line["name"] == name]
        return [float.fromhex(loss) for line in lines for loss in line["losses"]]

    def join(self) -> None:
        """Waits until the last process has closed its end."""
        self._thread.join(10.0)

    def _read(self, source: IO[bytes]) -> None:
        for raw in source:
            try:
                line: Line = json.loads(raw)
            except ValueError:
                self.garbage.append(raw)
                continue
            with self._news:
                self._take(line)
                self._news.notify_all()

    def _take(self, line: Line) -> None:
        if "zygote" in line:
            self.is_ready.set()
        elif "started" in line:
            self.pids[line["started"]] = line["pid"]
        elif "ended" in line:
            self.ends[line["pid"]] = line["status"]
            if self.pids.get(line["ended"]) == line["pid"]:
                del self.pids[line["ended"]]
        else:
            self._take_member(line)

    def _take_member(self, line: Line) -> None:
        line["at"] = time.monotonic()
        self.lines.append(line)
        name = line["name"]
        match line["kind"]:
            case "member":
                self.member_ids[name] = line["member_id"]
            case "port":
                self.ports.setdefault(name, []).append(line)
            case "try":
                if line["seat"] == 0:
                    self.writer = name
            case "commit":
                self.last_commit[name] = line
                if self.newest is None or line["step"] > self.newest["step"]:
                    self.newest = line
