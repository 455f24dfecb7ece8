"""Sends and receives between two ranks, paired by tag, without order relative to collectives.

Each pair of ranks that uses them has its own connection and a thread that listens on either side. A receive
tells the sender where the bytes belong; the send that matches writes them there. Nothing is buffered.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farstep.collectives.errors import CollectiveMismatch, CommunicatorAborted, CommunicatorTimeout
from farstep.collectives.mesh import Mesh
from farstep.collectives.operations import Handle
from farstep.collectives.reduction import ElementType
from farstep.collectives.transport import RemoteKey
from farstep.collectives.vector import Vector, allocate_pages
from farstep.engine import EngineError, WaitTimeout

INVITATION, DELIVERED = 0, 1
INVITATIONS_MAX = 256
"""Receives a peer can be told of at a time; further ones wait until earlier ones have ended."""
_INVITATION = struct.Struct("<QQQQ")
"""Key of the memory, its length in bytes, tag, type of the elements."""
LISTEN_INTERVAL_S = 0.25
"""How often an idle listener looks for timeouts, and so how late it may notice one."""


@dataclass(slots=True)
class _Pending:
    """A send or receive that has not ended."""

    handle: Handle
    vector: Vector
    tag: int
    deadline_s: float
    region: Any = None
    entry: int = -1


class _Channel:
    """Sends and receives with one peer."""

    def __init__(self, mesh: Mesh, peer: int, on_failure: Callable[[str], None]) -> None:
        self._mesh = mesh
        self._on_failure = on_failure
        self._peer = peer
        self._lock = threading.RLock()
        self._connection = mesh.connection_to(peer)
        size = INVITATIONS_MAX * _INVITATION.size
        self._inbox, self._outbox = allocate_pages(size), allocate_pages(size)
        self._inbox_region = mesh.endpoint.register(self._inbox, only_for=self._connection)
        self._outbox_region = mesh.endpoint.register(self._outbox)
        self._peer_inbox: RemoteKey | None = None
        self._free_entries = list(range(INVITATIONS_MAX - 1, -1, -1))
        self._receives: dict[int, _Pending] = {}
        self._uninvited: deque[_Pending] = deque()
        self._sends: dict[int, deque[_Pending]] = defaultdict(deque)
        self._invitations: dict[int, deque[tuple[int, RemoteKey, int]]] = defaultdict(deque)
        self._in_flight: set[int] = set()
        self._all: dict[int, _Pending] = {}
        self._failure: str | None = None
        self._is_closed = False
        rkey, length_bytes = self._inbox_region.remote
        greeting = struct.pack("<QQ", rkey, length_bytes) + self._connection.descriptor
        mesh.store.set(self._key(mesh.rank, peer), greeting)
        self._thread = threading.Thread(
            target=self._listen, name=f"farstep-{mesh.name}-peer{peer}", daemon=True
        )
        self._thread.start()

    def _key(self, source: int, target: int) -> str:
        return f"{self._mesh.name}/pair/{source}/{target}"

    # -- issuing --------------------------------------------------------------------------------------

    def issue(self, pending: _Pending, *, is_send: bool) -> None:
        try:
            with self._lock:
                if self._failure is not None:
                    raise CommunicatorAborted(f"{pending.handle.name}: {self._failure}")
                self._all[id(pending)] = pending
                if is_send:
                    self._sends[pending.tag].append(pending)
                else:
                    self._uninvited.append(pending)
                self._match()
        except CollectiveMismatch as error:
            self._on_failure(str(error))  # the peer waits for what will not come
            raise

    def _match(self) -> None:
        """Invites and sends whatever can be; called with the lock held."""
        if self._peer_inbox is None:
            return
        while self._uninvited and self._free_entries:
            self._invite(self._uninvited.popleft())
        for tag, sends in self._sends.items():
            invitations = self._invitations[tag]
            while sends and invitations:
                self._deliver(sends.popleft(), *invitations.popleft())

    def _invite(self, pending: _Pending) -> None:
        entry = pending.entry = self._free_entries.pop()
        pending.region = self._mesh.endpoint.register(pending.vector.raw, only_for=self._connection)
        self._receives[entry] = pending
        offset = entry * _INVITATION.size
        rkey, _ = pending.region.remote
        vector = pending.vector
        _INVITATION.pack_into(
            self._outbox.data, offset, rkey, vector.length_bytes, pending.tag, vector.element_type
        )
        self._connection.write(
            self._outbox_region,
            offset,
            _INVITATION.size,
            self._peer_inbox,
            offset,
            immediate=INVITATION << 30 | entry,
        )

    def _deliver(self, pending: _Pending, entry: int, remote: RemoteKey, element_type: int) -> None:
        length_bytes, own_type = pending.vector.length_bytes, pending.vector.element_type
        differs = ""
        if remote.length_bytes != length_bytes:
            differs = f"has {length_bytes} bytes, the receive there {remote.length_bytes}"
        elif element_type != own_type:
            theirs = ElementType(element_type).name.lower()
            differs = f"has elements of {own_type.name.lower()}, the receive there of {theirs}"
        if differs:
            error = CollectiveMismatch(f"{pending.handle.name} {differs}")
            self._end(pending, error)
            raise error
        pending.region = self._mesh.endpoint.register(pending.vector.raw)
        completion: Any = self._connection.write(
            pending.region, 0, length_bytes, remote, 0, immediate=DELIVERED << 30 | entry
        )
        completion.add_done_callback(lambda done: self._on_acknowledged(pending, done))

    def _on_acknowledged(self, pending: _Pending, completion: Any) -> None:
        try:
            completion.wait(0)
        except EngineError as error:
            self._end(pending, CommunicatorAborted(f"{pending.handle.name}: {error}"))
        else:
            self._end(pending, None)

    def _end(self, pending: _Pending, error: BaseException | None) -> None:
        with self._lock:
            self._all.pop(id(pending), None)
            region, pending.region = pending.region, None
        if region is not None:
            region.close()
        pending.handle.finish(error)

    # -- listening ------------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._connect()
            while not self._is_closed:
                try:
                    word = self._connection.wait_immediate(LISTEN_INTERVAL_S)
                except WaitTimeout:
                    self._expire()
                    continue
                self._on_immediate(word)
        except CollectiveMismatch as error:
            self.fail(str(error))
            self._on_failure(str(error))
        except EngineError as error:
            self.fail(str(error))

    def _connect(self) -> None:
        """Waits for the peer's first send or receive, as long as one of ours waits for it."""
        while True:
            try:
                greeting = self._mesh.store.get(self._key(self._peer, self._mesh.rank), LISTEN_INTERVAL_S)
                break
            except TimeoutError:
                self._expire()
                if self._is_closed or self._failure is not None:
                    raise CommunicatorAborted(self._failure or "the communicator is closed") from None
        rkey, length_bytes = struct.unpack_from("<QQ", greeting)
        self._connection.connect(greeting[16:])
        with self._lock:
            self._peer_inbox = RemoteKey(rkey, length_bytes)
            self._match()

    def _on_immediate(self, word: int) -> None:
        entry = word & 0xFFFF
        if word >> 30 == INVITATION:
            rkey, length_bytes, tag, element_type = _INVITATION.unpack_from(
                self._inbox.data, entry * _INVITATION.size
            )
            with self._lock:
                self._invitations[tag].append((entry, RemoteKey(rkey, length_bytes), element_type))
                self._match()
            return
        with self._lock:
            pending = self._receives.pop(entry)
            self._free_entries.append(entry)
            self._match()
        self._end(pending, None)

    def _expire(self) -> None:
        """Fails the channel if anything has waited too long."""
        now_s = time.monotonic()
        with self._lock:
            late = [pending for pending in self._all.values() if pending.deadline_s < now_s]
        if late:
            error = CommunicatorTimeout(f"{late[0].handle.name} timed out: the peer has not done its part")
            self.fail(str(error), error)

    # -- ending ---------------------------------------------------------------------------------------

    def fail(self, reason: str, error: BaseException | None = None) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = reason
            pending = list(self._all.values())
            self._sends.clear()
            self._uninvited.clear()
        self._connection.abort(reason)
        for item in pending:
            self._end(item, error or CommunicatorAborted(f"{item.handle.name}: {reason}"))
        # Where nothing waits, the end of a channel is no failure: a peer that has nothing more to do may close while we
        # are still in the last collective.
        if pending and not self._is_closed:
            self._on_failure(reason)

    def close(self) -> None:
        self._is_closed = True
        self.fail("the communicator is closed")
        if self._thread is not threading.current_thread():
            self._thread.join(2 * LISTEN_INTERVAL_S)
        self._connection.close()
        self._inbox_region.close()
        self._outbox_region.close()


class PointToPoint:
    """All channels of one rank, each made when it is first used.

    Args:
        mesh: where connections are made.
        on_failure: called with the reason when a channel has failed.
    """

    def __init__(self, mesh: Mesh, on_failure: Callable[[str], None]) -> None:
        self._mesh = mesh
        self._on_failure = on_failure
        self._channels: dict[int, _Channel] = {}
        self._lock = threading.Lock()

    def issue(self, vector: Vector, peer: int, tag: int, *, is_send: bool, timeout_s: float) -> Handle:
        """Starts a send or receive."""
        with self._lock:
            if peer not in self._channels:
                self._channels[peer] = _Channel(self._mesh, peer, self._on_failure)
            channel = self._channels[peer]
        what = f"send to rank {peer}" if is_send else f"receive from rank {peer}"
        handle = Handle(f"{what} with tag {tag} on {self._mesh.name!r}")
        channel.issue(_Pending(handle, vector, tag, time.monotonic() + timeout_s), is_send=is_send)
        return handle

    def abort(self, reason: str) -> None:
        """Fails everything outstanding at once."""
        with self._lock:
            channels = list(self._channels.values())
        for channel in channels:
            channel.fail(reason)

    def close(self) -> None:
        """Ends all channels."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.close()
