"""One peer as the communicator sees it: slots to write into, credits, and the immediates that carry them.

Each side owns an *inbox* the other writes into: two control entries and a number of slots. A sender may use
a slot while it holds the slot's credit; the receiver gives it back once it has consumed the slot. Freed slots
are used again first, so that on a fast link only few of them are ever touched and stay in the cache, while on
a long link all of them are in flight.

An immediate has 32 bits. Bits 30-31 are the kind:

* DATA: slot in bits 24-29, returned slot in 18-23, operation in 10-17, check word in 0-9.
* PLACED: bytes have landed in this rank's memory; otherwise the same.
* READY: a control entry lists where this rank may place; operation in 16-23, number of entries in 0-15.
* CREDIT: number of slots in bits 27-29, up to four slots in 0-23, six bits each.

A slot is given back with the next data that goes the other way, or by a CREDIT where none does.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farstep import _native
from farstep.collectives.errors import CollectiveMismatch
from farstep.collectives.transport import Completion, Connection, Endpoint, RemoteKey
from farstep.collectives.vector import allocate_pages

DATA, PLACED, READY, CREDIT = 0, 1, 2, 3
PLACED_SLOT = -1
"""Stands for the slot of bytes that were placed in this rank's memory."""

NUM_SLOTS_MAX = 63
"""A slot number has six bits in an immediate, of which one value says that no slot is returned."""
NO_SLOT = 63
CHECK_BITS = 10
TAG_MASK = (1 << 18) - 1
CREDITS_PER_IMMEDIATE = 4
NUM_CONTROL_ENTRIES = 2
"""An entry is used again two operations later; one that a peer reads keeps its writer from getting there."""
CONTROL_ENTRY_BYTES = 16384
_ENTRY = struct.Struct("<QQQ")
PLACED_TRANSFERS_MAX = CONTROL_ENTRY_BYTES // _ENTRY.size
"""Longest list of memory a peer may be told at once: 682 transfers, a ring of as many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Sizes of a link; all ranks of a communicator must use the same.

    Attributes:
        slot_bytes: size of a slot and longest chunk, a multiple of 4096. 1 MiB: of 256 KiB to 2 MiB it costs
            the least processor time per byte, since fewer chunks mean fewer credits and wake-ups.
        num_slots: number of slots, at most 63. 60 slots of 1 MiB cover 60 MiB in flight: 10 Gbit/s at a round
            trip of 50 ms. Untouched slots cost address space only.
    """

    slot_bytes: int = 1024 * 1024
    num_slots: int = 60

    def __post_init__(self) -> None:
        if self.slot_bytes < 4096 or self.slot_bytes % 4096:
            raise ValueError(f"slot_bytes is {self.slot_bytes}; it must be a positive multiple of 4096")
        if not 16 <= self.num_slots <= NUM_SLOTS_MAX:
            raise ValueError(f"num_slots is {self.num_slots}; it must lie in 16..{NUM_SLOTS_MAX}")

    @property
    def inbox_bytes(self) -> int:
        """Size of an inbox."""
        return NUM_CONTROL_ENTRIES * CONTROL_ENTRY_BYTES + self.num_slots * self.slot_bytes


