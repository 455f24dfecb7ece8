"""The network under flows: which constraint each row loads, in its present state."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.flow.bundles import BundleTable, Constraints, constraints_of
from farstep.sim.flow.collisions import Noise
from farstep.sim.flow.faults import NetworkState
from farstep.sim.flow.plan import FlowPlan
from farstep.sim.flow.ragged import gather_rows, offsets_of, sums
from farstep.sim.flow.rows import BITS_PER_BYTE
from farstep.sim.flow.walk import RoutingView
from farstep.sim.flow.waterfill import LoadMatrix

__all__ = ["FlowNetwork"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


RATE_GBPS_MIN = 1e-6
"""Rate as which that of a link that carries nothing enters the time of a packet."""


class FlowNetwork:
    """Rows of a plan over a network, kept up to date with its faults.

    Args:
        topology: the network.
        plan: whose rows.
        actions: faults.
        noise: None: no deviations.

    Attributes:
        state: links as they are and as senders take them to be.
        rows: ways at present.
        matrix: constraints each row loads.
        capacity: float64 (constraints,), Gb/s.
        can_fill: bool (constraints,), False if NICs cannot send or receive enough to fill it.
        tight_matrix: `matrix` without the constraints that cannot be filled.
        width: int64 (constraints,), links each stands for; 1: nothing to spread over.
        packet_ns: float64 (constraints,), time of a full packet on one of its links.
        deviation: float64 (constraints,), how far its queues are from their mean, in standard deviations; None: they
            are at their mean.
        enters_nic: bool (constraints,), whether its links lead to a NIC.
        goodput: float64 (rows,), part of what is sent that counts.
        limit: float64 (rows,), most a part of a flow may send, Gb/s; 0: it has no way.
        alone: float64 (rows,), rate on an empty network.
        for_data: float64 (links,), part of each link's rate that acknowledgements leave.
        tail_ns: float64 (rows,), latency one way without store-and-forward.
        back_ns: float64 (rows,), time of an acknowledgement.
        queue_packets: longest queue a hop grows to.
    """

    def __init__(
        self,
        topology: Topology,
        plan: FlowPlan,
        actions: Iterable[LinkAction] = (),
        noise: Noise | None = None,
    ) -> None:
        self.topology = topology
        self._noise = noise
        self.plan = plan
        self.state = NetworkState(topology, plan.settings, actions)
        self.state.advance(0.0)
        self.table = BundleTable(topology.num_links)
        self._view = RoutingView(topology, topology.routes())
        self._carried = np.zeros(0)
        self.for_data = self._rate_for_data()
        self.link_bits = np.zeros(topology.num_links)
        self.reroute()

    def reroute(self) -> None:
        """Finds all ways again, after links died, came back or were noticed to have."""
        self._flush()
        state, settings = self.state, self.plan.settings
        weight = state.rate_factor**settings.balancing
        view = self._view
        if settings.failover == "reconverge":
            without = np.flatnonzero(~state.is_used)
            routes = self.topology.routes(without_links=without) if len(without) else self.topology.routes()
            if routes is not view.routes:
                view = RoutingView(self.topology, routes)
            at_nic = ~state.is_used & self._is_at_nic()
            weight[at_nic] = 0.0
        else:
            weight[~state.is_used] = 0.0
        self._view = view.updated(
            weight, state.is_alive.copy(), self.topology.link_latency_ns + state.extra_ns
        )
        self.rows = self.plan.rows(self._view, self.table)
        self._carried = np.zeros(len(self.table))
        self.reload()

    def _rate_for_data(self) -> FloatArray:
        """Part of each link's rate that acknowledgements leave: NICs that send and receive answer on the same wire."""
        topology, plan = self.topology, self.plan
        does_both = np.zeros(topology.num_nodes, np.bool_)
        real = plan.row_source >= 0
        does_both[np.intersect1d(plan.row_source[real], plan.row_target[real])] = True
        answered = does_both[topology.link_source] | does_both[topology.link_target]
        return np.where(answered, 1.0 / (1.0 + plan.settings.answer_share), 1.0)

    def _is_at_nic(self) -> NDArray[np.bool_]:
        topology = self.topology
        return np.asarray(
            (topology.link_source < topology.num_nics) | (topology.link_target < topology.num_nics)
        )

    def reload(self) -> None:
        """Sets capacities and what depends on them, after rates or losses changed."""
        rows, settings, state = self.rows, self.plan.settings, self.state
        bundles, inverse = np.unique(rows.bundle, return_inverse=True)
        found = constraints_of(self.table, bundles, state.rates_gbps() * self.for_data)
        self._set_matrix(found, inverse)
        self.width = found.width
        self.packet_ns = self._packet_bits() / np.maximum(found.rate_gbps, RATE_GBPS_MIN)
        places = self._places(found, bundles)
        self.deviation = self._noise.at(places, 1) if self._noise else None
        self.enters_nic = self.topology.link_target[places] < self.topology.num_nics
        self.tail_ns = rows.latency_ns + settings.host_latency_ns
        self.back_ns = rows.latency_ns + rows.wire_ns_per_byte * settings.ack_bytes
        self.queue_packets = settings.queue_packets or self._delay_product_packets()
        self.capacity = found.capacity_gbps
        least = np.full(len(rows.survival), np.inf)
        with np.errstate(divide="ignore"):
            room = self.capacity[self.matrix.constraint] / self.matrix.share
        np.minimum.at(least, self.matrix.owners(), room)
        self.goodput = self._goodput(bundles, inverse)
        self.can_fill = self._can_fill(found, bundles)
        kept = self.can_fill[self.matrix.constraint]
        length = sums(self.matrix.owners(), kept.astype(np.float64), self.matrix.num_flows).astype(np.int64)
        self.tight_matrix = LoadMatrix(
            offsets_of(length), self.matrix.constraint[kept], self.matrix.share[kept]
        )
        self.limit = self._limits()
        self.alone = np.minimum(least, self.limit)

    def _set_matrix(self, found: Constraints, inverse: IntArray) -> None:
        rows = self.rows
        position, entry = gather_rows(found.bundle_offset, inverse)
        row = np.repeat(np.arange(len(rows.survival)), np.diff(rows.offset))[entry]
        share = rows.share[entry] * found.entry_share[position]
        offset = offsets_of(np.bincount(row, minlength=len(rows.survival)))
        self.matrix = LoadMatrix(offset, found.entry_constraint[position], share)

    def _packet_bits(self) -> float:
        settings = self.plan.settings
        return float(BITS_PER_BYTE * (settings.payload_bytes + settings.overhead_bytes))

    def _delay_product_packets(self) -> float:
        """Packets in flight on the longest way of all, at the rate of one of its links."""
        rows = self.rows
        hops = np.maximum(np.diff(rows.offset), 1)
        per_byte = rows.wire_ns_per_byte / hops
        if not (per_byte > 0).any():
            return 1.0
        worst = int(np.argmax(rows.latency_ns))
        packet_ns = max(per_byte[worst], 1e-9) * self._packet_bits() / BITS_PER_BYTE
        return float(max(2.0 * rows.latency_ns[worst] / packet_ns, 1.0))

    def _can_fill(self, found: Constraints, bundles: IntArray) -> NDArray[np.bool_]:
        """Finds the constraints that NICs may fill: on a fabric without oversubscription, those of NICs alone."""
        topology, matrix = self.topology, self.matrix
        rates = self.state.rates_gbps() * self.for_data
        ports = topology.ports
        row = matrix.owners()
        can_fill = np.ones(len(self.capacity), np.bool_)
        ends = [(self.plan.row_source, ports.link)]
        if (self.goodput >= 1.0).all():
            ends.append((self.plan.row_target, ports.link ^ 1))
        for nic, links in ends:
            most = sums(ports.nic, rates[links], topology.num_nics)
            key = matrix.constraint * topology.num_nics + np.maximum(nic[row], 0)
            distinct, inverse = np.unique(key, return_inverse=True)
            share = np.zeros(len(distinct))
            np.maximum.at(share, inverse, matrix.share)
            constraint, end = distinct // topology.num_nics, distinct % topology.num_nics
            can_fill &= sums(constraint, most[end] * share, len(can_fill)) > self.capacity * (1.0 + 1e-9)
        can_fill[found.num_own :] = True
        position, which = gather_rows(found.bundle_offset, np.arange(len(bundles)))
        at_nic = (bundles < topology.num_links) & self._is_at_nic()[
            np.minimum(bundles, topology.num_links - 1)
        ]
        can_fill[found.entry_constraint[position[at_nic[which]]]] = True
        return can_fill

    def _places(self, found: Constraints, bundles: IntArray) -> IntArray:
        """Names constraints by a link of theirs, so that the same links deviate alike whoever uses them."""
        place = np.zeros(len(found.capacity_gbps), np.int64)
        owner, link, _ = self.table.expand(bundles)
        lowest = np.full(len(bundles), np.iinfo(np.int64).max)
        np.minimum.at(lowest, owner, link)
        which = np.repeat(np.arange(len(bundles)), np.diff(found.bundle_offset))
        place[found.entry_constraint] = lowest[which]
        return place

    def _goodput(self, bundles: IntArray, inverse: IntArray) -> FloatArray:
        rows, settings = self.rows, self.plan.settings
        if not self.state.loss.any():
            return rows.survival
        owner, link, share = self.table.expand(bundles)
        lost = sums(owner, share * self.state.loss[link], len(bundles))
        row = np.repeat(np.arange(len(rows.survival)), np.diff(rows.offset))
        loss = sums(row, rows.share * lost[inverse], len(rows.survival))
        loss = np.minimum(loss, 1.0)
        if settings.loss_response == "selective":
            return np.asarray(rows.survival * (1.0 - loss), np.float64)
        # Each lost packet takes the rest of a window with it (Bertsekas and Gallager, "Data Networks", section 2.4).
        window = max(1.0, settings.window_rtts * self._delay_product_packets())
        return np.asarray(rows.survival * (1.0 - loss) / (1.0 - loss + loss * window), np.float64)

    def _limits(self) -> FloatArray:
        rows, settings = self.rows, self.plan.settings
        limit = np.full(len(rows.survival), np.inf)
        if settings.window_bytes is not None:
            packet = self._packet_bits() / BITS_PER_BYTE
            round_trip = 2.0 * rows.latency_ns + rows.wire_ns_per_byte * (packet + settings.ack_bytes)
            limit = settings.window_bytes * BITS_PER_BYTE / np.maximum(round_trip, 1.0)
        limit[~rows.is_routed | (self.goodput <= 0.0)] = 0.0
        return limit

    # -- what was carried ----------------------------------------------------------------------------------

    def carry(self, rows: IntArray, bits: FloatArray) -> None:
        """Counts bits that parts of flows sent over their present rows."""
        position, owner = gather_rows(self.rows.offset, rows)
        np.add.at(self._carried, self.rows.bundle[position], bits[owner] * self.rows.share[position])

    def _flush(self) -> None:
        used = np.flatnonzero(self._carried)
        if not len(used):
            return
        owner, link, share = self.table.expand(used)
        self.link_bits += sums(link, share * self._carried[used][owner], len(self.link_bits))
        self._carried[:] = 0.0

    def link_bytes(self) -> IntArray:
        """Bytes each link carried, headers and the acknowledgements of its other direction counted, int64 (links,)."""
        self._flush()
        other = self.link_bits[np.arange(len(self.link_bits)) ^ 1]
        bits = self.link_bits + self.plan.settings.answer_share * other
        return np.asarray(np.rint(bits / BITS_PER_BYTE), np.int64)
