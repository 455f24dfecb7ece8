"""Times that need no simulation: one message, an incast, and collectives whose steps are all alike.

Every formula is built on that of one message. A message of `n` packets over hops `1..H` is cut by the first NIC into
`n - 1` full packets and a last one; switches store a packet before they forward it. With `t_h` the time of a full
packet on hop h, `l` that of the last packet on the slowest hop, `t` the longest `t_h`:

    first bit to last bit, n >= 2:   (n - 1) * t + l + sum over h of t_h - t + propagation and switches
    n = 1:                           sum over h of l_h + propagation and switches

(A short last packet queues behind the full one before it at every hop, so that it saves its length only once.) A
sender that waits for the acknowledgement adds the way back: propagation, switches and the acknowledgement's time on
each hop. A message of 2 MB over six hops of 100 Gb/s and 1 us, in packets of 4,086 + 64 bytes: 489 * 332 + 161 + 5 *
332 + 6,000 ns out, 6,000 + 6 * 5.1 ns back: 176.20 us.

The formulas hold on a network without other traffic whose fabric is not slower than its NICs. Where flows of one step
share links, `farstep.sim.flow.symmetric` computes their rates first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.topology import Topology
from farstep.sim.flow.ragged import sums
from farstep.sim.flow.rows import lanes_between
from farstep.sim.flow.settings import FlowSettings
from farstep.sim.flow.walk import RoutingView, hash_segments

__all__ = [
    "MessageTimes",
    "all_to_all_ns",
    "chain_sums_ns",
    "hierarchical_all_reduce_ns",
    "incast_ns",
    "recursive_doubling_ns",
    "ring_all_reduce_ns",
    "ring_pass_ns",
    "tree_all_reduce_ns",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, eq=False)
class MessageTimes:
    """What a message takes between pairs of NICs that have the network for themselves.

    Attributes:
        settings: sizes of packets, host latency, and whose end of a message counts.
        latency_ns: float64 (pairs,), propagation and switches, one way.
        wire_ns_per_byte: float64 (pairs,), time per byte on one path, added up over its hops.
        slowest_ns_per_byte: float64 (pairs,), the same on the slowest hop alone.
        lanes: float64 (pairs,), planes a message is spread over.
        answers: bytes of acknowledgements that share a wire with each byte of data: what NICs receive meanwhile.
    """

    settings: FlowSettings
    latency_ns: FloatArray
    wire_ns_per_byte: FloatArray
    slowest_ns_per_byte: FloatArray
    lanes: FloatArray
    answers: float = 0.0

    @classmethod
    def between(
        cls, topology: Topology, source: ArrayLike, target: ArrayLike, settings: FlowSettings
    ) -> MessageTimes:
        """Reads the parameters off a topology, along one shortest path of each pair in its first plane.

        Args:
            topology: the network; all paths of a pair are taken to be alike.
            source: NICs.
            target: NICs, of the same shape.
            settings: of the transport.

        Raises:
            ValueError: a pair has no path.
        """
        near, far = np.atleast_1d(source).astype(np.int64), np.atleast_1d(target).astype(np.int64)
        lanes = lanes_between(topology, near, far)
        _, first, count = np.unique(lanes.row, return_index=True, return_counts=True)
        if len(first) < len(near):
            raise ValueError("a pair of NICs has no path: one of them has no port")
        up, down = lanes.up[first], lanes.down[first]
        begin, end = topology.link_target[up], topology.link_source[down]
        view = RoutingView(topology, topology.routes())
        way, _ = hash_segments(view, begin, end, np.zeros(len(near), np.uint64))
        if not way.is_routed.all():
            pair = int(np.argmin(way.is_routed))
            raise ValueError(f"no path from NIC {near[pair]} to NIC {far[pair]}")
        hop_pair = np.concatenate(
            (np.arange(len(near)), np.repeat(np.arange(len(near)), np.diff(way.offset)), np.arange(len(near)))
        )
        link = np.concatenate((up, way.bundle, down))
        delay = topology.link_latency_ns[link] + topology.switch_latency_ns[topology.link_source[link]]
        per_byte = BITS_PER_BYTE / topology.link_rate_gbps[link]
        slowest = np.zeros(len(near))
        np.maximum.at(slowest, hop_pair, per_byte)
        spread = count if settings.spreading == "spray" else np.ones(len(near))
        return cls(
            settings,
            sums(hop_pair, delay, len(near)),
            sums(hop_pair, per_byte, len(near)),
            slowest,
            spread.astype(np.float64),
        )

    def two_way(self) -> MessageTimes:
        """The same for NICs that receive as much as they send, and so acknowledge on the wires they send on."""
        return replace(self, answers=self.settings.answer_share)

    def sending_ns(self, size_bytes: ArrayLike) -> FloatArray:
        """Time the source's ports are busy with a message: what keeps the next one waiting."""
        size = np.asarray(size_bytes, np.float64)
        packets = np.ceil(size / self.settings.payload_bytes)
        wire = (size + packets * self.settings.overhead_bytes) * (1.0 + self.answers)
        return np.asarray(wire * self.slowest_ns_per_byte / self.lanes, np.float64)

    def time_ns(self, size_bytes: ArrayLike) -> FloatArray:
        """Time from posting a message to its completion, by the formula above.

        Args:
            size_bytes: payload, one size for all pairs or one each; 0: nothing is sent, and it takes no time.

        Returns:
            float64 (pairs,).
        """
        settings = self.settings
        size = np.asarray(size_bytes, np.float64)
        stored = np.minimum(size, settings.payload_bytes) + settings.overhead_bytes
        total = self.sending_ns(size) + stored * (self.wire_ns_per_byte - self.slowest_ns_per_byte)
        total = total + self.latency_ns + settings.host_latency_ns
        if settings.completion == "sender":
            total = total + self.latency_ns + settings.ack_bytes * self.wire_ns_per_byte
        return np.asarray(np.where(size > 0, total, 0.0), np.float64)


