"""Schedules in which every block goes straight from its owner to whoever needs it.

All-to-all, gather, scatter, and the all-gather for small blocks. Input and work vector have different
layouts in all but the last, hence ``separate_input``.
"""

from __future__ import annotations

from collections.abc import Sequence

from farstep.collectives.schedule.model import (
    Range,
    Schedule,
    Transfer,
    check_root,
    consecutive,
    make_schedule,
)


def all_to_all(lengths: Sequence[Sequence[int]], *, involving: int | None = None) -> Schedule:
    """Sends block ``lengths[r][q]`` of every rank r to every rank q, in pairs: at step s rank r sends to r+s.

    A rank's own block is not part of the schedule: the runner copies it.

    Args:
        lengths: ``lengths[r][q]`` is the number of elements rank r sends to rank q. Blocks lie one after the
            other in the input, ordered by target, and in the work vector, ordered by source.
        involving: makes only the transfers this rank takes part in.

    Raises:
        ValueError: a row does not hold one length per rank.
    """
    size = len(lengths)
    for rank, row in enumerate(lengths):
        if len(row) != size:
            raise ValueError(f"lengths[{rank}] holds {len(row)} lengths; one per rank, {size}, is needed")
    outgoing = [consecutive(row) for row in lengths]
    incoming = [consecutive(lengths[source][target] for source in range(size)) for target in range(size)]
    transfers = [
        Transfer(
            step - 1,
            source,
            target,
            outgoing[source][target].offset,
            incoming[target][source].offset,
            lengths[source][target],
        )
        for step in range(1, size)
        for source, target in _pairs(size, step, involving)
    ]
    return make_schedule("all-to-all", size, transfers, separate_input=True)


def _pairs(size: int, step: int, involving: int | None) -> list[tuple[int, int]]:
    if involving is None:
        return [(source, (source + step) % size) for source in range(size)]
    return [(involving, (involving + step) % size), ((involving - step) % size, involving)]


def pairwise_all_to_all(send_lengths: Sequence[int], receive_lengths: Sequence[int], rank: int) -> Schedule:
    """The part of an all-to-all one rank knows: what it sends to and what it receives from each rank.

    Offsets in other ranks' vectors are unknown here and given as 0; a runner never uses them.
    """
    size = len(send_lengths)
    if len(receive_lengths) != size:
        raise ValueError(
            f"receive_lengths holds {len(receive_lengths)} lengths; one per rank, {size}, is needed"
        )
    outgoing, incoming = consecutive(send_lengths), consecutive(receive_lengths)
    transfers = []
    for step in range(1, size):
        target, source = (rank + step) % size, (rank - step) % size
        transfers.append(Transfer(step - 1, rank, target, outgoing[target].offset, 0, send_lengths[target]))
        transfers.append(
            Transfer(step - 1, source, rank, 0, incoming[source].offset, receive_lengths[source])
        )
    return make_schedule("all-to-all", size, transfers, separate_input=True)


def direct_all_gather(blocks: Sequence[Range], *, involving: int | None = None) -> Schedule:
    """Hands every rank all blocks in one step: rank r sends ``blocks[r]`` to everybody."""
    size = len(blocks)
    transfers = [
        Transfer(0, source, target, blocks[source].offset, blocks[source].offset, blocks[source].length)
        for step in range(1, size)
        for source, target in _pairs(size, step, involving)
    ]
    return make_schedule("direct all-gather", size, transfers)


def gather(blocks: Sequence[Range], root: int, *, involving: int | None = None) -> Schedule:
    """Every rank r sends its input to ``blocks[r]`` of the root's work vector."""
    check_root(root, len(blocks))
    transfers = [
        Transfer(0, rank, root, 0, block.offset, block.length)
        for rank, block in enumerate(blocks)
        if rank != root and (involving is None or involving in (rank, root))
    ]
    return make_schedule("gather", len(blocks), transfers, separate_input=True)


def scatter(blocks: Sequence[Range], root: int, *, involving: int | None = None) -> Schedule:
    """The root sends ``blocks[r]`` of its input to the start of rank r's work vector."""
    check_root(root, len(blocks))
    transfers = [
        Transfer(0, root, rank, block.offset, 0, block.length)
        for rank, block in enumerate(blocks)
        if rank != root and (involving is None or involving in (rank, root))
    ]
    return make_schedule("scatter", len(blocks), transfers, separate_input=True)
