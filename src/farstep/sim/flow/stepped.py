"""A simulation at the flow level in which senders and queues are followed step by step.

Rates that are fair at once are not what hashed transports reach within a flow: they begin at their line's rate or with
a small window, hear of queues a round trip later, and react by rules with time constants of their own. Here rates last
for a quarter of a round trip. What is let out in that time flows through the queues in front of the links of its path
(`farstep.sim.flow.queues`), and senders learn a round trip later what became of it (`farstep.sim.flow.senders`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.queues import DONE_BITS, LinkQueues, aligned_paths
from farstep.sim.flow.rows import BITS_PER_BYTE
from farstep.sim.flow.run import FlowRun
from farstep.sim.flow.senders import Dcqcn, Feedback, Senders
from farstep.sim.flow.series import RateSeries
from farstep.sim.flow.tcp import TcpSenders
from farstep.sim.result import SimResult
from farstep.sim.rivals import RoceKnobs, TcpKnobs

__all__ = ["SteppedRun"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STEPS_PER_ROUND_TRIP = 4
STEPS_PER_FLOW = 100
"""Of the shortest flow at line rate, at least, where steps are longer than a quarter of a round trip."""


class SteppedFlows:
    """Parts of flows that are under way, in columns; those of `ActiveFlows` that others need, and queues.

    Args:
        network: what they share.
        senders: their state.
        names: uint64 (tasks,), of the tasks.
        series: where what arrives is added up; None: nowhere.
        seed: draws which packets are lost.
    """

    def __init__(
        self,
        network: FlowNetwork,
        senders: Senders,
        names: NDArray[np.uint64],
        series: RateSeries | None = None,
        seed: int = 0,
    ) -> None:
        self._network, self._senders, self._names, self._series = network, senders, names, series
        settings, topology = network.plan.settings, network.topology
        self.packet_bits = BITS_PER_BYTE * (settings.payload_bytes + settings.overhead_bytes)
        self.round_trip_ns = round_trips_ns(network)
        round_trips = self.round_trip_ns
        self.base_rtt_ns = float(round_trips.max(initial=1.0))
        product = topology.link_rate_gbps * self.base_rtt_ns
        product = np.append(product, 1e18)
        low, high = settings.ecn_min_bytes, settings.ecn_max_bytes
        self._mark_low = 0.2 * product if low is None else np.full(len(product), BITS_PER_BYTE * low)
        self._mark_high = 0.8 * product if high is None else np.full(len(product), BITS_PER_BYTE * high)
        self._mark_high = np.maximum(self._mark_high, self._mark_low + self.packet_bits)
        self._set_paths()
        self._queues = _queues_of(network, self.packet_bits, product[:-1], self._columns, seed)
        self.now_ns = 0.0
        self.fills = 0
        self.lost_bits = np.zeros(len(names))
        self.task = self.row = np.zeros(0, np.int64)
        self.begin_ns = self.left = self.unsent = self._counted = self._clock_ns = np.zeros(0)
        self._queues.set_rate(network.state.rates_gbps() * network.for_data)
        self.path = self._paths[:, self.row]

    def __len__(self) -> int:
        return len(self.task)

    def _set_paths(self) -> None:
        network = self._network
        rows, topology = network.rows, network.topology
        source = np.maximum(network.plan.row_source, 0)
        ends = (topology.link_source.astype(np.int64), topology.link_target.astype(np.int64))
        ordered = aligned_paths(rows.bundle, rows.offset, source, ends, topology.node_tier.astype(np.int64))
        self._paths = np.ascontiguousarray(ordered.T)
        self._columns = len(self._paths)

    def add(self, task: IntArray, row: IntArray, begin_ns: FloatArray, bits: FloatArray) -> None:
        """Adds parts that begin to send at or before the end of the coming step."""
        line = self._network.topology.link_rate_gbps[np.minimum(self._paths[0, row], self._num_links - 1)]
        part = np.arange(len(task)) - np.searchsorted(task, task) if len(task) > 1 else np.zeros(1, np.int64)
        with np.errstate(over="ignore"):
            names = self._names[task] + part.astype(np.uint64)
        self._senders.add(names, line, self.round_trip_ns[row], row)
        self.task = np.concatenate((self.task, task))
        self.row = np.concatenate((self.row, row))
        self.begin_ns = np.concatenate((self.begin_ns, begin_ns))
        self._clock_ns = np.concatenate((self._clock_ns, begin_ns))
        self.left = np.concatenate((self.left, bits))
        self.unsent = np.concatenate((self.unsent, bits))
        self._counted = np.concatenate((self._counted, bits))
        self._queues.add(len(task))
        self.path = self._paths[:, self.row]

    @property
    def _num_links(self) -> int:
        return self._network.topology.num_links

    def step(self, end_ns: float) -> tuple[IntArray, FloatArray]:
        """Goes on to a time; returns the parts whose last bit came through, and when."""
        self.fills += 1
        span = end_ns - self.now_ns
        lasting = end_ns - self._clock_ns
        goodput = self._network.goodput[self.row]
        can_send = self._network.limit[self.row] > 0.0
        able = self._senders.offer(self.now_ns, lasting) * can_send
        offered = np.minimum(able, self.unsent)
        sent, arrived, lost = self._queues.move(self.path, offered, span)
        self.unsent -= sent
        bad = arrived * (1.0 - goodput)
        arrived, lost = arrived - bad, lost + bad
        self.left = self.left - arrived
        if self._series is not None:
            self._series.pass_time(self.row, arrived / np.maximum(goodput, 1e-9) / span, self.now_ns, end_ns)
        np.add.at(self.lost_bits, self.task, lost)
        self.unsent += self._senders.learn(
            Feedback(
                self.now_ns, end_ns, sent, arrived, lost, self.unsent, self._mark_share(), self._delay_ns()
            )
        )
        ending = np.flatnonzero(self.left <= DONE_BITS)
        sending = np.minimum(sent[ending] / np.maximum(able[ending], DONE_BITS), 1.0) * lasting[ending]
        finish = np.maximum(
            self._clock_ns[ending] + sending, self.now_ns + span * self._queues.through(ending)
        )
        self.now_ns = end_ns
        self._clock_ns = np.full(len(self.task), end_ns)
        return ending, np.minimum(finish, end_ns)

    def _mark_share(self) -> FloatArray:
        depth = self._queues.depth
        share = np.clip((depth - self._mark_low) / (self._mark_high - self._mark_low), 0.0, 1.0 - 1e-9)
        share[-1] = 0.0
        if not share.any():
            return np.zeros(len(self.task))
        return np.asarray(-np.expm1(np.log1p(-share)[self.path].sum(axis=0)), np.float64)

    def _delay_ns(self) -> FloatArray:
        wait = self._queues.depth / self._queues.rate
        return np.asarray(wait[self.path].sum(axis=0), np.float64)

    def remove(self, index: IntArray) -> None:
        """Takes parts out."""
        self._count(index)
        kept = np.ones(len(self.task), np.bool_)
        kept[index] = False
        self._senders.keep(kept, self.row)
        self.task, self.row, self.begin_ns = self.task[kept], self.row[kept], self.begin_ns[kept]
        self._clock_ns = self._clock_ns[kept]
        self.left, self.unsent, self._counted = self.left[kept], self.unsent[kept], self._counted[kept]
        self.path = self.path[:, kept]
        self._queues.keep(kept)

    def _count(self, index: IntArray) -> None:
        self._network.carry(self.row[index], self._counted[index] - np.maximum(self.left[index], 0.0))
        self._counted[index] = np.maximum(self.left[index], 0.0)

    def count_all(self) -> None:
        """Books everything that arrived so far, before ways change."""
        self._count(np.arange(len(self.task)))

    def advance(self, time_ns: float) -> None:
        """Does nothing: steps end where they are asked to."""

    def rebind(self) -> None:
        """Goes over to ways that changed; what waited on the old ones is sent again."""
        self._set_paths()
        self._queues.set_rate(self._network.state.rates_gbps() * self._network.for_data)
        self.unsent = self.unsent + self._queues.clear(self._columns)
        self.path = self._paths[:, self.row]
        if self._series is not None:
            self._series.rebind()


def round_trips_ns(network: FlowNetwork) -> FloatArray:
    """Round trip of each row on an idle network: out with a full packet, back with an answer."""
    settings, rows = network.plan.settings, network.rows
    packet = settings.payload_bytes + settings.overhead_bytes
    wire = rows.wire_ns_per_byte * (packet + settings.ack_bytes)
    return np.asarray(2.0 * (rows.latency_ns + settings.host_latency_ns) + wire, np.float64)


def _queues_of(
    network: FlowNetwork, packet_bits: float, product: FloatArray, columns: int, seed: int
) -> LinkQueues:
    settings, topology = network.plan.settings, network.topology
    rates = network.state.rates_gbps()
    knobs = settings.rival
    if isinstance(knobs, RoceKnobs) and knobs.pfc:
        # Between the two thresholds, as traffic stops and goes on.
        pause = 0.5 * (knobs.xoff_packets + knobs.xon_packets) * packet_bits
        return LinkQueues(rates, columns, packet_bits=packet_bits, pause=pause)
    limit = np.where(topology.link_target < topology.num_nics, 1.5, 1.0) * product
    if settings.queue_packets is not None:
        limit = np.full(len(product), settings.queue_packets * packet_bits)
    return LinkQueues(rates, columns, packet_bits=packet_bits, limit=limit, seed=seed)


class SteppedRun(FlowRun):
    """As `FlowRun`, with senders that have a state and links that have queues."""

    def until(self, end_ns: float) -> SimResult:
        """Simulates up to a time."""
        active = self._stepped()
        self._schedule(*self._order.begin())
        state = self._network.state
        step_ns = self._step_ns()
        while self._starts or len(active):
            if not len(active):
                active.now_ns = max(active.now_ns, min(self._starts[0][0], state.next_ns, end_ns))
            moment = min(active.now_ns + step_ns, end_ns)
            if state.next_ns <= active.now_ns:
                self._apply_faults(state.next_ns)
                continue
            moment = min(moment, state.next_ns)
            if active.now_ns >= end_ns:
                break
            self._take_in(moment)
            if len(active) and not self._starts and self._is_stuck(active):
                if not np.isfinite(state.next_ns):
                    raise self._stalled()
                moment = max(moment, min(state.next_ns, end_ns))
            ending, finish = active.step(moment)
            self._num_events += len(ending)
            if len(ending):
                self._end(ending, finish)
            if self._on_progress is not None:
                self._tell(self._on_progress)
        return self._result(end_ns)

    def _stepped(self) -> SteppedFlows:
        knobs = self._settings.rival
        packet_bits = BITS_PER_BYTE * (self._settings.payload_bytes + self._settings.overhead_bytes)
        trips = round_trips_ns(self._network)
        senders: Senders
        if isinstance(knobs, RoceKnobs):
            senders = Dcqcn(knobs, packet_bits, len(trips))
        else:
            assert isinstance(knobs, TcpKnobs)
            senders = TcpSenders(knobs, packet_bits, self._step_ns(), len(trips))
        names = self._plan.names(self._tasks)
        active = SteppedFlows(self._network, senders, names, self._series, self._seed)
        self._active = active  # type: ignore[assignment]
        return active

    def _step_ns(self) -> float:
        """A quarter of a round trip, up to all of it where flows are so long that they take many."""
        trip = float(round_trips_ns(self._network).max(initial=1.0))
        is_flow = self._tasks.is_flow
        bits = self._plan.wire_bits[is_flow] * self._plan.parts
        shortest = float(bits.min(initial=np.inf)) / float(self._topology.link_rate_gbps.max())
        return float(np.clip(shortest / STEPS_PER_FLOW, trip / STEPS_PER_ROUND_TRIP, trip))

    def _take_in(self, moment: float) -> None:
        flows, starts = self._pop_starts(moment)
        self._num_events += len(flows)
        if len(flows):
            self._begin(flows, starts)

    def _is_stuck(self, active: SteppedFlows) -> bool:
        blocked = (self._network.limit[active.row] <= 0.0) | (self._network.goodput[active.row] <= 0.0)
        return bool(blocked.all())