# -- many to one ------------------------------------------------------------------------------------------


def incast_ns(times: MessageTimes, size_bytes: ArrayLike) -> float:
    """Least time for messages of many senders to one receiver: its link carries them one after the other.

    `sum of the messages' times on the receiver's link + the shortest rest of a message's way`. No transport beats it;
    one that keeps the link busy and repeats nothing meets it.
    """
    busy = np.broadcast_to(times.sending_ns(size_bytes), times.latency_ns.shape)
    rest = times.time_ns(size_bytes) - busy
    return float(busy.sum() + rest.min())


# -- rings ------------------------------------------------------------------------------------------------


def chain_sums_ns(step_ns: FloatArray, steps: int) -> FloatArray:
    """Adds up what follows each other round a ring.

    Args:
        step_ns: float64 (members,), time from each member to the next.
        steps: number of hops a block makes.

    Returns:
        float64 (members,), time of a block that starts at each member.
    """
    laps, rest = divmod(steps, len(step_ns))
    around = np.concatenate(([0.0], np.cumsum(np.concatenate((step_ns, step_ns)))))
    start = np.arange(len(step_ns))
    return np.asarray(laps * step_ns.sum() + around[start + rest] - around[start], np.float64)


def ring_pass_ns(
    times: MessageTimes, block_bytes: ArrayLike, steps: int, *, step_delay_ns: float = 0.0
) -> float:
    """Time for blocks to make a number of hops round a ring, all starting at once, one at each member.

    Every flow waits for its left neighbour's flow of the step before alone, so that a block runs as fast as the hops it
    makes, and the slowest block decides: `max over blocks of the sum of its hops' times`. Where hops differ, blocks may
    catch up with each other, which costs extra if two of them then share a NIC.

    Args:
        times: of the pairs (member, next member), in the order of the ring.
        block_bytes: size of the blocks, one for all or one each.
        steps: hops of a block.
        step_delay_ns: between receiving a block and sending it on.
    """
    if steps <= 0:
        return 0.0
    size = np.broadcast_to(np.asarray(block_bytes, np.float64), times.latency_ns.shape)
    times, slowest = times.two_way(), 0.0
    for block in np.unique(size[size > 0]):
        around = chain_sums_ns(times.time_ns(block) + step_delay_ns, steps)
        slowest = max(slowest, float(around[size == block].max()) - step_delay_ns)
    return slowest


