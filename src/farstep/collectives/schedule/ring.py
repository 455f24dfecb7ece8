"""Ring schedules: every rank sends to its right neighbour only, which uses every link equally.

Reduce-scatter and all-gather each move (n-1)/n of the vector per rank, the least any algorithm can
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
A block is summed once, along the ring, and then handed round: all ranks hold the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from farstep.collectives.schedule.model import (
    Action,
    Range,
    Schedule,
    Transfer,
    check_members,
    check_root,
    make_schedule,
    split_evenly,
)

Block = Sequence[Range]
"""What one ring member owns: one or several ranges that travel together."""


def _positions(members: Sequence[int], involving: int | None) -> Sequence[int]:
    """Positions whose outgoing transfers matter: all, or those of a rank and of its left neighbour."""
    size = len(members)
    if involving is None:
        return range(size)
    if involving not in members or size == 1:
        return ()
    here = list(members).index(involving)
    return sorted({here, (here - 1) % size})


def ring_reduce_scatter_steps(
    members: Sequence[int],
    blocks: Sequence[Block],
    *,
    first_step: int = 0,
    completes: bool = True,
    involving: int | None = None,
) -> Iterator[Transfer]:
    """Yields the transfers after which the member at position p holds the reduction of ``blocks[p]``.

    Block p starts at position p+1 and is reduced in ring order up to position p. ``completes`` says whether
    the members are all ranks there are.
    """
    size = len(members)
    for step in range(size - 1):
        for position in _positions(members, involving):
            for part in blocks[(position - 1 - step) % size]:
                yield Transfer(
                    first_step + step,
                    members[position],
                    members[(position + 1) % size],
                    part.offset,
                    part.offset,
                    part.length,
                    Action.REDUCE_LEFT,
                    completes and step == size - 2,
                )


def ring_all_gather_steps(
    members: Sequence[int], blocks: Sequence[Block], *, first_step: int = 0, involving: int | None = None
) -> Iterator[Transfer]:
    """Yields the transfers after which every member holds all blocks; position p brings ``blocks[p]``."""
    size = len(members)
    for step in range(size - 1):
        for position in _positions(members, involving):
            for part in blocks[(position - step) % size]:
                yield Transfer(
                    first_step + step,
                    members[position],
                    members[(position + 1) % size],
                    part.offset,
                    part.offset,
                    part.length,
                )


def _ring(size: int, members: Sequence[int] | None) -> Sequence[int]:
    ring = range(size) if members is None else members
    check_members(ring, size)
    if len(ring) != size:
        raise ValueError(f"the ring names {len(ring)} members; it must name all {size} ranks")
    return ring


def ring_all_reduce(
    size: int, length: int, *, members: Sequence[int] | None = None, involving: int | None = None
) -> Schedule:
    """All-reduces a vector of ``length`` elements in 2(n-1) steps.

    Args:
        size: number of ranks.
        length: number of elements.
        members: ranks in ring order; by default 0..size-1.
        involving: makes only the transfers this rank takes part in.
    """
    ring = _ring(size, members)
    blocks = [(part,) for part in split_evenly(length, size)]
    transfers = [
        *ring_reduce_scatter_steps(ring, blocks, involving=involving),
        *ring_all_gather_steps(ring, blocks, first_step=size - 1, involving=involving),
    ]
    return make_schedule("ring all-reduce", size, transfers)


def ring_reduce_scatter(
    blocks: Sequence[Range], *, members: Sequence[int] | None = None, involving: int | None = None
) -> Schedule:
    """Reduces a vector made of one block per rank; rank r ends with the reduction of ``blocks[r]``."""
    ring = _ring(len(blocks), members)
    owned = [(blocks[rank],) for rank in ring]
    transfers = ring_reduce_scatter_steps(ring, owned, involving=involving)
    return make_schedule("ring reduce-scatter", len(blocks), transfers)


def ring_all_gather(
    blocks: Sequence[Range], *, members: Sequence[int] | None = None, involving: int | None = None
) -> Schedule:
    """Hands every rank all blocks; rank r brings ``blocks[r]`` of the work vector."""
    ring = _ring(len(blocks), members)
    owned = [(blocks[rank],) for rank in ring]
    return make_schedule(
        "ring all-gather", len(blocks), ring_all_gather_steps(ring, owned, involving=involving)
    )


def ring_reduce(
    size: int, length: int, root: int, *, members: Sequence[int] | None = None, involving: int | None = None
) -> Schedule:
    """Reduces a vector to ``root``: a ring reduce-scatter, then every rank sends its block to the root."""
    check_root(root, size)
    ring = _ring(size, members)
    ranges = split_evenly(length, size)
    blocks = [(part,) for part in ranges]
    transfers = list(ring_reduce_scatter_steps(ring, blocks, involving=involving))
    for position, rank in enumerate(ring):
        if rank != root and (involving is None or involving in (rank, root)):
            part = ranges[position]
            transfers.append(Transfer(size - 1, rank, root, part.offset, part.offset, part.length))
    return make_schedule("ring reduce", size, transfers)


def chain_broadcast(
    size: int, length: int, root: int, *, members: Sequence[int] | None = None, involving: int | None = None
) -> Schedule:
    """Broadcasts along the ring from ``root``; cut into chunks, no rank sends the vector more than once."""
    check_root(root, size)
    ring = list(_ring(size, members))
    first = ring.index(root)
    chain = ring[first:] + ring[:first]
    transfers = [
        Transfer(step, source, target, 0, 0, length)
        for step, (source, target) in enumerate(itertools.pairwise(chain))
        if involving is None or involving in (source, target)
    ]
    return make_schedule("chain broadcast", size, transfers)
