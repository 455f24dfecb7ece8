"""The ranks inside one replica group, which hold one copy of the model together and live and die together.

Rank 0 has the line to the coordinator. The others have a line to rank 0, on which they come to joint decisions and
through which they take part in membership. A line that ends without a farewell means that a rank is gone, and with it
the replica group: every rank then ends, and the other replica groups go on without them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from farstep.train.elastic.seams import InnerRankLost
from farstep.train.environment import Rendezvous

__all__ = ["AloneInside", "InnerRanks", "Line", "TogetherInside"]

logger = logging.getLogger("farstep.train")

MEET_TIMEOUT_S = 180.0
"""Longest wait for the other ranks while starting."""

GATHER_TIMEOUT_S = 1800.0
"""Longest wait for another rank's word. Ranks compute between two words, and a rank that dies is noticed by its line
ending, so this is only for one that hangs for ever."""

FRAME_BYTES_MAX = 4 << 20
_LENGTH = struct.Struct("<I")

GIVE_UP_S = 3.0
"""A rank whose group is lost and that still runs after this long ends itself: something inside does not return."""


class InnerRanks(Protocol):
    """Lets the ranks of a replica group come to one decision."""

    @property
    def rank(self) -> int:
        """Own rank within the group."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Returns the rows of all ranks, by rank; all ranks call it together.

        Raises:
            InnerRankLost: a rank of the group is gone, and so is the group.
        """

    def close(self) -> None:
        """Ends the exchange."""


class AloneInside:
    """A replica group of one rank."""

    rank = 0
    size = 1

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Returns the only row."""
        return [list(row)]

    def close(self) -> None:
        """Nothing to end."""


class Line:
    """A connection between rank 0 and another rank: JSON objects in both directions.

    Args:
        connection: the socket.
        peer: rank at the other end.
        on_lost: called once if it ends without a farewell.
    """

    def __init__(self, connection: socket.socket, peer: int, on_lost: Callable[[int], None]) -> None:
        self.peer = peer
        self._socket = connection
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._is_closing = False
        self.rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.handler: Callable[[Line, dict[str, Any]], None] | None = None
        self._early: list[dict[str, Any]] = []
        threading.Thread(target=self._read, name=f"farstep-inner-{peer}", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; if the other end is gone, its loss is told elsewhere."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(_LENGTH.pack(len(body)) + body)

    def listen(self, handler: Callable[[Line, dict[str, Any]], None]) -> None:
        """From now on messages other than rows go to a handler, in the line's thread."""
        with self._lock:
            early, self._early = self._early, []
            self.handler = handler
        for message in early:
            handler(self, message)

    def close(self) -> None:
        """Ends the line with a farewell."""
        self._is_closing = True
        self.send({"kind": "bye"})
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (message := self._next()) is not None:
                if message["kind"] == "bye":
                    self._is_closing = True
                elif message["kind"] == "rows":
                    self.rows.put(message["rows"])
                else:
                    with self._lock:
                        handler = self.handler
                        if handler is None:
                            self._early.append(message)
                    if handler is not None:
                        handler(self, message)
        self.rows.put(None)
        if not self._is_closing:
            self._on_lost(self.peer)

    def _next(self) -> dict[str, Any] | None:
        head = self._exactly(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > FRAME_BYTES_MAX:
            raise ValueError(f"a message of {length} bytes; {FRAME_BYTES_MAX} is the most")
        body = self._exactly(length)
        return None if body is None else json.loads(body)

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)


class TogetherInside:
    """The ranks of a replica group, joined by lines to rank 0.

    Args:
        rendezvous: where torch's store of this group is, or will be served by rank 0.
        rank: own rank.
        size: ranks in the group.

    Raises:
        InnerRankLost: not all ranks came.
    """

    def __init__(self, rendezvous: Rendezvous, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.lines: dict[int, Line] = {}
        """By rank: rank 0 has one to every other, the others have one to rank 0."""
        self.on_lost: Callable[[str], None] | None = None
        self._lost: str | None = None
        try:
            self._meet(rendezvous)
        except (OSError, RuntimeError) as error:
            raise InnerRankLost(f"the ranks of this replica group did not come together: {error}") from error

    def _meet(self, rendezvous: Rendezvous) -> None:
        timeout = timedelta(seconds=MEET_TIMEOUT_S)
        store: Any = TCPStore(
            rendezvous.host,
            rendezvous.port,
            is_master=self.rank == 0 and not rendezvous.is_agent_store,
            timeout=timeout,
            wait_for_workers=False,
            multi_tenant=True,  # torch.distributed may serve its own store on the same port
        )
        self._store = store
        store = PrefixStore(f"{rendezvous.prefix}/inner", store)
        if self.rank == 0:
            self._accept(store)
            return
        host, port, token = json.loads(store.get("address"))
        connection = socket.create_connection((host, port), timeout=MEET_TIMEOUT_S)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(struct.pack("<32sI", token.encode(), self.rank))
        self.lines[0] = Line(connection, 0, self._on_lost)

    def _accept(self, store: Any) -> None:
        token = secrets.token_hex(16)
        with socket.create_server(("", 0)) as listener:
            listener.settimeout(MEET_TIMEOUT_S)
            store.set("address", json.dumps([_host_toward(), listener.getsockname()[1], token]))
            while len(self.lines) < self.size - 1:
                connection, _ = listener.accept()
                connection.settimeout(10.0)
                try:
                    hello = connection.recv(36, socket.MSG_WAITALL)
                    given, rank = struct.unpack("<32sI", hello)
                except (OSError, struct.error):
                    connection.close()
                    continue
                is_known = secrets.compare_digest(given, token.encode())
                if not is_known or not 0 < rank < self.size or rank in self.lines:
                    connection.close()
                    continue
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.lines[rank] = Line(connection, rank, self._on_lost)

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Returns the rows of all ranks, by rank."""
        own = [float(value) for value in row]
        if self.rank:
            self.lines[0].send({"kind": "rows", "rows": own})
            rows: list[list[float]] = self._take(0)
            return rows
        rows = [own, *(self._take(rank) for rank in range(1, self.size))]
        for line in self.lines.values():
            line.send({"kind": "rows", "rows": rows})
        return rows

    def _take(self, rank: int) -> Any:
        try:
            rows = self.lines[rank].rows.get(timeout=GATHER_TIMEOUT_S)
        except queue.Empty:
            raise InnerRankLost(f"rank {rank} of this replica group does not answer") from None
        if rows is None:
            raise InnerRankLost(self._lost or f"rank {rank} of this replica group has ended")
        return rows

    def _on_lost(self, rank: int) -> None:
        if self._lost is not None:
            return
        self._lost = f"rank {rank} of this replica group is gone"
        logger.error("%s; this rank ends too", self._lost)
        if self.on_lost is not None:
            self.on_lost(self._lost)
        watchdog = threading.Timer(GIVE_UP_S, os._exit, args=(1,))
        watchdog.daemon = True
        watchdog.start()

    def close(self) -> None:
        """Says farewell to the other ranks."""
        for line in self.lines.values():
            line.close()


def _host_toward() -> str:
    """The address under which other ranks of the group, on this host or near it, reach this one."""
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # chooses a route; sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
