"""Packets of single flows, one by one: which way each took, how long, and what became of it.

Following a flow changes nothing about it: the same seed gives the same run, with or without. So the slowest flow of a
run is followed by running it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.errors import ConfigError
from farstep.sim.tasks import TaskTable

if TYPE_CHECKING:
    from farstep import _native

__all__ = [
    "DELIVERED",
    "FATES",
    "TRACE_COLUMNS",
    "TRACE_FLOWS_MAX",
    "TRIMMED",
    "check_flows",
    "packets_of",
]

TRACE_FLOWS_MAX = 64
"""Flows followed at once: this is for looking at some, not for recording all."""

FATES = ("in flight", "delivered", "trimmed", "no room", "link down", "bad luck")
"""What became of a packet, by the number in column `fate`; the last three are dropped packets."""
DELIVERED, TRIMMED = 1, 2

TRACE_COLUMNS = (
    "task",
    "sequence",
    "is_again",
    "ev",
    "plane",
    "sent_ns",
    "ended_ns",
    "bytes",
    "fate",
    "is_marked",
    "where",
    "links",
)
"""Columns of a trace, a row per packet in the order in which they were sent.

`task` is the flow; `sequence` the number of the packet on its connection, `is_again` whether that was sent before;
`ev` the entropy value (or the number of the path); `plane` that of the NIC's port; `sent_ns` when its first bit left
the NIC and `ended_ns` when it was whole at the receiver, or lost, -1 for neither; `bytes` its size on the wire; `fate`
an index into `FATES`; `is_marked` whether a queue marked it; `where` the link before which it was lost or trimmed, -1
for none; `links` (n, hops) the links of its way, -1 behind the last, of packets routed by switches as far as they came.
"""


def check_flows(wanted: Sequence[int], tasks: TaskTable) -> NDArray[np.int32]:
    """Returns the flows to follow, in rising order.

    Raises:
        ConfigError: one of them is no flow of the workload.
    """
    for task in wanted:
        if not 0 <= task < len(tasks):
            raise ConfigError(f"run.trace_flows = {task}: no such task; valid: 0 to {len(tasks) - 1}")
        if not tasks.is_flow[task]:
            raise ConfigError(f"run.trace_flows = {task}: is a delay; only flows have packets")
    return np.unique(np.asarray(wanted, np.int32))


def packets_of(
    engine: _native.PacketEngine,
    flows: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    finish_ns: NDArray[np.int64],
    link_plane: NDArray[np.int16],
) -> dict[str, NDArray[Any]]:
    """Reads the packets of flows off an engine: of their connections, those sent while the flow was under way.

    Args:
        engine: one that has run.
        flows: tasks that were followed.
        start_ns: of every task.
        finish_ns: of every task, -1 for those that are not done.
        link_plane: plane of every link.

    Returns:
        `TRACE_COLUMNS`.
    """
    columns = engine.trace_columns()
    sent, connection = columns["sent_ns"], columns["connection"]
    task = np.full(len(sent), -1, np.int32)
    for flow in flows.tolist():
        finish = finish_ns[flow] if finish_ns[flow] >= 0 else np.iinfo(np.int64).max
        mine = (connection == engine.connection_of(flow)) & (sent >= start_ns[flow]) & (sent <= finish)
        task[mine & (task < 0)] = flow
    order = np.lexsort((columns["sequence"], sent))
    chosen = order[task[order] >= 0]
    found = {name: column[chosen] for name, column in columns.items() if name != "connection"}
    first = np.where(found["links"][:, 0] >= 0, found["links"][:, 0], found["where"])
    return {
        "task": task[chosen],
        "sequence": found["sequence"],
        "is_again": _repeats(connection[chosen], found["sequence"]),
        "ev": found["ev"],
        "plane": np.where(first >= 0, link_plane[first], -1).astype(np.int16),
        "sent_ns": found["sent_ns"],
        "ended_ns": found["ended_ns"],
        "bytes": found["bytes"],
        "fate": found["fate"],
        "is_marked": found["marked"].astype(np.bool_),
        "where": found["where"],
        "links": found["links"],
    }


def _repeats(connection: NDArray[np.int32], sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which packets come after one of the same number."""
    keys = connection.astype(np.int64) << 32 | sequence
    is_again = np.ones(len(keys), np.bool_)
    is_again[np.unique(keys, return_index=True)[1]] = False
    return is_again
