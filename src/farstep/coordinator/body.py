"""The coordinator's body: lines to members, a clock, and ears for whoever wants to know what happens.

The mind (:class:`farstep.membership.proposer.Proposer`) is pure. Here its effects are carried out, all on one
event loop. A member that does not read is dropped and never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect

from farstep.coordinator.certificates import covers
from farstep.membership import messages as wire
from farstep.membership.effects import AskKernel, Hangup, Note, Send
from farstep.membership.process import has_exited
from farstep.membership.proposer import Proposer
from farstep.membership.records import MembershipConfig, Record
from farstep.membership.roster import Absence

__all__ = ["Coordinator"]

LINES_MAX = 4096
"""Most connections of members; four times the largest run, for those that come back."""

OUTBOX_MESSAGES_MAX = 4096
OUTBOX_CHARACTERS_MAX = 32 << 20
"""What a member may leave unread before it is dropped; it learns everything again when it comes back."""

HELLO_TIMEOUT_S = 5.0
"""A connection that has not said who it is after so long is closed."""

_log = logging.getLogger("farstep.coordinator")


class _Line:
    """The way to one member: a queue and the task that empties it."""

    def __init__(self, socket: WebSocket, certified: str | None) -> None:
        self.socket = socket
        self.certified = certified
        self.outbox: deque[str] = deque()
        self.num_characters = 0
        self.has_mail = asyncio.Event()
        self.farewell: tuple[int, str] | None = None
        self.is_dropped = False
        self.reader: asyncio.Task[None] | None = None
        self.absence = Absence.LOST

    def put(self, text: str) -> bool:
        """Queues a message; returns False if the member has left too much unread."""
        if self.farewell is not None:
            return True
        self.outbox.append(text)
        self.num_characters += len(text)
        self.has_mail.set()
        return len(self.outbox) <= OUTBOX_MESSAGES_MAX and self.num_characters <= OUTBOX_CHARACTERS_MAX

    def hang_up(self, code: int, reason: str) -> None:
        """Closes the line after what is queued."""
        if self.farewell is None:
            self.farewell = (code, reason)
            self.has_mail.set()

    async def write(self) -> None:
        """Sends what is queued until the line ends."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            while True:
                while self.outbox:
                    text = self.outbox.popleft()
                    self.num_characters -= len(text)
                    await self.socket.send_text(text)
                if self.farewell is not None:
                    await self.socket.close(*self.farewell)
                    return
                self.has_mail.clear()
                await self.has_mail.wait()