def ring_all_reduce_ns(times: MessageTimes, size_bytes: int, *, step_delay_ns: float = 0.0) -> float:
    """Time of a ring all-reduce: 2(n - 1) hops of blocks of 1/n of the vector (Patarasuk and Yuan, 2009).

    Args:
        times: of the pairs (member, next member), in the order of the ring.
        size_bytes: bytes of the vector.
        step_delay_ns: between receiving a block and sending it on.
    """
    members = len(times.latency_ns)
    longest = -(-size_bytes // members)
    return ring_pass_ns(times, longest, 2 * (members - 1), step_delay_ns=step_delay_ns)


def hierarchical_all_reduce_ns(
    within: MessageTimes,
    across: MessageTimes,
    size_bytes: int,
    *,
    group_size: int,
    num_groups: int,
    step_delay_ns: float = 0.0,
) -> float:
    """Time of an all-reduce within groups, across them, and within again.

    `(g - 1)` hops of `size / g` bytes within a group, `2 (G - 1)` hops of `size / (g G)` across, `(g - 1)` within.
    The parts of a shard go their own ways, so that this is an upper bound where hops within a group differ.

    Args:
        within: of the pairs (member, next member) of one group.
        across: of the pairs (member, the same member of the next group) of one ring of groups.
        size_bytes: bytes of the vector.
        group_size: members of a group.
        num_groups: groups.
        step_delay_ns: between receiving a block and sending it on.
    """
    shard = -(-size_bytes // group_size)
    inside = (
        ring_pass_ns(within, shard, group_size - 1, step_delay_ns=step_delay_ns) if group_size > 1 else 0.0
    )
    outside = 0.0
    if num_groups > 1:
        outside = ring_pass_ns(
            across, -(-shard // num_groups), 2 * (num_groups - 1), step_delay_ns=step_delay_ns
        )
    joints = (int(inside > 0) + int(inside > 0 and outside > 0)) * step_delay_ns
    return 2.0 * inside + outside + joints


# -- trees ------------------------------------------------------------------------------------------------


def tree_all_reduce_ns(
    times: MessageTimes, size_bytes: int, *, members: int, step_delay_ns: float = 0.0
) -> float:
    """Time of a reduction and a broadcast along a binomial tree: `2 ceil(log2 n)` messages of the whole vector.

    The slowest pair stands for each round: an upper bound where pairs differ.
    """
    rounds = 2 * math.ceil(math.log2(members)) if members > 1 else 0
    return _rounds_ns(times, size_bytes, rounds, step_delay_ns)


def recursive_doubling_ns(
    times: MessageTimes, size_bytes: int, *, members: int, step_delay_ns: float = 0.0
) -> float:
    """Time of recursive doubling: `log2 n` exchanges of the whole vector, and two more unless n is a power of 2.

    In an exchange both sides send and receive.

    The slowest pair stands for each round: an upper bound where pairs differ.
    """
    rounds = math.floor(math.log2(members)) + (0 if members & (members - 1) == 0 else 2)
    return _rounds_ns(times.two_way(), size_bytes, rounds, step_delay_ns)


def _rounds_ns(times: MessageTimes, size_bytes: int, rounds: int, step_delay_ns: float) -> float:
    if not rounds:
        return 0.0
    return rounds * float(times.time_ns(size_bytes).max()) + (rounds - 1) * step_delay_ns


# -- all to all -------------------------------------------------------------------------------------------


def all_to_all_ns(times: MessageTimes, block_bytes: int, *, members: int) -> float:
    """Least time for every member to send a block to each other one, all at once.

    `(n - 1) * a block's time on a NIC's ports + the rest of the longest way`: a NIC sends and receives n - 1 blocks,
    one after the other or all at the same time.
    """
    if members < 2:
        return 0.0
    times = times.two_way()
    busy = float(times.sending_ns(block_bytes).max())
    rest = float((times.time_ns(block_bytes) - times.sending_ns(block_bytes)).max())
    return (members - 1) * busy + rest


def ring_pairs(members: Sequence[int] | NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Returns sources and targets of a ring's hops, in its order."""
    source = np.asarray(members, np.int64)
    return source, np.roll(source, -1)
