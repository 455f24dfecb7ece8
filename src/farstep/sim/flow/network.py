"""The network under flows: which constraint each row loads, in its present state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.flow.bundles import BundleTable, Constraints, constraints_of
from farstep.sim.flow.collisions import Noise
from farstep.sim.flow.faults import NetworkState
from farstep.sim.flow.plan import FlowPlan
from farstep.sim.flow.queues import aligned_paths
from farstep.sim.flow.ragged import gather_rows, offsets_of, sums
from farstep.sim.flow.rows import BITS_PER_BYTE, Rows
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
        goodput: float64 (rows,), part of what is sent that counts; where senders are followed step by step, what gets
            past dead links.
        hazard: float64 (rows,), of a packet, to be lost by links that lose some: minus the logarithm of what is left.
        limit: float64 (rows,), most a part of a flow may send, Gb/s; 0: it has no way.
        alone: float64 (rows,), rate on an empty network.
        answered: bool (rows,), whether acknowledgements arrive; where senders are followed step by step.
        answer_hazard: float64 (rows,), of an acknowledgement, as `hazard`.
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
        self.table = BundleTable(topology.num_links)
        self._view = RoutingView(topology, topology.routes())
        actions, lead_ns, later = list(actions), None, []
        if actions and plan.settings.rival is not None:
            lead_ns, later = self._leads_ns(), actions
        self.state = NetworkState(topology, plan.settings, actions, lead_ns)
        self.state.advance(0.0)
        self._answer_view = self._view
        self._answer_state = NetworkState(topology, plan.settings, self._as_answered(later))
        self._answer_state.advance(0.0)
        self._carried = np.zeros(0)
        self.for_data = self._rate_for_data()
        self.link_bits = np.zeros(topology.num_links)
        self.reroute()
        self._find_answers()

    @property
    def next_ns(self) -> float:
        """Time of the next moment at which something happens to links; infinity if there is none."""
        return min(self.state.next_ns, self._answer_state.next_ns)

    def advance(self, time_ns: float) -> None:
        """Carries out what happens to links up to a time."""
        if self._answer_state.next_ns <= time_ns:
            self._answer_state.advance(time_ns)
            self._find_answers()
        if self.state.next_ns <= time_ns:
            if self.state.advance(time_ns):
                self.reroute()
            else:
                self.reload()

    def reroute(self) -> None:
        """Finds all ways again, after links died, came back or were noticed to have."""
        self._flush()
        self._view = self._seen(self._view, self.state)
        self.rows = self.plan.rows(self._view, self.table)
        self._carried = np.zeros(len(self.table))
        self.reload()

    def _seen(self, view: RoutingView, state: NetworkState) -> RoutingView:
        """Brings a view up to date with the state of links."""
        settings = self.plan.settings
        weight = state.rate_factor**settings.balancing
        if settings.failover == "reconverge":
            without = np.flatnonzero(~state.is_used & ~self._is_at_nic())
            routes = self.topology.routes(without_links=without) if len(without) else self.topology.routes()
            if routes is not view.routes:
                view = RoutingView(self.topology, routes)
            at_nic = ~state.is_used & self._is_at_nic()
            weight[at_nic] = 0.0
        else:
            weight[~state.is_used] = 0.0
        return view.updated(weight, state.is_alive.copy(), self.topology.link_latency_ns + state.extra_ns)

    def _as_answered(self, actions: list[LinkAction]) -> list[LinkAction]:
        """Actions in the time of the packets whose answers meet them, which leave on one way's time before."""
        if not actions:
            return []
        settings, rows = self.plan.settings, self.rows
        packet = settings.payload_bytes + settings.overhead_bytes
        ways = rows.latency_ns + settings.host_latency_ns + rows.wire_ns_per_byte * packet
        way_ns = math.ceil(ways.max(initial=0.0))
        return [replace(action, time_ns=max(action.time_ns - way_ns, 0)) for action in actions]

    def _find_answers(self) -> None:
        state, count = self._answer_state, len(self.rows.survival)
        self.answered, self.answer_hazard = np.ones(count, np.bool_), np.zeros(count)
        if not state.is_eventful:
            return
        self._answer_view = self._seen(self._answer_view, state)
        rows = self.plan.answers(self._answer_view, self.table)
        self.answered = rows.is_routed & (rows.survival > 0.0)
        if state.loss.any():
            self.answer_hazard = sums(rows_of(rows), _hazard(state)[rows.bundle], count)

    def single_paths(self) -> IntArray:
        """Links of rows that have one path each, int64 (rows, columns), as `aligned_paths` puts them."""
        topology, rows = self.topology, self.rows
        source = np.maximum(self.plan.row_source, 0)
        ends = (topology.link_source.astype(np.int64), topology.link_target.astype(np.int64))
        return aligned_paths(rows.bundle, rows.offset, source, ends, topology.node_tier.astype(np.int64))

    def _leads_ns(self) -> FloatArray:
        """How long full packets are under way when they come to links, at least; 0 for links without traffic."""
        topology = self.topology
        self.rows = self.plan.rows(self._view, self.table)
        paths = self.single_paths()
        wire = self._packet_bits() / topology.link_rate_gbps
        switch = topology.switch_latency_ns[topology.link_source]
        hop = np.append(topology.link_latency_ns + switch + wire, 0.0)[paths]
        into = np.cumsum(hop, axis=1) - hop + np.append(switch, 0.0)[paths]
        lead = np.full(topology.num_links + 1, np.inf)
        np.minimum.at(lead, paths, into)
        return np.where(np.isfinite(lead), lead, 0.0)[:-1]

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
        row = rows_of(rows)[entry]
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
        self.hazard = np.zeros(len(rows.survival))
        if not self.state.loss.any():
            return rows.survival
        if settings.rival is not None:
            self.hazard = sums(rows_of(rows), _hazard(self.state)[rows.bundle], len(rows.survival))
            return rows.survival
        owner, link, share = self.table.expand(bundles)
        lost = sums(owner, share * self.state.loss[link], len(bundles))
        loss = sums(rows_of(rows), rows.share * lost[inverse], len(rows.survival))
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


def _hazard(state: NetworkState) -> FloatArray:
    """Of a packet, to be lost by each link: minus the logarithm of the share that passes."""
    return np.asarray(-np.log1p(-np.minimum(state.loss, 1.0 - 1e-12)), np.float64)


def rows_of(rows: Rows) -> IntArray:
    """The row of each entry."""
    return np.repeat(np.arange(len(rows.survival)), np.diff(rows.offset))
