"""What the communicator asks of a transport: one-sided writes, immediates in order, and nothing more.

:class:`farstep.engine.Endpoint` is the product's transport; :mod:`farstep.testing.memory_engine` is one inside
a process, for tests. Both have the shape below.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable


class RemoteKey(NamedTuple):
    """Names a peer's memory; the shape of :class:`farstep.engine.RemoteRegion`."""

    rkey: int
    length_bytes: int


class Region(Protocol):
    """Registered memory."""

    @property
    def remote(self) -> Any:
        """What a peer needs to write here: a tuple of key and length in bytes."""

    def close(self) -> None:
        """Ends remote access; memory still being sent from stays alive until it is acknowledged."""


class Completion(Protocol):
    """The end of one write."""

    def wait(self, timeout_s: float | None = None) -> object:
        """Blocks until the peer has acknowledged all bytes."""

    def done(self) -> bool:
        """Whether the write has ended, well or not."""


class Connection(Protocol):
    """A reliable way to one peer."""

    @property
    def descriptor(self) -> bytes:
        """What the peer needs to connect."""

    def connect(self, peer_descriptor: bytes) -> None:
        """Starts the connection."""

    def write(
        self,
        region: Any,
        offset_bytes: int,
        length_bytes: int,
        remote_region: Any,
        remote_offset_bytes: int,
        *,
        immediate: int | None = None,
    ) -> Completion:
        """Writes local bytes into a peer's region; the immediate is raised after the bytes have arrived."""

    def wait_immediate(self, timeout_s: float | None = None) -> int:
        """Blocks until the next immediate from the peer."""

    def poll_immediate(self) -> int | None:
        """Returns the next immediate if there is one."""

    def abort(self, reason: str) -> None:
        """Fails everything outstanding at once."""

    def close(self) -> None:
        """Ends the connection."""


class Endpoint(Protocol):
    """Makes regions and connections."""

    def register(self, buffer: Any, *, only_for: Any = None) -> Any:
        """Registers memory for reading and, by peers that know its key, writing; by that of one connection alone."""

    def create_connection(self, *, peer_name: str = "") -> Any:
        """Makes a connection that is not yet connected."""


@runtime_checkable
class Store(Protocol):
    """Exchanges small values among the ranks while connections are made."""

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until a value is published; raises TimeoutError if that takes too long."""
