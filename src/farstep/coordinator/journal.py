"""The coordinator's event log: a file of JSON lines, the newest lines in memory, and those who follow them.

Lines have the four fixed keys of :mod:`farstep.observe.events`, so that the same tools read them; a line of a
member also names it. The file is written in the order of happening. A disk that is full or fails never stops the
coordinator: the log goes on in memory, and says what is missing once it can be written again.

Coordinators that share a file by mistake do not spoil it: every line is one write to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import math
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from farstep.membership.effects import Note

__all__ = ["Journal"]

KEPT_LINES = 10_000
"""Most lines kept in memory for those who ask; about 3 MB. Older ones are in the file."""

KEPT_CHARACTERS = 32 << 20
"""Most characters of all lines kept in memory; members may say a lot in one."""

FOLLOWERS_MAX = 256
"""Followers at a time: dashboards and terminals, not members."""

SIGN_OF_LIFE_S = 10.0
"""After so long without news a follower is told that there is none."""

MODE = 0o640
"""Rights of a new file: host names and reasons are nobody else's business."""


class Journal:
    """Writes down what happens, and tells it to whoever follows.

    Args:
        path: file of JSON lines, continued if it exists; None keeps them in memory alone.
        now_ns: monotonic clock.

    Attributes:
        num_unwritten: lines that the file lacks since it could be written last.
        is_shared: whether another process of this host writes the file too.

    Raises:
        OSError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path | None = None, *, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.path = path
        self.num_unwritten = 0
        self.is_shared = False
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._lines: deque[tuple[dict[str, Any], int]] = deque()
        self._num_characters = 0
        self._next = 1
        self._followers: set[asyncio.Event] = set()
        self._is_closed = False
        self._file: int | None = None
        self._is_line_open = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
            # An earlier coordinator may have been killed in the middle of a line.
            size = os.fstat(self._file).st_size
            self._is_line_open = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.is_shared = True
            except OSError:
                pass  # a file system without locks

    def note(self, note: Note) -> None:
        """Takes a note of the coordinator: its listener."""
        self.add(note.kind, note.fields, member=note.member, age_ns=note.age_ns)

    def add(
        self, kind: str, fields: Mapping[str, Any], *, member: str | None = None, age_ns: int = 0
    ) -> dict[str, Any]:
        """Adds a line; fields that are called like one of the fixed keys get an underscore."""
        at_ns = max(self._start_ns, self._now_ns() - age_ns)
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
            line[f"{key}_" if key in line else key] = _strict(value)
        text = json.dumps(line)
        self._next += 1
        self._keep(line, len(text))
        self._write(text)
        for follower in self._followers:
            follower.set()
        return line

    def sample(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Writes down figures of the moment: for the file alone, as whoever looks now asks for the status."""
        if self._file is not None:
            envelope = {**self._now(), "rank": None, "kind": kind}
            self._write(json.dumps({**envelope, **{key: _strict(value) for key, value in fields.items()}}))

    def _now(self) -> dict[str, Any]:
        return {"t_ns": self._now_ns() - self._start_ns, "wall": datetime.now(UTC).isoformat()}

    def since(
        self, last_id: int, *, limit: int = KEPT_LINES, kinds: frozenset[str] = frozenset()
    ) -> list[dict[str, Any]]:
        """Returns the lines after an id that are still in memory, oldest first; the newest `limit` of them."""
        found: list[dict[str, Any]] = []
        for line, _ in reversed(self._lines):
            if line["id"] <= last_id or len(found) >= limit:
                break
            if not kinds or line["kind"] in kinds:
                found.append(line)
        return found[::-1]

    @property
    def last_id(self) -> int:
        """Id of the newest line, 0 if there is none."""
        return self._next - 1

    async def follow(self, last_id: int) -> AsyncIterator[dict[str, Any] | None]:
        """Yields every line after an id as it comes, and None now and then while none comes.

        An id that no line has had yet is another coordinator's: then it begins with the oldest. Ends when the
        journal is closed.
        """
        if len(self._followers) >= FOLLOWERS_MAX:
            return
        if last_id > self.last_id:
            last_id = 0
        has_news = asyncio.Event()
        self._followers.add(has_news)
        try:
            while True:
                has_news.clear()
                for line in self.since(last_id):
                    last_id = line["id"]
                    yield line
                if self._is_closed:
                    return
                try:
                    await asyncio.wait_for(has_news.wait(), SIGN_OF_LIFE_S)
                except TimeoutError:
                    yield None
        finally:
            self._followers.discard(has_news)

    def dismiss(self) -> None:
        """Ends all followers."""
        self._is_closed = True
        for follower in self._followers:
            follower.set()

    def close(self) -> None:
        """Ends all followers and closes the file."""
        self.dismiss()
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _keep(self, line: dict[str, Any], num_characters: int) -> None:
        self._lines.append((line, num_characters))
        self._num_characters += num_characters
        while len(self._lines) > KEPT_LINES or (
            self._num_characters > KEPT_CHARACTERS and len(self._lines) > 1
        ):
            self._num_characters -= self._lines.popleft()[1]

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        if self.num_unwritten:
            gap = {**self._now(), "rank": None, "kind": "log_gap", "lines": self.num_unwritten}
            if not self._write_line(json.dumps(gap)):
                self.num_unwritten += 1
                return
            self.num_unwritten = 0
        if not self._write_line(text):
            self.num_unwritten += 1

    def _write_line(self, text: str) -> bool:
        """Appends a line, or tells that the disk did not take all of it."""
        assert self._file is not None
        start = "\n" if self._is_line_open else ""
        content = f"{start}{text}\n".encode()
        try:
            num_written = os.write(self._file, content)
        except OSError:
            return False
        if num_written:
            self._is_line_open = num_written < len(content)
        return num_written == len(content)


def _strict(value: Any) -> Any:
    """Makes strict JSON of a value: numbers that are not finite are strings, as in every event log."""
    match value:
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
        case str():
            return value.encode("utf-8", "replace").decode()
        case Mapping():
            return {str(_strict(str(key))): _strict(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_strict(item) for item in value]
        case _:
            return _strict(str(value))


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
