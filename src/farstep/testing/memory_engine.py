"""A transport inside one process, with the shape of :class:`farstep.engine.Endpoint`.

For tests of anything that communicates: no sockets, no packets, and if asked delays drawn from a seed. Writes
on one connection arrive in order, each at once, delivered by a thread of the :class:`MemoryFabric`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from farstep.engine import ConnectionAborted, ConnectionFailed, EndpointClosed, WaitTimeout


class MemoryRemoteRegion(NamedTuple):
    """Names memory to a peer."""

    rkey: int
    length_bytes: int


class MemoryFabric:
    """Joins the endpoints of a process.

    Args:
        seed: draws a delay for each write when given; without, writes arrive as fast as a thread can copy.
        delay_max_s: longest delay.
    """

    def __init__(self, *, seed: int | None = None, delay_max_s: float = 0.002) -> None:
        self._random = random.Random(seed) if seed is not None else None
        self._delay_max_s = delay_max_s
        self._numbers = itertools.count(1)
        self.changed = threading.Condition()
        self.regions: dict[int, np.ndarray[Any, Any]] = {}
        self.connections: dict[int, MemoryConnection] = {}
        self._queue: list[tuple[float, int, MemoryConnection, Callable[[], None]]] = []
        self._ended: deque[tuple[MemoryCompletion, BaseException | None]] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._deliver, name="memory-fabric", daemon=True)
        self._thread.start()

    def number(self) -> int:
        """A number not given out before."""
        return next(self._numbers)

    def endpoint(self, name: str = "", *, site: str = "") -> MemoryEndpoint:
        """Makes an endpoint."""
        return MemoryEndpoint(self, name, site)

    def schedule(self, connection: MemoryConnection, action: Callable[[], None]) -> None:
        """Runs an action later, after every earlier one of the connection."""
        due_s = time.monotonic()
        if self._random is not None:
            due_s += self._random.uniform(0, self._delay_max_s)
        with self.changed:
            due_s = max(due_s, connection.last_due_s)
            connection.last_due_s = due_s
            heapq.heappush(self._queue, (due_s, self.number(), connection, action))
            self.changed.notify_all()

    def end(self, completion: MemoryCompletion, error: BaseException | None) -> None:
        """Notes the end of a write; callbacks run later, in :meth:`call_back`, because they may lock."""
        self._ended.append((completion, error))

    def call_back(self) -> None:
        """Ends the writes noted; called without the lock."""
        while True:
            try:
                completion, error = self._ended.popleft()
            except IndexError:
                return
            completion.finish(error)

    def _deliver(self) -> None:
        while self._deliver_one():
            self.call_back()

    def _deliver_one(self) -> bool:
        """Waits for a write to be due and delivers it; False once closed."""
        with self.changed:
            while not self._is_closed:
                wait_s = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    heapq.heappop(self._queue)[3]()
                    self.changed.notify_all()
                    return True
                self.changed.wait(wait_s)
        return False

    def close(self) -> None:
        """Stops delivering."""
        with self.changed:
            self._is_closed = True
            self.changed.notify_all()
        self._thread.join(timeout=5)

    def __enter__(self) -> MemoryFabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MemoryRegion:
    """Registered memory of a :class:`MemoryEndpoint`."""

    def __init__(self, fabric: MemoryFabric, buffer: Any) -> None:
        self._fabric = fabric
        array = buffer if isinstance(buffer, np.ndarray) else np.frombuffer(buffer, dtype=np.uint8)
        self.bytes = array.reshape(-1).view(np.uint8)
        self.length_bytes = self.bytes.nbytes
        self.remote = MemoryRemoteRegion(fabric.number(), self.length_bytes)
        fabric.regions[self.remote.rkey] = self.bytes

    def close(self) -> None:
        """Ends remote access."""
        self._fabric.regions.pop(self.remote.rkey, None)


class MemoryCompletion:
    """The end of one write."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the bytes are in the peer's memory."""
        try:
            self._future.result(timeout_s)
        except TimeoutError as error:
            if self._future.done():
                raise
            raise WaitTimeout(f"write not acknowledged within {timeout_s} s") from error

    def done(self) -> bool:
        """Whether the write has ended."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls back once the write has ended."""
        self._future.add_done_callback(lambda _: callback(self))

    def future(self) -> Future[None]:
        """The same as a standard future."""
        return self._future

    def finish(self, error: BaseException | None) -> None:
        """Ends the write; later calls change nothing."""
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