class Coordinator:
    """One coordinator on one event loop.

    Args:
        config: how generations are formed and changed.

    Attributes:
        proposer: its mind; commands (`drain`, `evict`, `override`, `configure`) go through :meth:`command`.
        listeners: called with every :class:`~farstep.membership.effects.Note`, in order, on the loop.
        num_lines: connections of members that are open now.
        num_garbled: messages refused because they were none.
    """

    def __init__(self, config: MembershipConfig) -> None:
        self.proposer = Proposer(config, time.monotonic_ns())
        self.listeners: list[Callable[[Note], None]] = []
        self.num_garbled = 0
        self._lines: dict[int, _Line] = {}
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._encoded: tuple[Record | None, str] = (None, "")

    @property
    def num_lines(self) -> int:
        """Connections of members that are open now."""
        return len(self._lines)

    def start(self) -> None:
        """Starts the clock, on the running event loop."""
        self._tell(
            Note("coordinator_start", {"coordinator": self.proposer.name, "run": self.proposer.config.run})
        )
        self._tick()

    def stop(self) -> None:
        """Stops the clock; members look for another coordinator."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def command(self, name: str, *arguments: Any) -> Any:
        """Carries out an operator's command: the name of a method of the proposer and its arguments.

        Raises:
            CommandError: it cannot be carried out.
        """
        result = getattr(self.proposer, name)(*arguments, time.monotonic_ns())
        self._carry_out()
        return result

    async def serve(self, socket: WebSocket, certified: str | None = None) -> None:
        """Talks to one member until its line ends.

        Args:
            socket: the line.
            certified: name in the member's certificate; None where there are none.
        """
        if len(self._lines) >= LINES_MAX:
            await socket.close(1013, "too many connections")
            return
        await socket.accept()
        link = next(self._numbers)
        line = self._lines[link] = _Line(socket, certified)
        writer = asyncio.create_task(line.write())
        line.reader = asyncio.current_task()
        absence = Absence.LOST
        try:
            absence = await self._listen(link, line)
        except asyncio.CancelledError:
            if not line.is_dropped:
                raise
        finally:
            del self._lines[link]
            writer.cancel()
            self.proposer.on_closed(link, absence, time.monotonic_ns())
            self._carry_out()

    async def _listen(self, link: int, line: _Line) -> Absence:
        text = await self._next_text(line, HELLO_TIMEOUT_S)
        while text is not None:
            try:
                message = wire.decode_from_member(text)
            except wire.MessageError as error:
                self.num_garbled += 1
                self._tell(Note("garbled", {"reason": str(error), "peer": _peer(line.socket)}))
                with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
                    await line.socket.close(1008, str(error)[:100])
                return Absence.LOST
            if isinstance(message, wire.Hello) and (refusal := _refusal(line.certified, message)) is not None:
                await self._refuse(line, message.info.name, refusal)
                return Absence.LOST
            self.proposer.on_message(link, message, time.monotonic_ns())
            self._carry_out()
            text = await self._next_text(line, None)
        return line.absence

    async def _refuse(self, line: _Line, name: str, reason: str) -> None:
        self._tell(Note("refused", {"reason": reason}, name))
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            await line.socket.send_text(wire.encode(wire.Refused(reason=reason, is_final=True)))
            await line.socket.close(wire.CLOSE_REFUSED, reason[:100])

    async def _next_text(self, line: _Line, timeout_s: float | None) -> str | None:
        """Returns what the member says next; None once the line has ended, `line.absence` says how."""
        try:
            async with asyncio.timeout(timeout_s):
                event = await line.socket.receive()
        except TimeoutError:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
                await line.socket.close(1008, f"no hello within {HELLO_TIMEOUT_S:g} s")
            return None
        if event["type"] == "websocket.receive":
            text = event.get("text")
            return text if text is not None else (event.get("bytes") or b"").decode("utf-8", "replace")
        match event.get("code"):
            case wire.CLOSE_GONE:
                line.absence = Absence.LEFT
            case wire.CLOSE_MOVED | wire.CLOSE_SLOW | wire.CLOSE_REFUSED | 1012:  # 1012: this server stops
                line.absence = Absence.MOVED
            case _:
                line.absence = Absence.LOST
        return None

    def _tick(self) -> None:
        self.proposer.on_tick(time.monotonic_ns())
        self._carry_out()

    def _carry_out(self) -> None:
        """Does what the mind wants, until it wants nothing more."""
        while effects := self.proposer.take_effects():
            for effect in effects:
                match effect:
                    case Send(link, message):
                        self._send(link, message)
                    case Hangup(link, code, reason):
                        if link in self._lines:
                            self._lines[link].hang_up(code, reason)
                    case Note():
                        self._tell(effect)
                    case AskKernel(info):
                        exited = has_exited(info.process) if info.process else None
                        self.proposer.on_process_state(info.member_id, exited, time.monotonic_ns())
        self._set_timer()

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        when_s = loop.time() + self.proposer.wait_ns() / 1e9
        if self._timer is not None:
            if loop.time() < self._timer.when() <= when_s and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_at(when_s, self._tick)

    def _send(self, link: int, message: Record) -> None:
        line = self._lines.get(link)
        if line is None:
            return
        if self._encoded[0] is not message:  # the same generation goes to everybody
            self._encoded = (message, wire.encode(message))
        if not line.put(self._encoded[1]) and not line.is_dropped:
            line.is_dropped = True
            self._tell(Note("member_too_slow", {"peer": _peer(line.socket)}))
            if line.reader is not None:
                line.reader.cancel()

    def _tell(self, note: Note) -> None:
        for listener in self.listeners:
            try:
                listener(note)
            except Exception:
                _log.exception("a listener of the coordinator failed on %s", note.kind)


def _refusal(certified: str | None, hello: wire.Hello) -> str | None:
    """Says why a member may not take part under its name; None if it may."""
    name = hello.info.name
    if certified is None or covers(certified, name, is_observer=hello.wants == "observer"):
        return None
    return (
        f"the certificate of {certified} is not for {name}; "
        f"`farstep certificates DIR --name {name}` makes one that is, `--name 'PREFIX*'` one for several names"
    )


def _peer(socket: WebSocket) -> str:
    return f"{socket.client.host}:{socket.client.port}" if socket.client else "unknown"
