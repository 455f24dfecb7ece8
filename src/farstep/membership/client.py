"""A member's line to whichever coordinator is there.

One thread with one event loop carries all messages. It does little per message and holds no lock while it
waits, so that computing threads delay a heartbeat by a few switches of the interpreter at most. A coordinator
that dies is not an event for training: the thread looks for the next one and says hello again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Sequence

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from farstep.membership import messages as wire
from farstep.membership.addresses import AddressBook
from farstep.membership.desk import Desk
from farstep.membership.records import MemberInfo, Wants
from farstep.membership.tls import COORDINATOR_NAME, TlsFiles, trouble_of

__all__ = ["MembershipClient"]

OPEN_TIMEOUT_S = 2.0
"""One attempt to connect: four round trips of a very long path, and a server that is busy."""

STAGGER_S = 0.25
"""If an attempt has not succeeded after so long, the next address is tried alongside."""

ATTEMPTS_MAX = 4
"""Most attempts under way at once."""

CLOSE_TIMEOUT_S = 0.5
"""How long a farewell may take."""

REFUSED_WAIT_S, REFUSED_WAIT_MAX_S = 0.5, 10.0
"""After a refusal the next attempt waits so long, as what was refused may soon be accepted elsewhere, or later; and
longer from the fourth on, as it may never be."""

REFUSALS_QUICK = 3
"""Refusals that are followed by another attempt at once: the old line of a name that is back takes a second to go."""

LONELY_S = (0.2, 0.4)
"""With a coordinator that sees too few voters a member stays a random time between these before it tries
another address; short against the time a coordinator gives voters to come (`return_s`)."""

LONELY_FIRST_FACTOR = 4
"""Who has been around without success stays so much longer with the first address: there all meet."""

_log = logging.getLogger("farstep.membership")


class MembershipClient(Desk):
    """Membership over the network.

    Args:
        coordinators: where coordinators may be: `host:port`, `wss://host:port`, or `file:/path` with one
            address a line, read again at every attempt.
        info: who this is (:meth:`MemberInfo.create`).
        run: name of the run.
        tls: certificates; without them only `ws://` addresses can be used.
        wants: `seat`, `spare`, or `observer` for launchers and agents that only certify deaths.

    Raises:
        AddressError: an address is none.
    """

    def __init__(
        self,
        coordinators: Sequence[str] | str,
        info: MemberInfo,
        *,
        run: str = "run",
        tls: TlsFiles | None = None,
        wants: Wants = "seat",
    ) -> None:
        super().__init__(info, run, wants)
        self._book = AddressBook(coordinators, is_secure=tls is not None)
        self._context = tls.client_context() if tls is not None else None
        self._loop = asyncio.new_event_loop()
        self._wanted = asyncio.Event()
        self._socket: ClientConnection | None = None
        self._sending = asyncio.Lock()
        self._last_error, self._is_refusal = "", False
        self._num_refused = 0
        self._last_heard_ns = 0
        self._next_address = 0
        self._num_lonely = 0
        self._is_leaving = False
        self._draw = random.Random()
        _clients.add(self)
        self._thread = threading.Thread(target=self._run, name="farstep-membership", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Says farewell and ends the thread; what was said before still arrives if a coordinator is there."""
        if threading.current_thread() is not self._thread:
            self._await_end()
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._is_leaving = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2 * CLOSE_TIMEOUT_S + 1.0)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._wanted.set)

    def _line_state(self) -> str:
        if self._is_refusal:
            return f"the coordinator at {self._book} refuses it: {self._last_error}"
        cause = f": {self._last_error}" if self._last_error else ""
        return f"no coordinator answers at {self._book}{cause}"

    # ---- the thread ----

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.run_until_complete(asyncio.sleep(0.0))  # aborted transports close in the next turn
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            _clients.discard(self)

    async def _live(self) -> None:
        while not self._is_leaving:
            connection = await self._dial()
            if connection is None:
                continue
            code, refused = wire.CLOSE_MOVED, False
            try:
                refused = await self._talk(connection)
            except (ConnectionClosed, OSError) as error:
                self._note_error(self._describe(error))
            except Exception:
                # Whatever it is, a member that says nothing more would be given up: say hello again.
                _log.exception("%s: the line to the coordinator failed", self.member.name)
            finally:
                self._socket = None
                with self._changed:
                    self._core.disconnected()
                if self._is_closed or self._is_reborn:
                    code = wire.CLOSE_GONE
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(connection.close(code), CLOSE_TIMEOUT_S)
                connection.transport.abort()  # whatever the other side did not answer
            self._num_refused = self._num_refused + 1 if refused else 0
            if refused:
                self._next_address += 1
                more = max(0, self._num_refused - REFUSALS_QUICK)
                await self._pause(min(REFUSED_WAIT_S * 2**more, REFUSED_WAIT_MAX_S))

    async def _dial(self) -> ClientConnection | None:
        """Tries addresses in turn until one answers; returns None if this membership is being closed."""
        attempts: dict[asyncio.Task[ClientConnection], int] = {}
        try:
            while not self._is_leaving:
                urls = self._book.urls()
                if not urls:
                    self._note_error("the file names no address")
                elif len(attempts) < ATTEMPTS_MAX:
                    url = urls[self._next_address % len(urls)]
                    attempts[asyncio.create_task(self._open(url))] = self._next_address
                    self._next_address += 1
                if attempts:
                    await asyncio.wait(attempts, timeout=STAGGER_S, return_when=asyncio.FIRST_COMPLETED)
                done = [task for task in attempts if task.done()]
                for task in done:
                    if (error := task.exception()) is None:
                        self._next_address = attempts.pop(task)  # come back here first
                        return task.result()
                    del attempts[task]
                    self._note_error(self._describe(error))
                if done or not attempts:
                    await asyncio.sleep(self._core.heartbeat_s)
            return None
        finally:
            for task in attempts:
                task.cancel()
            for result in await asyncio.gather(*attempts, return_exceptions=True):
                if isinstance(result, ClientConnection):
                    result.transport.abort()

    async def _open(self, url: str) -> ClientConnection:
        secure = url.startswith("wss:")
        if secure and self._context is None:
            raise ConnectionError(f"{url} needs certificates")
        if not secure and self._context is not None:
            raise ConnectionError(f"{url} has no certificate while this member has one; valid: wss://")
        return await connect(
            url,
            ssl=self._context if secure else None,
            server_hostname=COORDINATOR_NAME if secure else None,
            compression=None,
            ping_interval=None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=wire.MESSAGE_BYTES_MAX,
        )

    async def _talk(self, connection: ClientConnection) -> bool:
        """Carries messages until the line ends; returns whether the coordinator refused this member."""
        self._socket = connection
        with self._changed:
            self._is_reborn = False
            hello = self._core.hello()
        await connection.send(wire.encode(hello))
        self._last_heard_ns = time.monotonic_ns()
        reader = asyncio.create_task(self._read(connection))
        try:
            await self._beat(connection, reader)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed, OSError):
                await reader
        error = reader.exception() if reader.done() and not reader.cancelled() else None
        if isinstance(error, ConnectionClosed):
            is_refusal = error.rcvd is not None and error.rcvd.code == wire.CLOSE_REFUSED
            self._note_error(self._describe(error), is_refusal=is_refusal)
            return is_refusal
        return False

    async def _read(self, connection: ClientConnection) -> None:
        async for text in connection:
            now_ns = time.monotonic_ns()
            self._last_heard_ns = now_ns
            try:
                message = wire.decode_from_coordinator(text)
            except wire.MessageError as error:
                _log.warning("%s: the coordinator said something else: %s", self.member.name, error)
                continue
            self._receive(message, now_ns)
            await self._flush(connection)

    async def _beat(self, connection: ClientConnection, reader: asyncio.Task[None]) -> None:
        """Sends heartbeats and whatever is to be said, until the line ends or is given up."""
        next_ns = last_ns = began_ns = time.monotonic_ns()
        lonely_until_ns = 0
        num_addresses = len(self._book.urls())
        while not reader.done() and not self._is_leaving and not self._is_reborn:
            now_ns = time.monotonic_ns()
            interval_ns = round(self._core.heartbeat_s * 1e9)
            if now_ns - last_ns > 3 * interval_ns:
                self._last_heard_ns += now_ns - last_ns  # this process was stopped, not the coordinator
            last_ns = now_ns
            if now_ns >= next_ns:
                next_ns = max(next_ns + interval_ns, now_ns + interval_ns // 2)
                if self._core.is_welcome:
                    with self._changed:
                        heartbeat = self._core.heartbeat(now_ns)
                    await connection.send(wire.encode(heartbeat))
            await self._flush(connection)
            if now_ns - self._last_heard_ns > self._core.silence_s * 1e9:
                self._note_error(f"the coordinator was silent for {self._core.silence_s:g} s")
                self._next_address += 1
                return
            if not self._core.is_lonely:
                lonely_until_ns = 0
                if self._core.is_welcome and now_ns - began_ns > 2 * interval_ns:
                    self._num_lonely = 0
            elif not lonely_until_ns:
                is_first = self._num_lonely > 1 and self._next_address % max(1, num_addresses) == 0
                stay_s = self._draw.uniform(*LONELY_S) * (LONELY_FIRST_FACTOR if is_first else 1)
                lonely_until_ns = now_ns + round(stay_s * 1e9)
            elif now_ns >= lonely_until_ns and num_addresses > 1:
                self._note_error("the coordinator saw too few voters")
                self._num_lonely += 1
                self._next_address += 1
                return
            await self._pause((next_ns - time.monotonic_ns()) / 1e9, reader)
        await self._flush(connection)

    def _note_error(self, text: str, *, is_refusal: bool = False) -> None:
        self._last_error, self._is_refusal = text, is_refusal

    def _describe(self, error: BaseException) -> str:
        return _describe(error, has_certificates=self._context is not None)

    async def _flush(self, connection: ClientConnection) -> None:
        async with self._sending:
            with self._changed:
                outbox, self._core.outbox = self._core.outbox, []
            for message in outbox:
                await connection.send(wire.encode(message))

    async def _pause(self, timeout_s: float, *also: asyncio.Task[None]) -> None:
        """Waits until there is something to do, at most so long."""
        wanted = asyncio.create_task(self._wanted.wait())
        try:
            await asyncio.wait(
                (wanted, *also), timeout=max(0.0, timeout_s), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            wanted.cancel()
            self._wanted.clear()

    def _drop_inherited(self) -> None:
        """Lets go of the socket in a forked child: it would outlive the member and hide its death."""
        connection = self._socket
        if connection is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, connection.transport.get_extra_info("socket").fileno())
            os.close(null)


_clients: weakref.WeakSet[MembershipClient] = weakref.WeakSet()


def _drop_all_inherited() -> None:
    for client in list(_clients):
        client._drop_inherited()


os.register_at_fork(after_in_child=_drop_all_inherited)


def _describe(error: BaseException, *, has_certificates: bool) -> str:
    match error:
        case ConnectionClosed(rcvd=rcvd) if rcvd is not None:
            return f"it closed the line ({rcvd.code} {rcvd.reason})".replace(" )", ")")
        case ConnectionClosed():
            return "the line broke"
        case TimeoutError():
            return f"no answer within {OPEN_TIMEOUT_S:g} s"
        case InvalidStatus(response=response) if response.status_code == 403:
            return "it does not take this certificate for a member's"
    trouble = trouble_of(error, has_certificates=has_certificates)
    if trouble is not None:
        more = ", named by FARSTEP_TLS or tls= of farstep.join()" if trouble.wants_folder else ""
        return f"{trouble.cause}: {trouble.remedy}{more}"
    if isinstance(error, InvalidHandshake | InvalidURI):
        return f"something else answers there: {error}"
    return str(error) or type(error).__name__
