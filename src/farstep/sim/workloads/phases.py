"""A collective as part of something larger: what it waits for on every rank, and when it is done there."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.errors import quoted
from farstep.sim.tasks import TaskBuilder, WorkloadError
from farstep.sim.workloads.collectives import block_sizes, collective, ring_steps

__all__ = ["PHASE_COLLECTIVES", "add_all_to_all", "add_collective"]

IntArray = NDArray[np.int64]

PHASE_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")
"""What `add_collective` knows."""


def add_collective(
    build: TaskBuilder,
    name: str,
    members: ArrayLike,
    size_bytes: int,
    *,
    after: ArrayLike,
    phase: str,
    step_delay_ns: int = 0,
) -> IntArray:
    """Adds one collective, or several of one shape side by side.

    Args:
        build: takes the tasks.
        name: one of `PHASE_COLLECTIVES`; the algorithm is the first of `collectives.COLLECTIVES`.
        members: NICs of each group in the order of ranks, (groups, members) or (members,).
        size_bytes: bytes of the whole vector; of an all-to-all what a member sends to all others together.
        after: task that each member's part waits for, of the shape of `members`; -1 for none.
        phase: name of the flows' phase.
        step_delay_ns: time between receiving and sending on.

    Returns:
        Task after which each member is done, of the shape of `members` with two dimensions; a member of a group
        of one is done when its own part is.
    """
    nics = np.atleast_2d(np.asarray(members, np.int64))
    own = np.broadcast_to(np.asarray(after, np.int64), nics.shape)
    size = nics.shape[1]
    if name not in PHASE_COLLECTIVES:
        raise WorkloadError(f"collective is {quoted(name)}; valid: {', '.join(PHASE_COLLECTIVES)}")
    if size == 1:
        return own.copy()
    if name in ("all_reduce", "reduce_scatter", "all_gather"):
        received = ring_steps(
            build,
            nics,
            block_sizes(size_bytes, size),
            reduces=name != "all_gather",
            gathers=name != "reduce_scatter",
            after=own,
            step_delay_ns=step_delay_ns,
            phase=phase,
        )
        return _done(build, nics, received, own)
    if name == "all_to_all":
        return add_all_to_all(build, nics, max(1, size_bytes // (size - 1)), after=own, phase=phase)
    return np.stack(
        [
            _add_tree(build, name, group, size_bytes, mine, phase, step_delay_ns)
            for group, mine in zip(nics, own, strict=True)
        ]
    )


def add_all_to_all(
    build: TaskBuilder, members: ArrayLike, size_bytes: int, *, after: ArrayLike, phase: str
) -> IntArray:
    """Adds all-to-alls of `size_bytes` from each member to each other, all at once; returns as `add_collective`."""
    nics = np.atleast_2d(np.asarray(members, np.int64))
    own = np.broadcast_to(np.asarray(after, np.int64), nics.shape)
    groups, size = nics.shape
    here = np.arange(size)
    partner = (here[None, :] + np.arange(1, size)[:, None]) % size  # (offsets, members)
    shape = (groups, size - 1, size)
    ids = build.flows(
        np.broadcast_to(nics[:, None, :], shape), nics[:, partner], size_bytes, phase=phase
    ).reshape(shape)
    build.after(ids, np.broadcast_to(own[:, None, :], shape))
    done = build.delays(nics, 0, phase="join").reshape(nics.shape)
    build.after(done[:, partner], ids)
    build.after(done, own)
    return done


def _done(build: TaskBuilder, nics: IntArray, received: IntArray, own: IntArray) -> IntArray:
    """Joins what a member receives, (groups, flows, members), with its own part, which may come last."""
    done = build.delays(nics, 0, phase="join").reshape(nics.shape)
    build.after(np.broadcast_to(done[:, None, :], received.shape), received)
    build.after(done, own)
    return done


def _add_tree(
    build: TaskBuilder,
    name: str,
    nics: IntArray,
    size_bytes: int,
    own: IntArray,
    phase: str,
    step_delay_ns: int,
) -> IntArray:
    table = collective(name, nics, size_bytes, algorithm="tree", step_delay_ns=step_delay_ns)
    ids = build.append(table, phase=phase)
    order = np.argsort(nics)
    sender = order[np.searchsorted(nics[order], table.source)]
    receiver = order[np.searchsorted(nics[order], table.target)]
    build.after(ids, own[sender])
    done = build.delays(nics, 0, phase="join")
    build.after(done[receiver], ids)
    build.after(done, own)
    return done
