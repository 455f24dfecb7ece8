"""A simulation at the flow level in which senders and queues are followed step by step.

Rates that are fair at once are not what hashed transports reach within a flow: they begin at their line's rate or with
a small window, hear of queues a round trip later, and react by rules with time constants of their own. Here rates last
for a quarter of a round trip. What is let out in that time flows through the queues in front of the links of its path
(`farstep.sim.flow.queues`), and senders learn a round trip later what became of it (`farstep.sim.flow.senders`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.queues import DONE_BITS, LinkQueues
from farstep.sim.flow.ragged import scramble
from farstep.sim.flow.repairs import Arrivals, GoBack, Repair, Selective
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
        repair: what becomes of packets that dead and lossy links swallow; None: nothing happens to links.
        names: uint64 (tasks,), of the tasks.
        behind: bits of a part of each message that waits for a task's connection.
        series: where what arrives is added up; None: nowhere.
        seed: draws which packets are lost.
    """

    def __init__(
        self,
        network: FlowNetwork,
        senders: Senders,
        repair: Repair | None,
        names: NDArray[np.uint64],
        behind: Callable[[int], float],
        series: RateSeries | None = None,
        seed: int = 0,
    ) -> None:
        self._network, self._senders, self._names, self._series = network, senders, names, series
        self._repair, self._behind, self._salt = repair, behind, scramble(np.array([seed]), 40)
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
        self.lost_bits, self.refused_bits, self.declared_bits = (np.zeros(len(names)) for _ in range(3))
        self.task = self.row = np.zeros(0, np.int64)
        self.begin_ns = self.left = self.unsent = self._counted = self._clock_ns = np.zeros(0)
        self._in_vain, self._vanished, self._strayed = (np.zeros(0) for _ in range(3))
        self._set_rates()
        self.path = self._paths[:, self.row]

    def __len__(self) -> int:
        return len(self.task)

    def _set_paths(self) -> None:
        self._paths = np.ascontiguousarray(self._network.single_paths().T)
        self._columns = len(self._paths)

    def _set_rates(self) -> None:
        """Sets the rates of links. A switch drops at once what it has for a dead one; a NIC does not know and sends."""
        network, topology = self._network, self._network.topology
        rates = network.state.rates_gbps() * network.for_data
        drops = ~network.state.is_alive & (topology.link_source >= topology.num_nics)
        self._queues.set_rate(np.where(drops, np.inf, rates))

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
        nothing = np.zeros(len(task))
        self._in_vain = np.concatenate((self._in_vain, nothing))
        self._vanished = np.concatenate((self._vanished, nothing))
        self._strayed = np.concatenate((self._strayed, nothing))
        if self._repair is not None:
            self._repair.add(names ^ self._salt, bits, self.round_trip_ns[row])
        self.path = self._paths[:, self.row]

    @property
    def _num_links(self) -> int:
        return self._network.topology.num_links

    def step(self, end_ns: float) -> tuple[IntArray, FloatArray]:
        """Goes on to a time; returns the parts whose last bit came through, and when."""
        self.fills += 1
        span = end_ns - self.now_ns
        lasting = end_ns - self._clock_ns
        able = self._senders.offer(self.now_ns, lasting) * self._network.rows.is_routed[self.row]
        if self._repair is not None:
            able = self._held_back(able, self._repair)
        offered = np.minimum(able, self._to_send())
        sent, came, lost = self._queues.move(self.path, offered, span)
        self._book_sent(sent)
        taken, refused, swallowed = came, None, None
        if self._repair is not None:
            taken, refused, swallowed = self._sort(self._repair, came, end_ns)
        self.left = self.left - taken
        seen = self._feedback(end_ns, sent, taken, lost, refused, swallowed)
        self.unsent += self._senders.learn(seen)
        ending = np.flatnonzero(self.left <= DONE_BITS)
        sending = np.minimum(sent[ending] / np.maximum(able[ending], DONE_BITS), 1.0) * lasting[ending]
        finish = np.maximum(
            self._clock_ns[ending] + sending, self.now_ns + span * self._queues.through(ending)
        )
        self.now_ns = end_ns
        self._clock_ns = np.full(len(self.task), end_ns)
        return ending, np.minimum(finish, end_ns)

    def _feedback(
        self,
        end_ns: float,
        sent: FloatArray,
        taken: FloatArray,
        lost: FloatArray,
        refused: FloatArray | None,
        swallowed: FloatArray | None,
    ) -> Feedback:
        """Books a step, and says what senders come to know of it."""
        repair, arrived, fates = self._repair, taken, None
        waiting = answered = passes = None
        span = end_ns - self.now_ns
        np.add.at(self.lost_bits, self.task, lost)
        np.add.at(self.declared_bits, self.task, lost)
        moved = taken
        if repair is not None and refused is not None and swallowed is not None:
            np.add.at(self.lost_bits, self.task, swallowed)
            np.add.at(self.refused_bits, self.task, refused)
            self._in_vain += refused + swallowed
            moved = taken + refused + swallowed
            network, row = self._network, self.row
            answered, passes = network.answered[row], network.goodput[row] > 0.0
            if swallowed.any() or refused.any():
                fates = (taken.sum() / span, (lost.sum() + swallowed.sum()) / span)
            if repair.is_told:
                np.add.at(self.declared_bits, self.task, swallowed)
                waiting = np.where(swallowed > DONE_BITS, self._queues.held(), 0.0)
                lost = lost + swallowed
            else:
                arrived = taken + refused
        if self._series is not None:
            self._series.pass_time(self.row, moved / span, self.now_ns, end_ns, fates)
        marks, delay = self._mark_share(), self._delay_ns()
        times = (self.now_ns, end_ns)
        return Feedback(*times, sent, arrived, lost, self.unsent, marks, delay, waiting, answered, passes)

    # -- what dead and lossy links swallow -----------------------------------------------------------------

    def _to_send(self) -> FloatArray:
        """What senders have to send: while a packet is missing, they also go on with later messages."""
        if self._repair is None or not (misses := self._repair.misses).any():
            return self.unsent
        more = self.unsent.copy()
        for part in np.flatnonzero(misses).tolist():
            more[part] += max(self._behind(int(self.task[part])) - self._repair.ahead[part], 0.0)
        return more

    def _book_sent(self, sent: FloatArray) -> None:
        if self._repair is None:
            self.unsent -= sent
            return
        own = np.minimum(sent, self.unsent)
        self.unsent -= own
        self._repair.ahead[:] += sent - own

    def _held_back(self, able: FloatArray, repair: Repair) -> FloatArray:
        """Lets senders go back whose time has come; returns what senders may let out."""
        waiting = self._queues.held()
        back, told = repair.due(self.now_ns, waiting)
        if len(back):
            self.unsent[back] = self.left[back] + repair.untold[back]
            np.add.at(self.declared_bits, self.task[back], self.packet_bits)
            self._senders.slow_down(told, self.now_ns)
        room = repair.room(self._outstanding(repair))
        return np.minimum(able, room) * repair.may_send(self.now_ns)

    def _outstanding(self, repair: Repair) -> FloatArray:
        """Bits sent of which senders have no acknowledgement."""
        return self.left + repair.untold - self.unsent + repair.ahead

    def _sort(
        self, repair: Repair, came: FloatArray, end_ns: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Finds out what of a step is taken, refused and lost."""
        is_dead = self._network.goodput[self.row] <= 0.0
        vanished = np.where(is_dead, came, 0.0) + self._vanished
        arrived = np.where(is_dead, 0.0, came) + self._strayed
        before, self._vanished, self._strayed = self._strayed, np.zeros(len(came)), np.zeros(len(came))
        network, row = self._network, self.row
        hazards = (network.hazard[row], network.answered[row], network.answer_hazard[row])
        return repair.receive(Arrivals(self.now_ns, end_ns, arrived, before, vanished, self.left, *hazards))

    def is_idle(self) -> bool:
        """Whether nothing is under way, and nobody may send anything before a timer runs out."""
        if self._queues.held().max(initial=0.0) > DONE_BITS or (self._vanished + self._strayed).any():
            return False
        may_send = self._senders.may_send() & self._network.rows.is_routed[self.row]
        to_send = self._to_send()
        if self._repair is not None:
            may_send &= self._repair.may_send(self.now_ns)
            to_send = np.minimum(to_send, self._repair.room(self._outstanding(self._repair)))
        return not (may_send & (to_send > DONE_BITS)).any()

    def timer_ns(self, *, is_idle: bool) -> float:
        """When the next timer runs out; those of senders count where nothing else happens."""
        own = np.inf if self._repair is None else self._repair.next_ns(self.now_ns)
        return min(own, self._senders.next_ns()) if is_idle else own

    # -- queues as senders see them ------------------------------------------------------------------------

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
        if self._repair is not None:
            self._repair.keep(kept)
        self._in_vain, self._vanished = self._in_vain[kept], self._vanished[kept]
        self._strayed = self._strayed[kept]
        self.task, self.row, self.begin_ns = self.task[kept], self.row[kept], self.begin_ns[kept]
        self._clock_ns = self._clock_ns[kept]
        self.left, self.unsent, self._counted = self.left[kept], self.unsent[kept], self._counted[kept]
        self.path = self.path[:, kept]
        self._queues.keep(kept)

    def _count(self, index: IntArray) -> None:
        brought = self._counted[index] - np.maximum(self.left[index], 0.0)
        self._network.carry(self.row[index], brought + self._in_vain[index])
        self._in_vain[index] = 0.0
        self._counted[index] = np.maximum(self.left[index], 0.0)

    def count_all(self) -> None:
        """Books everything that arrived so far, before ways change."""
        self._count(np.arange(len(self.task)))

    def advance(self, time_ns: float) -> None:
        """Does nothing: steps end where they are asked to."""

    def rebind(self) -> None:
        """Goes over to ways that changed.

        What waited on old ones behind the last dead link still arrives; what waited before it is lost.
        """
        old = self.path
        self._set_paths()
        self._set_rates()
        self.path = self._paths[:, self.row]
        is_kept = self.path == old if self.path.shape == old.shape else np.zeros(old.shape, np.bool_)
        out = self._queues.take_out(is_kept, self._columns)
        is_dead = np.append(~self._network.state.is_alive, False)[old]
        is_doomed = np.logical_or.accumulate(is_dead[::-1], axis=0)[::-1]
        self._vanished = self._vanished + (out * is_doomed).sum(axis=0)
        self._strayed = self._strayed + (out * ~is_doomed).sum(axis=0)
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
        network = self._network
        step_ns = self._step_ns()
        while self._starts or len(active):
            if not len(active):
                active.now_ns = max(active.now_ns, min(self._starts[0][0], network.next_ns, end_ns))
            moment = min(active.now_ns + step_ns, end_ns)
            if network.next_ns <= active.now_ns:
                self._apply_faults(network.next_ns)
                continue
            moment = min(moment, network.next_ns)
            if active.now_ns >= end_ns:
                break
            self._take_in(moment)
            moment = self._next_moment(active, moment, end_ns)
            ending, finish = active.step(moment)
            self._num_events += len(ending)
            if len(ending):
                self._end(ending, finish)
            if self._on_progress is not None:
                self._tell(self._on_progress)
        return self._result(end_ns)

    def _next_moment(self, active: SteppedFlows, moment: float, end_ns: float) -> float:
        """Ends a step at the next timer, where nothing moves without waiting for it step by step."""
        network = self._network
        if not network.state.is_eventful:
            if not self._starts and self._is_stuck(active):
                raise self._stalled()
            return moment
        is_idle = active.is_idle()
        timer_ns = active.timer_ns(is_idle=is_idle)
        if not is_idle:
            return min(moment, timer_ns) if timer_ns > active.now_ns else moment
        if not self._starts and np.isinf(network.next_ns) and self._is_stuck(active):
            raise self._stalled()
        start_ns = self._starts[0][0] if self._starts else np.inf
        upcoming = min(timer_ns, start_ns, network.next_ns, end_ns)
        if upcoming == np.inf:
            raise self._stalled()
        return upcoming if upcoming > active.now_ns else moment

    def _losses_bits(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """As `FlowRun._losses_bits`: what receivers refuse is sent again, too."""
        active = self._steps
        return active.lost_bits, active.lost_bits + active.refused_bits, active.declared_bits

    def _bits_behind(self, task: int) -> float:
        """Bits of a part of each message that waits behind a task."""
        return float(sum(self._plan.wire_bits[flow] for flow in self._connections.behind(task)))

    def _stepped(self) -> SteppedFlows:
        knobs = self._settings.rival
        packet_bits = BITS_PER_BYTE * (self._settings.payload_bytes + self._settings.overhead_bytes)
        trips = round_trips_ns(self._network)
        senders: Senders
        repair: Repair
        if isinstance(knobs, RoceKnobs):
            senders, repair = Dcqcn(knobs, packet_bits, len(trips)), GoBack(knobs, packet_bits)
        else:
            assert isinstance(knobs, TcpKnobs)
            senders = TcpSenders(knobs, packet_bits, self._step_ns(), len(trips))
            repair = Selective(packet_bits)
        active = SteppedFlows(
            self._network,
            senders,
            repair if self._network.state.is_eventful else None,
            self._plan.names(self._tasks),
            self._bits_behind,
            self._series,
            self._seed,
        )
        self._active = active  # type: ignore[assignment]
        self._steps = active
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
        """Whether nobody has a way on which anything arrives, and, with windows, a way for answers."""
        network, row = self._network, active.row
        goes = network.rows.is_routed[row] & (network.goodput[row] > 0.0)
        if isinstance(self._settings.rival, TcpKnobs):
            goes &= network.answered[row]
        return not goes.any()