class Link:
    """A connection to one peer with an inbox at either end.

    Attributes:
        peer: rank of the peer.
        connection: the transport's connection.
        arrivals: slots that hold unconsumed bytes and the tag each came with, in order.
        free_slots: slots of the peer's inbox this side may write to; the last one is used first.
        ready: what the peer has said about its memory, per operation.
        compiled: takes the place of the four above when collectives run in a compiled event loop.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peer: int,
        connection: Connection,
        settings: LinkSettings,
        *,
        is_compiled: bool = False,
    ) -> None:
        self._is_compiled = is_compiled
        self.compiled: _native.CollectiveLink | None = None
        self.peer = peer
        self.settings = settings
        self.connection = connection
        self._inbox = allocate_pages(settings.inbox_bytes)
        self._outbox = allocate_pages(settings.inbox_bytes)
        self._inbox_region = endpoint.register(self._inbox, only_for=connection)
        self._outbox_region = endpoint.register(self._outbox)
        self._slots_offset = NUM_CONTROL_ENTRIES * CONTROL_ENTRY_BYTES
        self._inbox_address: int = self._inbox.__array_interface__["data"][0]
        self._outbox_address: int = self._outbox.__array_interface__["data"][0]
        self._peer_inbox: Any = None
        self.arrivals: deque[tuple[int, int]] = deque()
        self.free_slots = list(range(settings.num_slots - 1, -1, -1))
        self.ready: dict[int, list[tuple[RemoteKey, int]]] = {}
        self._last: Completion | None = None
        self._owed: list[int] = []

    # -- establishing ---------------------------------------------------------------------------------

    @property
    def greeting(self) -> bytes:
        """What the peer needs to know."""
        rkey, length_bytes = self._inbox_region.remote
        header = struct.pack("<QQQQ", rkey, length_bytes, self.settings.slot_bytes, self.settings.num_slots)
        return header + self.connection.descriptor

    def connect(self, greeting: bytes) -> None:
        """Connects to the peer.

        Raises:
            CollectiveMismatch: the peer uses other sizes.
        """
        rkey, length_bytes, slot_bytes, num_slots = struct.unpack_from("<QQQQ", greeting)
        if (slot_bytes, num_slots) != (self.settings.slot_bytes, self.settings.num_slots):
            raise CollectiveMismatch(
                f"rank {self.peer} uses {num_slots} slots of {slot_bytes} bytes, this rank "
                f"{self.settings.num_slots} of {self.settings.slot_bytes}; they must be the same"
            )
        self._peer_inbox = RemoteKey(rkey, length_bytes)
        self.connection.connect(greeting[32:])
        if self._is_compiled:
            connection: Any = self.connection
            self.compiled = _native.CollectiveLink(
                connection._index,
                self._inbox_address,
                self._outbox_address,
                self._outbox_region.remote[0],
                rkey,
                slot_bytes,
                num_slots,
            )

    # -- sending --------------------------------------------------------------------------------------

    def send_copy(self, address: int, length_bytes: int, tag: int) -> None:
        """Copies bytes to the outbox and writes them to a free slot; the memory may change at once."""
        slot = self.free_slots.pop()
        offset = self._slots_offset + slot * self.settings.slot_bytes
        _native.copy_bytes(self._outbox_address + offset, address, length_bytes)
        self._last = self.connection.write(
            self._outbox_region,
            offset,
            length_bytes,
            self._peer_inbox,
            offset,
            immediate=slot << 24 | self._returned() | tag,
        )

    def send_to_slot(self, region: Any, offset_bytes: int, length_bytes: int, tag: int) -> Completion:
        """Writes bytes from their place to a free slot; they must not change before the completion."""
        slot = self.free_slots.pop()
        target = self._slots_offset + slot * self.settings.slot_bytes
        word = slot << 24 | self._returned() | tag
        return self.connection.write(
            region, offset_bytes, length_bytes, self._peer_inbox, target, immediate=word
        )

    def send_to_place(
        self,
        region: Any,
        offset_bytes: int,
        length_bytes: int,
        place: tuple[RemoteKey, int],
        at: int,
        tag: int,
    ) -> Completion:
        """Writes bytes from their place to where the peer said they belong."""
        remote, base = place
        word = PLACED << 30 | self._returned() | tag
        return self.connection.write(region, offset_bytes, length_bytes, remote, base + at, immediate=word)

    def _returned(self) -> int:
        """A slot to give back with the data about to be sent, in its place in the immediate."""
        return (self._owed.pop() if self._owed else NO_SLOT) << 18

    def send_ready(self, places: Sequence[tuple[Any, int]], operation: int) -> None:
        """Tells the peer where it may place the transfers of an operation, in their order."""
        offset = (operation % NUM_CONTROL_ENTRIES) * CONTROL_ENTRY_BYTES
        view = self._outbox.data
        for index, (region, base) in enumerate(places):
            rkey, length_bytes = region.remote
            _ENTRY.pack_into(view, offset + index * _ENTRY.size, rkey, length_bytes, base)
        length_bytes = len(places) * _ENTRY.size
        immediate = READY << 30 | (operation & 0xFF) << 16 | len(places)
        self._last = self.connection.write(
            self._outbox_region, offset, length_bytes, self._peer_inbox, offset, immediate=immediate
        )

    def release(self, slot: int, batch: int) -> None:
        """Gives a consumed slot back, together with others once ``batch`` of them have come together."""
        self._owed.append(slot)
        if len(self._owed) >= batch:
            self.flush_credits()

    def flush_credits(self) -> None:
        """Gives back all consumed slots."""
        owed = self._owed
        while owed:
            count = min(len(owed), CREDITS_PER_IMMEDIATE)
            word = CREDIT << 30 | count << 27
            for position in range(count):
                word |= owed.pop() << (6 * position)
            self._last = self.connection.write(self._outbox_region, 0, 0, self._peer_inbox, 0, immediate=word)

    # -- receiving ------------------------------------------------------------------------------------

    def slot_address(self, slot: int) -> int:
        """Where the bytes of an arrived slot are."""
        return self._inbox_address + self._slots_offset + slot * self.settings.slot_bytes

    def on_immediate(self, word: int) -> None:
        """Takes in one immediate."""
        kind = word >> 30
        if kind in (DATA, PLACED):
            returned = (word >> 18) & 63
            if returned != NO_SLOT:
                self.free_slots.append(returned)
            slot = (word >> 24) & 63 if kind == DATA else PLACED_SLOT
            self.arrivals.append((slot, word & TAG_MASK))
        elif kind == READY:
            self._read_ready((word >> 16) & 0xFF, word & 0xFFFF)
        else:
            for position in range((word >> 27) & 7):
                self.free_slots.append((word >> (6 * position)) & 63)

    def _read_ready(self, operation: int, count: int) -> None:
        if count > PLACED_TRANSFERS_MAX:
            raise CollectiveMismatch(
                f"rank {self.peer} lists {count} places; {PLACED_TRANSFERS_MAX} is the most"
            )
        offset = (operation % NUM_CONTROL_ENTRIES) * CONTROL_ENTRY_BYTES
        view = self._inbox.data
        places = []
        for index in range(count):
            rkey, length_bytes, base = _ENTRY.unpack_from(view, offset + index * _ENTRY.size)
            places.append((RemoteKey(rkey, length_bytes), base))
        self.ready[operation] = places

    # -- ending ---------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> None:
        """Waits until the peer holds everything sent; writes complete in order, so the last one tells."""
        if self.compiled is not None:
            if self.compiled.last_posted >= 0:
                connection: Any = self.connection
                connection._wait_completion(self.compiled.last_posted, timeout_s)
        elif self._last is not None:
            self._last.wait(timeout_s)

    def close(self) -> None:
        """Closes the connection and ends remote access to the inbox."""
        self.connection.close()
        self._inbox_region.close()
        self._outbox_region.close()
