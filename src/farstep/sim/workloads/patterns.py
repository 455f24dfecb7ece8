"""Traffic without a collective behind it: permutation, incast, all-to-all, pairs.

`ranks` is a number of ranks, which then sit on NICs 0..n-1, or the NIC of each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.errors import quoted
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads.ranks import positive, to_nics

__all__ = ["all_to_all", "derangement", "incast", "permutation", "sendrecv", "streams"]


def derangement(count: int, seed: int) -> NDArray[np.int64]:
    """Draws a permutation without a fixed point, all of them equally likely.

    Args:
        count: number of elements, at least 2.
        seed: the same seed draws the same one.
    """
    positive("count - 1", count - 1)
    random = np.random.default_rng([seed, count])
    while True:  # one draw in e succeeds, so that 100 failures in a row happen once in 10^20
        drawn = random.permutation(count)
        if not (drawn == np.arange(count)).any():
            return drawn.astype(np.int64)


def permutation(ranks: int | ArrayLike, size_bytes: int, *, seed: int = 0) -> TaskTable:
    """Every rank sends to one other, and every rank receives from one; all start at once."""
    nics = to_nics(ranks)
    build = TaskBuilder(job_names=["permutation"])
    build.flows(nics, nics[derangement(len(nics), seed)], size_bytes, phase="permutation")
    return build.table()


def incast(
    ranks: int | ArrayLike,
    size_bytes: int,
    *,
    senders: int | Sequence[int],
    target: int = 0,
    victim: tuple[int, int] | bool = True,
    victim_bytes: int | None = None,
    seed: int = 0,
) -> TaskTable:
    """Many ranks send to one at once, while a victim sends to a neighbour of the target that is idle.

    Args:
        ranks: number of ranks, or the NIC of each.
        size_bytes: payload of each sender.
        senders: how many, drawn at random, or which ranks.
        target: rank that receives.
        victim: (source, target) of the victim, True for an idle rank that sends to the idle one next to the
            target, False for none.
        victim_bytes: payload of the victim; by default that of a sender.
        seed: draws senders and victim.

    Raises:
        WorkloadError: there are too few ranks, or ranks are named that cannot play their part.
    """
    nics = to_nics(ranks)
    _check_rank("target", target, len(nics))
    reserved = {target} if isinstance(victim, bool) else {target, *victim}
    if victim is True:
        reserved.add(_next_idle(target, set() if isinstance(senders, int) else set(senders), len(nics)))
    random = np.random.default_rng([seed, len(nics)])
    sources, rest = _incast_senders(
        senders, target, reserved, len(nics), random, spare=1 if victim is True else 0
    )
    build = TaskBuilder(job_names=["incast"])
    build.flows(nics[sources], nics[target], size_bytes, phase="incast")
    if victim is not False:
        if victim is True:
            if not len(rest):
                raise WorkloadError(f"no rank of {len(nics)} is left to be the victim's source")
            ends = int(rest[0]), next(rank for rank in reserved if rank != target)
        else:
            ends = victim
        for rank in ends:
            _check_rank("victim", rank, len(nics))
        build.flows([nics[ends[0]]], nics[ends[1]], victim_bytes or size_bytes, phase="victim")
    return build.table()


def _incast_senders(
    senders: int | Sequence[int],
    target: int,
    reserved: set[int],
    count: int,
    random: np.random.Generator,
    *,
    spare: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who sends to the target, and who is left over, in random order; `spare` ranks must be."""
    if isinstance(senders, int):
        free = np.array([rank for rank in range(count) if rank not in reserved], np.int64)
        if senders < 1 or senders + spare > len(free):
            raise WorkloadError(f"senders is {senders}; {count} ranks allow 1..{len(free) - spare}")
        drawn = random.permutation(free)
        return drawn[:senders], drawn[senders:]
    for rank in senders:
        _check_rank("senders", rank, count)
    if len(set(senders)) != len(senders) or target in senders or not senders:
        raise WorkloadError(f"senders {list(senders)} must be different ranks other than the target {target}")
    left = [rank for rank in range(count) if rank not in {*senders, *reserved}]
    return np.array(senders, np.int64), random.permutation(np.array(left, np.int64))


