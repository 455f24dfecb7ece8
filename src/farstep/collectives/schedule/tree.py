"""Tree-shaped schedules: few steps, for messages so small that the number of steps is the cost.

Any number of ranks works. Recursive doubling first folds the ranks beyond the largest power of two into
the others (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
2005). The lower rank's value is always the left operand, so that both partners compute the same bits.
"""

from __future__ import annotations

from farstep.collectives.schedule.model import Action, Schedule, Transfer, check_root, make_schedule


def recursive_doubling_all_reduce(size: int, length: int, *, involving: int | None = None) -> Schedule:
    """All-reduces in log2(n) exchanges of the whole vector (plus two steps unless n is a power of two).

    A range is overwritten while it may still be on its way out, so that runners must send a copy of it.
    """
    power = 1 << (size.bit_length() - 1) if size else 0
    extra = size - power
    transfers: list[Transfer] = []

    def add(step: int, source: int, target: int, action: Action, completes: bool = False) -> None:
        if involving is None or involving in (source, target):
            transfers.append(Transfer(step, source, target, 0, 0, length, action, completes))

    # Ranks 0, 2, 4 .. of the first 2*extra fold their odd neighbour in; the odd ones sit the doubling out.
    folded = [rank * 2 if rank < extra else rank + extra for rank in range(power)]
    for index in range(extra):
        add(0, 2 * index + 1, 2 * index, Action.REDUCE_RIGHT)
    step = 1 if extra else 0
    distance = 1
    while distance < power:
        for index in range(power):
            partner = index ^ distance
            action = Action.REDUCE_LEFT if index < partner else Action.REDUCE_RIGHT
            add(step, folded[index], folded[partner], action, completes=2 * distance == power)
        distance *= 2
        step += 1
    for index in range(extra):
        add(step, 2 * index, 2 * index + 1, Action.COPY)
    return make_schedule("recursive doubling all-reduce", size, transfers, is_zero_copy=False)


def tree_broadcast(size: int, length: int, root: int, *, involving: int | None = None) -> Schedule:
    """Broadcasts from ``root`` down a binomial tree in ceil(log2 n) steps."""
    check_root(root, size)
    transfers = []
    distance = 1 << max(size - 1, 0).bit_length()
    step = 0
    while distance > 1:
        half = distance // 2
        for relative in range(0, size, distance):
            if relative + half < size:
                source, target = (relative + root) % size, (relative + half + root) % size
                if involving is None or involving in (source, target):
                    transfers.append(Transfer(step, source, target, 0, 0, length))
        distance = half
        step += 1
    return make_schedule("tree broadcast", size, transfers)


def tree_reduce(size: int, length: int, root: int, *, involving: int | None = None) -> Schedule:
    """Reduces to ``root`` up a binomial tree; operands are in rank order starting at the root."""
    check_root(root, size)
    transfers = []
    half = 1
    step = 0
    while half < size:
        for relative in range(0, size, 2 * half):
            if relative + half < size:
                source, target = (relative + half + root) % size, (relative + root) % size
                if involving is None or involving in (source, target):
                    is_last = relative == 0 and 2 * half >= size
                    transfers.append(
                        Transfer(step, source, target, 0, 0, length, Action.REDUCE_RIGHT, completes=is_last)
                    )
        half *= 2
        step += 1
    return make_schedule("tree reduce", size, transfers)


def dissemination_barrier(size: int, *, involving: int | None = None) -> Schedule:
    """Or-reduces one element so that no rank ends before every rank has begun, in ceil(log2 n) steps.

    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988. The reduction
    must be idempotent (bitwise or), because a rank's element can reach another twice.
    """
    transfers = []
    distance = 1
    step = 0
    while distance < size:
        for rank in range(size):
            target = (rank + distance) % size
            if involving is None or involving in (rank, target):
                transfers.append(Transfer(step, rank, target, 0, 0, 1, Action.REDUCE_RIGHT))
        distance *= 2
        step += 1
    return make_schedule("dissemination barrier", size, transfers, is_zero_copy=False)
