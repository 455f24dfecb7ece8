"""Collectives whose steps are alike: one step is simulated, the others follow from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.topology import Topology
from farstep.sim.closed_form import chain_sums_ns
from farstep.sim.flow.settings import FlowSettings
from farstep.sim.flow.simulator import FlowSimulator
from farstep.sim.tasks import TaskTable

__all__ = ["ring_time_ns", "step_times_ns"]

FloatArray = NDArray[np.float64]


def step_times_ns(
    topology: Topology, source: ArrayLike, target: ArrayLike, size_bytes: ArrayLike, settings: FlowSettings
) -> FloatArray:
    """Times of flows that all start at once, with lost times at their mean.

    Args:
        topology: the network.
        source: NICs.
        target: NICs, of the same length.
        size_bytes: payload, one size for all or one each.
        settings: of the transport.

    Returns:
        float64 (flows,), in ns.
    """
    near = np.asarray(source)
    tasks = TaskTable.from_columns(
        source=near, target=target, size_bytes=np.broadcast_to(np.asarray(size_bytes), near.shape)
    )
    result = FlowSimulator(topology, replace(settings, is_noisy=False)).run(tasks)
    return (result.finish_ns - result.start_ns).astype(np.float64)


def ring_time_ns(
    topology: Topology,
    members: ArrayLike,
    size_bytes: int,
    settings: FlowSettings,
    *,
    steps: int | None = None,
    step_delay_ns: float = 0.0,
) -> float:
    """Time of a ring all-reduce, from the rates of one step.

    In every step each member sends a block to the next one. All steps load the network alike, so that one computation
    of rates stands for all; a block then takes the sum of its hops' times, and the slowest block decides. It knows of
    links that are shared, as `farstep.sim.closed_form.ring_all_reduce_ns` does not.

    Args:
        topology: the network.
        members: NICs in the order of the ring; several rings at once as (rings, members).
        size_bytes: bytes of the vector of each ring.
        settings: of the transport.
        steps: hops of a block; None: `2 (n - 1)`, an all-reduce.
        step_delay_ns: between receiving a block and sending it on.
    """
    rings = np.atleast_2d(np.asarray(members, np.int64))
    count = rings.shape[1]
    if count < 2:
        return 0.0
    hops = 2 * (count - 1) if steps is None else steps
    block = -(-size_bytes // count)
    following = np.roll(rings, -1, axis=1)
    step = step_times_ns(topology, rings.ravel(), following.ravel(), block, settings).reshape(rings.shape)
    slowest = max(float(chain_sums_ns(ring + step_delay_ns, hops).max()) for ring in step)
    return slowest - step_delay_ns
