"""Where a process stands among all that train."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Place"]


class Place(NamedTuple):
    """Where a process stands.

    Attributes:
        seat: index of its replica group among the active ones; batches and the order of reductions go by it.
        num_seats: active replica groups.
        inner_rank: rank within the replica group.
        num_inner: ranks of the replica group.
        shares: relative share of each seat in a batch; None for equal ones.
        step: steps committed so far, so the index of the next one.
        generation: number of the membership.
    """

    seat: int
    num_seats: int
    inner_rank: int = 0
    num_inner: int = 1
    shares: tuple[int, ...] | None = None
    step: int = 0
    generation: int = 0