class MemoryConnection:
    """A connection between two endpoints of one fabric."""

    def __init__(self, fabric: MemoryFabric, local_name: str, peer_name: str) -> None:
        self._fabric = fabric
        self._local_name = local_name
        self.peer_name = peer_name
        self._number = fabric.number()
        self._peer: MemoryConnection | None = None
        self._immediates: deque[int] = deque()
        self._unfinished: set[MemoryCompletion] = set()
        self._failure: BaseException | None = None
        self.last_due_s = 0.0
        fabric.connections[self._number] = self

    @property
    def descriptor(self) -> bytes:
        """Names this connection to the peer."""
        return self._number.to_bytes(8, "little")

    def connect(self, peer_descriptor: bytes) -> None:
        """Joins this connection to the peer's."""
        self._peer = self._fabric.connections[int.from_bytes(peer_descriptor, "little")]

    def write(
        self,
        region: MemoryRegion,
        offset_bytes: int,
        length_bytes: int,
        remote_region: tuple[int, int],
        remote_offset_bytes: int,
        *,
        immediate: int | None = None,
    ) -> MemoryCompletion:
        """Copies bytes to the peer when the write is due, then raises the immediate there."""
        self._raise_failure()
        if self._peer is None:
            raise ConnectionFailed(f"{self._local_name} is not connected to {self.peer_name}")
        completion = MemoryCompletion()
        self._unfinished.add(completion)
        rkey = remote_region[0]

        def deliver() -> None:
            peer = self._peer
            assert peer is not None, "checked when the write was posted"
            if self._failure is not None or peer._failure is not None:
                return
            target = self._fabric.regions.get(rkey)
            stop = remote_offset_bytes + length_bytes
            if length_bytes and (target is None or stop > target.nbytes):
                self._fail(ConnectionFailed(f"{self.peer_name} refused bytes up to {stop} of region {rkey}"))
                return
            if target is not None:
                target[remote_offset_bytes:stop] = region.bytes[offset_bytes : offset_bytes + length_bytes]
            if immediate is not None:
                peer._immediates.append(immediate)
            self._unfinished.discard(completion)
            self._fabric.end(completion, None)

        self._fabric.schedule(self, deliver)
        return completion

    def wait_immediate(self, timeout_s: float | None = None) -> int:
        """Blocks until the next immediate."""
        with self._fabric.changed:
            if not self._fabric.changed.wait_for(lambda: self._immediates or self._failure, timeout_s):
                raise WaitTimeout(f"no immediate from {self.peer_name} within {timeout_s} s")
            if self._immediates:
                return self._immediates.popleft()
            self._raise_failure()
        raise AssertionError("woken by an immediate or a failure")

    def poll_immediate(self) -> int | None:
        """Returns the next immediate if there is one."""
        with self._fabric.changed:
            if self._immediates:
                return self._immediates.popleft()
            self._raise_failure()
            return None

    def abort(self, reason: str) -> None:
        """Fails both ends at once."""
        with self._fabric.changed:
            self._fail(ConnectionAborted(f"connection to {self.peer_name} aborted: {reason}"))
            if self._peer is not None:
                self._peer._fail(ConnectionAborted(f"{self._local_name} aborted the connection: {reason}"))
            self._fabric.changed.notify_all()
        self._fabric.call_back()

    def close(self) -> None:
        """Ends the connection."""
        with self._fabric.changed:
            self._fail(EndpointClosed(f"connection to {self.peer_name} is closed"))
            self._fabric.changed.notify_all()
        self._fabric.call_back()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            for completion in list(self._unfinished):
                self._fabric.end(completion, error)
            self._unfinished.clear()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class MemoryEndpoint:
    """One member of a :class:`MemoryFabric`."""

    def __init__(self, fabric: MemoryFabric, name: str, site: str) -> None:
        self._fabric = fabric
        self.name = name
        self.site = site
        self._connections: list[MemoryConnection] = []

    def register(self, buffer: Any, *, only_for: Any = None) -> MemoryRegion:
        """Registers memory. Members of a fabric trust each other: `only_for` is there for the shape alone."""
        return MemoryRegion(self._fabric, buffer)

    def create_connection(self, *, peer_name: str = "") -> MemoryConnection:
        """Makes a connection that is not yet connected."""
        connection = MemoryConnection(self._fabric, self.name, peer_name)
        self._connections.append(connection)
        return connection

    def abort(self, reason: str) -> None:
        """Aborts all connections."""
        for connection in self._connections:
            connection.abort(reason)

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections:
            connection.close()


class MemoryStore:
    """A key-value store for the ranks of one process; blocks readers until a value is there."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until a value is published.

        Raises:
            TimeoutError: none was published in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(f"no value for {key!r} within {timeout_s} s")
            return self._values[key]