def _next_idle(target: int, senders: set[int], count: int) -> int:
    for distance in range(1, count):
        for rank in (
            target + distance,
            target - distance,
        ):  # near the target: in its rack, if racks are filled
            if 0 <= rank < count and rank not in senders:
                return rank
    raise WorkloadError(f"no rank of {count} is left to be the victim's target")


def _check_rank(name: str, rank: int, count: int) -> None:
    if not 0 <= rank < count:
        raise WorkloadError(f"{name} names rank {rank}; ranks are 0..{count - 1}")


def all_to_all(
    ranks: int | ArrayLike, size_bytes: int, *, window: int = 8, group_size: int | None = None
) -> TaskTable:
    """Every rank sends to every other, at most `window` flows at a time.

    Each rank runs `window` chains; chain c sends to the ranks c+1, c+1+window, ... places further on, each when
    the one before is done.

    Args:
        ranks: number of ranks, or the NIC of each.
        size_bytes: payload from each rank to each other.
        window: flows a rank has under way at once.
        group_size: exchanges stay within groups of so many consecutive ranks; by default all ranks are one.

    Raises:
        WorkloadError: the groups do not divide the ranks.
    """
    nics = to_nics(ranks)
    size = len(nics) if group_size is None else group_size
    positive("window", window)
    if size < 2 or len(nics) % size:
        raise WorkloadError(f"group_size is {size}; it must be at least 2 and divide the {len(nics)} ranks")
    here = np.arange(len(nics))
    first = here - here % size
    offsets = np.arange(1, size)
    targets = first[None, :] + (here[None, :] - first + offsets[:, None]) % size
    build = TaskBuilder(job_names=["all-to-all"])
    ids = build.flows(np.broadcast_to(nics, targets.shape), nics[targets], size_bytes, phase="all-to-all")
    ids = ids.reshape(targets.shape)
    build.after(ids[window:], ids[:-window])
    return build.table()


def sendrecv(
    ranks: int | ArrayLike,
    size_bytes: int,
    *,
    pairs: str | Sequence[tuple[int, int]] = "neighbours",
    messages: int = 1,
    both_ways: bool = True,
) -> TaskTable:
    """Ranks exchange messages in pairs, one message after the other.

    Args:
        ranks: number of ranks, or the NIC of each.
        size_bytes: payload of a message.
        pairs: `neighbours` (0-1, 2-3, ...), `opposite` (0-n/2, 1-n/2+1, ...) or a list of pairs of ranks.
        messages: how many follow each other in each direction.
        both_ways: whether the second of a pair sends too.

    Raises:
        WorkloadError: ranks cannot be paired so.
    """
    nics = to_nics(ranks)
    count = len(nics)
    if pairs == "neighbours":
        left, right = np.arange(0, count - 1, 2), np.arange(1, count, 2)
    elif pairs == "opposite":
        left, right = np.arange(count // 2), np.arange(count // 2) + (count + 1) // 2
    elif isinstance(pairs, str) or not len(pairs):
        raise WorkloadError(
            f"pairs is {quoted(pairs)}; valid: neighbours, opposite, or a list of pairs of ranks"
        )
    else:
        for pair in pairs:
            for rank in pair:
                _check_rank("pairs", rank, count)
        left, right = np.array(pairs, np.int64).reshape(-1, 2).T
    source = np.concatenate((left, right)) if both_ways else left
    target = np.concatenate((right, left)) if both_ways else right
    return _messages(nics[source], nics[target], size_bytes, messages, name="sendrecv")


def streams(source: ArrayLike, target: ArrayLike, size_bytes: ArrayLike, *, messages: int = 1) -> TaskTable:
    """Flows between the NICs named, each of so many messages that follow each other."""
    return _messages(np.atleast_1d(source), np.atleast_1d(target), size_bytes, messages, name="flows")


def _messages(
    source: NDArray[np.int64], target: NDArray[np.int64], size_bytes: ArrayLike, messages: int, *, name: str
) -> TaskTable:
    positive("messages", messages)
    build = TaskBuilder(job_names=[name])
    before: NDArray[np.int64] | None = None
    for number in range(messages):
        build.tag = number
        ids = build.flows(source, target, size_bytes, phase=name)
        if before is not None:
            build.after(ids, before)
        before = ids
    return build.table()
