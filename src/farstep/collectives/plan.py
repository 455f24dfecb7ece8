"""A schedule made ready to run on one rank: chunked, sorted by link, with the order of accesses to each chunk.

Rules a runner keeps, the same as :func:`farstep.collectives.schedule.execute_interleaved` models:

* What is sent and received over one link happens in the order of the plan; both ends derive the same order.
* The accesses to one chunk of memory happen in the order of their turns.
* Nothing else is ordered, so that chunks overlap freely.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field

from farstep.collectives.schedule import Action, Schedule, Transfer


class Placement(enum.Enum):
    """How bytes reach the peer."""

    EAGER = "eager"
    """Copied through the peer's slots: no rendezvous, and the caller's memory is free at once."""
    DIRECT = "direct"
    """Sent from their place; copies land in the peer's memory, reductions in its slots."""


@dataclass(slots=True, eq=False)
class Access:
    """One chunk sent or received.

    Attributes:
        is_send: whether the chunk leaves.
        peer: the other end.
        chunk: number of the chunk of memory; accesses to one chunk are ordered by ``turn``.
        turn: position among the accesses to the chunk.
        offset_bytes: where the chunk lies in its space.
        length_bytes: its length.
        action: what the receiver does with it.
        is_fresh: the chunk has not been received to before; it is read from the source space.
        is_placed: it lands in the receiver's memory, not in a slot.
        entry: for a placed chunk, number of the transfer among the link's placed transfers.
        entry_offset_bytes: where the chunk lies in that transfer.
        completes: the chunk is then reduced over all ranks.
    """

    is_send: bool
    peer: int
    chunk: int
    turn: int
    offset_bytes: int
    length_bytes: int
    action: Action
    is_fresh: bool
    is_placed: bool
    entry: int
    entry_offset_bytes: int
    completes: bool


@dataclass(slots=True)
class LinkPlan:
    """What goes over the link to one peer.

    Attributes:
        sends: chunks to send, in order.
        receives: chunks to receive, in order.
        placed_offsets_bytes: where in the work space each transfer begins that the peer places here.
        num_placed_sends: number of transfers placed in the peer's memory.
    """

    sends: list[Access] = field(default_factory=list)
    receives: list[Access] = field(default_factory=list)
    placed_offsets_bytes: list[int] = field(default_factory=list)
    num_placed_sends: int = 0


@dataclass(slots=True)
class Plan:
    """A schedule as one rank runs it.

    Attributes:
        name: name of the schedule.
        placement: how bytes reach the peers.
        links: what goes over each link, by peer.
        next_access: per chunk of memory, its accesses in the order of their turns.
        separate_input: sends read the source space and never the work space.
    """

    name: str
    placement: Placement
    links: dict[int, LinkPlan]
    next_access: list[list[Access]]
    separate_input: bool

    @property
    def is_eager(self) -> bool:
        """Whether bytes are copied through slots."""
        return self.placement is Placement.EAGER


def compile_plan(
    schedule: Schedule, rank: int, *, itemsize_bytes: int, chunk_bytes: int, placement: Placement
) -> Plan:
    """Cuts the transfers of one rank into chunks and orders them.

    Args:
        schedule: a schedule that holds at least the transfers of ``rank``.
        rank: the rank that will run the plan.
        itemsize_bytes: bytes per element.
        chunk_bytes: longest chunk; both ends must use the same.
        placement: how bytes reach the peers.

    Raises:
        ValueError: the schedule overwrites memory that is still being sent, so it needs eager placement.
    """
    if placement is Placement.DIRECT and not schedule.is_zero_copy:
        raise ValueError(f"the schedule {schedule.name!r} overwrites what it sends; it needs eager placement")
    chunk_elements = max(chunk_bytes // itemsize_bytes, 1)
    links: dict[int, LinkPlan] = {}
    chunks: dict[tuple[bool, int], list[Access]] = defaultdict(list)
    is_direct = placement is Placement.DIRECT
    mine = [t for t in schedule.transfers if rank in (t.source, t.target)]
    for transfer in sorted(mine, key=lambda t: (t.step, t.target == rank)):
        is_send = transfer.source == rank
        link = links.setdefault(transfer.target if is_send else transfer.source, LinkPlan())
        is_placed = is_direct and transfer.action is Action.COPY
        entry = _add_entry(link, transfer, is_send, itemsize_bytes) if is_placed else 0
        for start in range(0, transfer.length, chunk_elements):
            access = _make_access(
                transfer, is_send, start, min(chunk_elements, transfer.length - start), itemsize_bytes
            )
            access.is_placed, access.entry = is_placed, entry
            (link.sends if is_send else link.receives).append(access)
            chunks[is_send and schedule.separate_input, access.offset_bytes].append(access)
    for number, accesses in enumerate(chunks.values()):
        is_fresh = True
        for turn, access in enumerate(accesses):
            access.chunk, access.turn, access.is_fresh = number, turn, is_fresh
            is_fresh = is_fresh and access.is_send
    return Plan(schedule.name, placement, links, list(chunks.values()), schedule.separate_input)


def _add_entry(link: LinkPlan, transfer: Transfer, is_send: bool, itemsize_bytes: int) -> int:
    """Numbers a transfer placed in the receiver's memory; both ends count alike."""
    if is_send:
        link.num_placed_sends += 1
        return link.num_placed_sends - 1
    link.placed_offsets_bytes.append(transfer.target_offset * itemsize_bytes)
    return len(link.placed_offsets_bytes) - 1


def _make_access(transfer: Transfer, is_send: bool, start: int, count: int, itemsize_bytes: int) -> Access:
    offset = (transfer.source_offset if is_send else transfer.target_offset) + start
    return Access(
        is_send=is_send,
        peer=transfer.target if is_send else transfer.source,
        chunk=0,
        turn=0,
        offset_bytes=offset * itemsize_bytes,
        length_bytes=count * itemsize_bytes,
        action=transfer.action,
        is_fresh=True,
        is_placed=False,
        entry=0,
        entry_offset_bytes=start * itemsize_bytes,
        completes=transfer.completes,
    )
