"""Rings as collective libraries run them: every ring on two connections, several parts of a vector under way on each.

NCCL and RCCL double the rings that they find (their channels, `ncclTopoPostset`), so a connection between two NICs is
never alone; and a rank sends on a part of a block while the next one comes in, so that latencies of steps hide behind
each other (`NCCL_STEPS`). What they carry inside a node takes none of the network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from farstep.sim.tasks import TaskBuilder, TaskTable
from farstep.sim.workloads.collectives import block_sizes, ring_steps

__all__ = ["CONNECTIONS", "SEND_QUEUE", "rings_of_nodes", "rings_of_two"]

CONNECTIONS = 2
PARTS = 4
"""Of a block on one connection; NCCL has up to eight buffers for them."""
SEND_QUEUE = 16
"""Messages that a connection holds at once, as many as those of the other transports do."""


def rings_of_two(members: ArrayLike, size_bytes: int) -> TaskTable:
    """All-reduce over rings, each on two connections.

    Args:
        members: NICs in the order of their ring, (rings, members) or (members,).
        size_bytes: of what one ring reduces.
    """
    ring = np.atleast_2d(np.asarray(members, np.int64))
    build = TaskBuilder(job_names=["all-reduce"])
    for index, part in enumerate(block_sizes(size_bytes, CONNECTIONS * PARTS)):
        ring_steps(
            build,
            ring,
            block_sizes(int(part), ring.shape[1]),
            reduces=True,
            gathers=True,
            connection_key=index // PARTS,
        )
    return build.table()


def rings_of_nodes(size_bytes: int, *, nodes: int = 8, per_node: int = 8) -> TaskTable:
    """All-reduce of GPUs with a NIC each, as many rings as a node has NICs, from node to node.

    Every ring reduces its share of the vector. The hops within a node, over its own links, are left out.

    Args:
        size_bytes: of the vector.
        nodes: each with NICs that follow each other.
        per_node: NICs of each.
    """
    members = np.arange(nodes)[None, :] * per_node + np.arange(per_node)[:, None]
    return rings_of_two(members, size_bytes // per_node)
