"""Collectives as flows: schedules of `farstep.collectives.schedule`, and the regular ones without an object each.

A transfer of a schedule becomes a flow. It starts when what it sends is there: after the transfers of earlier
steps into the same range of the same rank, back to the last that overwrites it. `step_delay_ns` stands for
what a rank does between receiving and sending on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.collectives.schedule.hierarchical import hierarchical_all_reduce as hierarchical_schedule
from farstep.collectives.schedule.model import Action, Schedule
from farstep.collectives.schedule.ring import chain_broadcast
from farstep.collectives.schedule.tree import (
    recursive_doubling_all_reduce,
    tree_broadcast,
    tree_reduce,
)
from farstep.fabric.errors import quoted
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads.patterns import all_to_all
from farstep.sim.workloads.ranks import Nics, positive, to_nics

__all__ = [
    "COLLECTIVES",
    "collective",
    "from_schedule",
    "hierarchical_all_reduce",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "ring_steps",
]

IntArray = NDArray[np.int64]


def from_schedule(
    schedule: Schedule,
    ranks: int | ArrayLike | None = None,
    *,
    element_bytes: int = 1,
    step_delay_ns: int = 0,
) -> TaskTable:
    """Turns any schedule into flows.

    Args:
        schedule: all transfers of a collective.
        ranks: NIC of each rank; by default 0..size-1.
        element_bytes: size of an element.
        step_delay_ns: time between receiving and sending on.

    Raises:
        WorkloadError: the ranks are not as many as the schedule's.
    """
    nics = to_nics(schedule.size if ranks is None else ranks, at_least=1)
    if len(nics) != schedule.size:
        raise WorkloadError(f"{len(nics)} ranks are given; the {schedule.name} has {schedule.size}")
    later: list[int] = []
    earlier: list[int] = []
    # Receives a send from that range must wait for, with their step: those of the same step come after it.
    written: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for number, transfer in enumerate(schedule.transfers):
        if not schedule.separate_input:
            own = (transfer.source, transfer.source_offset, transfer.length)
            waits = [task for step, task in written.get(own, ()) if step < transfer.step]
            later += [number] * len(waits)
            earlier += waits
        held = written.setdefault((transfer.target, transfer.target_offset, transfer.length), [])
        if transfer.action is Action.COPY:
            # a send of this very step is listed after it, perhaps, and still needs what was there before
            held[:] = [entry for entry in held if entry[0] == transfer.step]
        held.append((transfer.step, number))
    build = TaskBuilder(job_names=[schedule.name])
    if schedule.transfers:
        columns = np.array([(t.source, t.target, t.length) for t in schedule.transfers], np.int64)
        delays = np.zeros(len(columns), np.int64)
        delays[np.array(later, np.int64)] = step_delay_ns
        build.flows(
            nics[columns[:, 0]],
            nics[columns[:, 1]],
            columns[:, 2] * element_bytes,
            delay_ns=delays,
            phase=schedule.name,
        )
        build.after(np.array(later, np.int64), np.array(earlier, np.int64))
    return build.table()


def block_sizes(size_bytes: int, parts: int) -> IntArray:
    """Bytes of the parts a vector is cut into: as equal as can be, the longer first."""
    base, longer = divmod(size_bytes, parts)
    return base + (np.arange(parts) < longer).astype(np.int64)


def ring_steps(
    build: TaskBuilder,
    members: ArrayLike,
    blocks: ArrayLike,
    *,
    reduces: bool,
    gathers: bool,
    after: ArrayLike | None = None,
    step_delay_ns: int = 0,
    connection_key: int = -1,
    phase: str = "all-reduce",
) -> IntArray:
    """Adds rings: several at once, all of one length, with one flow per ring, step and member.

    In step s of the reduce-scatter position p sends block p-1-s, in step s of the all-gather block p-s, to
    position p+1, as `farstep.collectives.schedule.ring` has it. Hence every flow waits for the flow that its
    left neighbour sent in the step before.

    Args:
        build: takes the flows.
        members: NICs in ring order, (rings, members) or (members,).
        blocks: bytes of each position's block, broadcast to (rings, members); one of 0 bytes is not sent.
        reduces: whether the blocks are reduce-scattered.
        gathers: whether the blocks are all-gathered then.
        after: task that each member's own data waits for, of the shape of `members`; -1 for none.
        step_delay_ns: time between receiving and sending on.
        connection_key: of all flows.
        phase: of all flows.

    Returns:
        The flows that bring every member its result, (rings, flows, members), -1 for a block of 0 bytes: of its
        own block the last part of the sum, of all others the gathered block.
    """
    ring = np.atleast_2d(np.asarray(members, np.int64))
    own = None
    if after is not None:
        own = np.broadcast_to(
            np.broadcast_to(np.asarray(after, np.int64), ring.shape)[:, :, None], (*ring.shape, 1)
        )
    ids, _ = _ring_flows(
        build,
        ring,
        blocks,
        reduces=reduces,
        gathers=gathers,
        own=own,
        step_delay_ns=step_delay_ns,
        connection_key=connection_key,
        phase=phase,
    )
    first = max(0, ring.shape[1] - 2) if reduces else 0
    return np.roll(ids[:, first:, :], 1, axis=2)


def _ring_flows(
    build: TaskBuilder,
    ring: Nics,
    blocks: ArrayLike,
    *,
    reduces: bool,
    gathers: bool,
    own: IntArray | None,
    step_delay_ns: int,
    phase: str,
    connection_key: int = -1,
    delays_first: bool = False,
) -> tuple[IntArray, IntArray]:
    """Adds rings as `ring_steps` does, and tells of every flow.

    `own` is the task that a member's own part of a block waits for, (rings, members, blocks or 1);
    `delays_first` says that the first step, too, hands on what was received.

    Returns:
        Number of every flow, (rings, steps, members), -1 for a block of 0 bytes; block sent, (steps, members).
    """
    size = ring.shape[1]
    half = size - 1
    steps = half * (reduces + gathers)
    step, position = np.arange(steps)[:, None], np.arange(size)[None, :]
    block = (position - step) % size
    if reduces:
        block = np.where(step < half, position - 1 - step, position - (step - half)) % size
    sizes = np.broadcast_to(np.atleast_2d(np.asarray(blocks, np.int64)), ring.shape)
    moved = sizes[:, block]  # (rings, steps, members)
    sent = moved > 0
    waits = (step > 0) | delays_first
    ids = np.full(moved.shape, -1, np.int64)
    ids[sent] = build.flows(
        np.broadcast_to(ring[:, None, :], moved.shape)[sent],
        np.broadcast_to(np.roll(ring, -1, axis=1)[:, None, :], moved.shape)[sent],
        moved[sent],
        delay_ns=np.broadcast_to(np.where(waits, step_delay_ns, 0)[None], moved.shape)[sent],
        connection_key=connection_key,
        phase=phase,
    )
    follows = sent[:, 1:, :]
    build.after(ids[:, 1:, :][follows], np.roll(ids[:, :-1, :], 1, axis=2)[follows])
    if own is not None:
        # What a member adds to, or starts with, is its own; later it hands on what others completed.
        own_steps = min(steps, half + 1 if reduces else 1)
        mine = np.broadcast_to(own, (*ring.shape, size))[:, position, block[:own_steps]]
        kept = sent[:, :own_steps, :]
        build.after(ids[:, :own_steps, :][kept], mine[kept])
    return ids, block


def ring_all_reduce(
    ranks: int | ArrayLike, size_bytes: int, *, channels: int = 1, step_delay_ns: int = 0
) -> TaskTable:
    """Ring all-reduce: 2(n-1) steps in which every rank sends 1/n of the vector to its right neighbour.

    Args:
        ranks: number of ranks, or the NIC of each, in ring order.
        size_bytes: bytes of the vector.
        channels: parts of the vector that go round independently, each on connections of its own.
        step_delay_ns: time between receiving and sending on.
    """
    return _ring("ring all-reduce", ranks, size_bytes, channels, step_delay_ns, reduces=True, gathers=True)


def ring_reduce_scatter(
    ranks: int | ArrayLike, size_bytes: int, *, channels: int = 1, step_delay_ns: int = 0
) -> TaskTable:
    """Ring reduce-scatter of a vector of `size_bytes`: the first half of an all-reduce."""
    return _ring(
        "ring reduce-scatter", ranks, size_bytes, channels, step_delay_ns, reduces=True, gathers=False
    )


def ring_all_gather(
    ranks: int | ArrayLike, size_bytes: int, *, channels: int = 1, step_delay_ns: int = 0
) -> TaskTable:
    """Ring all-gather to a vector of `size_bytes`, of which every rank brings its share."""
    return _ring("ring all-gather", ranks, size_bytes, channels, step_delay_ns, reduces=False, gathers=True)


def _ring(
    name: str,
    ranks: int | ArrayLike,
    size_bytes: int,
    channels: int,
    step_delay_ns: int,
    *,
    reduces: bool,
    gathers: bool,
) -> TaskTable:
    nics = to_nics(ranks)
    positive("size_bytes", size_bytes)
    build = TaskBuilder(job_names=[name])
    for channel, part in enumerate(block_sizes(size_bytes, positive("channels", channels))):
        ring_steps(
            build,
            nics,
            block_sizes(int(part), len(nics)),
            reduces=reduces,
            gathers=gathers,
            step_delay_ns=step_delay_ns,
            connection_key=channel if channels > 1 else -1,
            phase=name,
        )
    return build.table()


def hierarchical_all_reduce(
    groups: Sequence[ArrayLike] | Nics, size_bytes: int, *, step_delay_ns: int = 0
) -> TaskTable:
    """All-reduce within groups (sites, or nodes) and across them, as `farstep.collectives` does between sites.

    Reduce-scatter in each group, all-reduce of each shard over the groups, all-gather in each group.

    Args:
        groups: NICs of each group, every one once.
        size_bytes: bytes of the vector.
        step_delay_ns: time between receiving and sending on.

    Raises:
        WorkloadError: a group is empty, or a NIC is in two.
    """
    members = [np.atleast_1d(np.asarray(group, np.int64)) for group in groups]
    if any(not len(group) for group in members):
        raise WorkloadError("a group has no ranks; every group needs at least one")
    nics = to_nics(np.concatenate(members))
    lengths = {len(group) for group in members}
    if len(lengths) > 1 or size_bytes % (len(members) * len(members[0])):
        bounds = np.cumsum([0, *(len(group) for group in members)])
        sites = [range(bounds[index], bounds[index + 1]) for index in range(len(members))]
        return from_schedule(hierarchical_schedule(sites, size_bytes), nics, step_delay_ns=step_delay_ns)
    return _equal_groups(np.stack(members), size_bytes, step_delay_ns)


def _equal_groups(group: Nics, size_bytes: int, step_delay_ns: int) -> TaskTable:
    """The same for groups of one size that cut the vector evenly, without an object per transfer.

    A shard is cut into as many pieces as there are groups; each piece goes its own way through all phases.
    """
    count, size = group.shape
    piece_bytes = size_bytes // (count * size)
    build = TaskBuilder(job_names=["hierarchical all-reduce"])
    add = partial(_ring_flows, build, step_delay_ns=step_delay_ns, phase="hierarchical all-reduce")
    ready = np.full((count, count, size), -1, np.int64)  # (pieces, groups, members), as all below
    if size > 1:
        for piece in range(count):
            ids, _ = add(group, piece_bytes, reduces=True, gathers=False, own=None)
            ready[piece] = np.roll(ids[:, -1, :], 1, axis=1)
    held = ready.copy()
    if count > 1:
        own = ready.transpose(2, 1, 0)
        ids, block = add(group.T, piece_bytes, reduces=True, gathers=True, own=own, delays_first=size > 1)
        received = np.roll(ids, 1, axis=2)  # (members, steps, groups)
        here = np.arange(count)
        held[here, here, :] = received[:, count - 2, :].T  # the piece a group completes itself
        for step in range(count - 1, 2 * (count - 1)):
            held[np.roll(block[step], 1), here, :] = received[:, step, :].T
    if size > 1:
        for piece in range(count):
            ids, _ = add(
                group,
                piece_bytes,
                reduces=False,
                gathers=True,
                own=held[piece][:, :, None],
                delays_first=True,
            )
            if count > 1:  # what the group completed itself it adds to its own sum
                build.after(ids[piece, 0, :], ready[piece, piece, :])
    return build.table()


COLLECTIVES = {
    "all_reduce": ("ring", "tree", "recursive_doubling", "hierarchical"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "broadcast": ("chain", "tree"),
    "reduce": ("tree",),
    "all_to_all": ("direct",),
}
"""Collectives and their algorithms; the first is the default."""


def collective(
    name: str,
    ranks: int | ArrayLike,
    size_bytes: int,
    *,
    algorithm: str | None = None,
    group_size: int | None = None,
    channels: int = 1,
    step_delay_ns: int = 0,
) -> TaskTable:
    """One collective over all ranks.

    Args:
        name: a key of `COLLECTIVES`.
        ranks: number of ranks, or the NIC of each.
        size_bytes: bytes of the whole vector; of an all-to-all what a rank sends to all others together.
        algorithm: one of `COLLECTIVES[name]`; by default the first.
        group_size: ranks in a group of the hierarchical all-reduce.
        channels: independent rings of a ring algorithm.
        step_delay_ns: time between receiving and sending on.

    Raises:
        WorkloadError: there is no such collective or algorithm, or the sizes do not fit it.
    """
    if name not in COLLECTIVES:
        raise WorkloadError(f"collective is {quoted(name)}; valid: {', '.join(COLLECTIVES)}")
    chosen = algorithm or COLLECTIVES[name][0]
    if chosen not in COLLECTIVES[name]:
        raise WorkloadError(f"algorithm of {name} is {quoted(chosen)}; valid: {', '.join(COLLECTIVES[name])}")
    nics = to_nics(ranks)
    positive("size_bytes", size_bytes)
    if chosen == "ring":
        ring = {
            "all_reduce": ring_all_reduce,
            "reduce_scatter": ring_reduce_scatter,
            "all_gather": ring_all_gather,
        }[name]
        return ring(nics, size_bytes, channels=channels, step_delay_ns=step_delay_ns)
    if chosen == "hierarchical":
        if group_size is None or group_size < 1 or len(nics) % group_size:
            raise WorkloadError(f"group_size is {group_size}; it must divide the {len(nics)} ranks")
        return hierarchical_all_reduce(nics.reshape(-1, group_size), size_bytes, step_delay_ns=step_delay_ns)
    if name == "all_to_all":
        return all_to_all(nics, positive("size_bytes / (ranks - 1)", size_bytes // (len(nics) - 1)))
    return _tree(name, chosen, nics, size_bytes, step_delay_ns)


def _tree(name: str, algorithm: str, nics: Nics, size_bytes: int, step_delay_ns: int) -> TaskTable:
    size = len(nics)
    if name == "broadcast":
        make = chain_broadcast if algorithm == "chain" else tree_broadcast
        return from_schedule(make(size, size_bytes, 0), nics, step_delay_ns=step_delay_ns)
    if algorithm == "recursive_doubling":
        schedule = recursive_doubling_all_reduce(size, size_bytes)
        return from_schedule(schedule, nics, step_delay_ns=step_delay_ns)
    up = from_schedule(tree_reduce(size, size_bytes, 0), nics, step_delay_ns=step_delay_ns)
    if name == "reduce":
        return up
    down = from_schedule(tree_broadcast(size, size_bytes, 0), nics, step_delay_ns=step_delay_ns)
    build = TaskBuilder(job_names=["tree all-reduce"])
    into_root = build.append(up)[up.target == nics[0]]
    build.append(down, after=into_root)
    return build.table()
