"""The coordinator's event log: a file of JSON lines, the newest lines in memory, and those who follow them.

Lines have the four fixed keys of :mod:`farstep.observe.events`, so that the same tools read them; a line of a
member also names it. The file is written in the order of happening. A disk that is full or fails never stops the
coordinator: the log goes on in memory, and says what is missing once it can be written again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from farstep.membership.effects import Note

__all__ = ["Journal"]

KEPT_LINES = 10_000
"""Lines kept in memory for those who ask; about 3 MB. Older ones are in the file."""

FOLLOWERS_MAX = 256
"""Followers at a time: dashboards and terminals, not members."""

QUIET_KINDS = frozenset({"progress"})
"""Kinds that come many times a second; they go to followers and not into the file."""


class Journal:
    """Writes down what happens, and tells it to whoever follows.

    Args:
        path: file of JSON lines, continued if it exists; None keeps them in memory alone.
        now_ns: monotonic clock.
    """

    def __init__(self, path: Path | None = None, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = path
        self.num_unwritten = 0
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._lines: deque[dict[str, Any]] = deque(maxlen=KEPT_LINES)
        self._next = 1
        self._followers: set[asyncio.Event] = set()
        self._file: IO[str] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
            if path.stat().st_size and not _ends_with_newline(path):
                self._file.write("\n")  # an earlier coordinator was killed in the middle of a line

    def note(self, note: Note) -> None:
        """Takes a note of the coordinator: its listener."""
        self.add(note.kind, note.fields, member=note.member, age_ns=note.age_ns)

    def add(
        self, kind: str, fields: dict[str, Any], *, member: str | None = None, age_ns: int = 0
    ) -> dict[str, Any]:
        """Adds a line; fields that are called like one of the fixed keys get an underscore."""
        at_ns = self._now_ns() - age_ns
        wall = datetime.now(UTC).timestamp() - age_ns / 1e9
        line: dict[str, Any] = {
            "id": self._next,
            "t_ns": at_ns - self._start_ns,
            "wall": datetime.fromtimestamp(wall, UTC).isoformat(),
            "rank": None,
            "kind": kind,
        }
        if member is not None:
            line["member"] = member
        for key, value in fields.items():
            line[f"{key}_" if key in line else key] = value
        self._next += 1
        self._lines.append(line)
        if kind not in QUIET_KINDS:
            self._write(line)
        for follower in self._followers:
            follower.set()
        return line

    def since(
        self, last_id: int, *, limit: int = KEPT_LINES, kinds: frozenset[str] = frozenset()
    ) -> list[dict[str, Any]]:
        """Returns the lines after an id that are still in memory, oldest first; the newest `limit` of them."""
        wanted = [
            line for line in self._lines if line["id"] > last_id and (not kinds or line["kind"] in kinds)
        ]
        return wanted[-limit:]

    @property
    def last_id(self) -> int:
        """Id of the newest line, 0 if there is none."""
        return self._next - 1

    async def follow(self, last_id: int) -> AsyncIterator[dict[str, Any] | None]:
        """Yields every line after an id as it comes, and None about every ten seconds of silence."""
        if len(self._followers) >= FOLLOWERS_MAX:
            return
        has_news = asyncio.Event()
        self._followers.add(has_news)
        try:
            while True:
                has_news.clear()
                for line in self.since(last_id):
                    last_id = line["id"]
                    yield line
                try:
                    await asyncio.wait_for(has_news.wait(), 10.0)
                except TimeoutError:
                    yield None
        finally:
            self._followers.discard(has_news)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            if self.num_unwritten:
                missing = {**line, "kind": "log_gap", "lines": self.num_unwritten}
                self._file.write(json.dumps(missing, default=str) + "\n")
                self.num_unwritten = 0
            self._file.write(json.dumps(line, default=str) + "\n")
        except OSError:
            self.num_unwritten += 1


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
