"""One simulation at the flow level, from one change of rates to the next."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.flow.active import ActiveFlows
from farstep.sim.flow.collisions import Hops, Noise, queueing_ns, turned_away_ns
from farstep.sim.flow.dag import Connections, TaskOrder
from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.plan import FlowPlan
from farstep.sim.flow.ragged import gather_rows
from farstep.sim.flow.rows import BITS_PER_BYTE
from farstep.sim.flow.series import RateSeries
from farstep.sim.flow.settings import FlowSettings
from farstep.sim.result import LinkUse, SimResult
from farstep.sim.tasks import TaskTable

__all__ = ["FlowRun", "FlowsStalled", "OnProgress"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SHORTEST_SHARE = 1.0 / 500.0
"""Events closer than this part of the shortest flow's time share one computation of rates."""


LINES_MAX = 4
"""Flows that are named when a run is stuck."""

PROGRESS_S = 0.2
"""Real time between two reports of progress."""

OnProgress = Callable[[int, int], None]


class FlowsStalled(RuntimeError):
    """Nothing can happen any more and tasks are unfinished; the message names flows and what they wait for.

    Attributes:
        result: what had happened until then.
    """

    def __init__(self, message: str, result: SimResult) -> None:
        super().__init__(message)
        self.result = result


class FlowRun:
    """One simulation under way."""

    def __init__(
        self,
        topology: Topology,
        settings: FlowSettings,
        tasks: TaskTable,
        faults: Iterable[LinkAction],
        seed: int,
        sample_interval_ns: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._began_s = self._told_s = time.perf_counter()
        self._on_progress = on_progress
        self._tasks = tasks
        self._settings = settings
        self._seed = seed
        self._topology = topology
        ports = np.diff(topology.ports.offset) if settings.rival is not None else None
        self._plan = FlowPlan.of(tasks, settings, seed, ports)
        noise = Noise(seed) if settings.is_noisy else None
        self._deviation = None if noise is None else noise.at(self._plan.names(tasks), 2)
        self._network = FlowNetwork(topology, self._plan, faults, noise)
        self._series = None
        if sample_interval_ns is not None:
            self._series = RateSeries(self._network, sample_interval_ns)
        weight = None
        if noise is not None and settings.unfairness and settings.rival is None:
            weight = np.exp(settings.unfairness * noise.at(self._plan.names(tasks), 3))
        self._active = ActiveFlows(self._network, len(tasks), self._series, weight)
        self._order = TaskOrder(tasks)
        self._connections = Connections(self._plan.connection)
        self._parts_left = np.full(len(tasks), self._plan.parts, np.int64)
        self._sent_ns = np.zeros(len(tasks))
        self._has_turn = np.zeros(len(tasks), np.bool_)
        self._starts: list[tuple[float, int, IntArray, FloatArray]] = []
        self._num_pushed = 0
        self._num_events = 0
        self._window_ns = self._resolution_ns()

    def _resolution_ns(self) -> float:
        if self._settings.resolution_ns is not None:
            return self._settings.resolution_ns
        packet_bits = BITS_PER_BYTE * (self._settings.payload_bytes + self._settings.overhead_bytes)
        slot = packet_bits / float(self._topology.link_rate_gbps.max())
        is_flow = self._tasks.is_flow
        if not is_flow.any():
            return slot
        alone = self._network.alone[self._plan.first_row[is_flow]]
        bits = self._plan.wire_bits[is_flow]
        lasting = bits[alone > 0] / alone[alone > 0]
        return max(slot, SHORTEST_SHARE * float(lasting.min(initial=np.inf))) if lasting.size else slot

    # -- the loop ------------------------------------------------------------------------------------------

    def until(self, end_ns: float) -> SimResult:
        """Simulates up to a time, infinity for the end.

        Raises:
            FlowsStalled: the tasks can never be finished.
        """
        self._schedule(*self._order.begin())
        active, network = self._active, self._network
        while self._starts or len(active):
            finish = active.finish_times()
            upcoming = float(finish.min(initial=np.inf))
            if self._starts:
                upcoming = min(upcoming, self._starts[0][0])
            moment = min(upcoming, network.next_ns)
            if np.isinf(moment):
                raise self._stalled()
            if moment > end_ns:
                break
            if network.next_ns <= upcoming:
                self._apply_faults(moment)
            else:
                self._batch(finish, min(upcoming + self._window_ns, network.next_ns, end_ns))
            if self._on_progress is not None:
                self._tell(self._on_progress)
        return self._result(end_ns)

    def _tell(self, on_progress: OnProgress) -> None:
        now_s = time.perf_counter()
        if now_s - self._told_s < PROGRESS_S:
            return
        self._told_s = now_s
        on_progress(len(self._tasks) - self._order.num_unfinished, round(self._active.now_ns))

    def _batch(self, finish: FloatArray, horizon: float) -> None:
        """Handles all starts and ends up to a time, and then computes rates once."""
        active = self._active
        ending = np.flatnonzero(finish <= horizon)
        flows, starts = self._pop_starts(horizon)
        last = max(float(finish[ending].max(initial=0.0)), float(starts.max(initial=0.0)))
        self._num_events += len(ending) + len(flows)
        if last > active.now_ns:
            active.advance(last)
        if len(ending):
            self._end(ending, finish[ending])
        if len(flows):
            self._begin(flows, starts)
        active.refresh()

    def _apply_faults(self, at_ns: float) -> None:
        active, network = self._active, self._network
        active.advance(max(at_ns, active.now_ns))
        active.count_all()
        network.advance(at_ns)
        active.rebind()

    # -- starts --------------------------------------------------------------------------------------------

    def _schedule(self, flows: IntArray, start_ns: FloatArray) -> None:
        if not len(flows):
            return
        order = np.argsort(start_ns, kind="stable")
        flows, start_ns = flows[order], start_ns[order]
        self._order.start_ns[flows] = start_ns
        self._push(flows, start_ns)

    def _push(self, flows: IntArray, start_ns: FloatArray) -> None:
        self._num_pushed += 1
        heapq.heappush(self._starts, (float(start_ns[0]), self._num_pushed, flows, start_ns))

    def _pop_starts(self, horizon: float) -> tuple[IntArray, FloatArray]:
        """Takes the flows that start up to a time, in the order of their starts."""
        flows, starts = [], []
        while self._starts and self._starts[0][0] <= horizon:
            _, rank, which, when = heapq.heappop(self._starts)
            due = int(np.searchsorted(when, horizon, side="right"))
            flows.append(which[:due])
            starts.append(when[:due])
            if due < len(when):
                heapq.heappush(self._starts, (float(when[due]), rank, which[due:], when[due:]))
        if not flows:
            return np.zeros(0, np.int64), np.zeros(0)
        found, times = np.concatenate(flows), np.concatenate(starts)
        order = np.lexsort((found, times))
        return found[order], times[order]

    def _begin(self, flows: IntArray, start_ns: FloatArray) -> None:
        admitted = self._has_turn[flows]
        admitted[~admitted] = self._connections.admit(flows[~admitted])
        self._send(flows[admitted], start_ns[admitted])

    def _resume(self, flows: IntArray, begin_ns: FloatArray) -> None:
        """Starts flows whose turn on their connection has come, at once or when what is before them lets them."""
        later = begin_ns > self._active.now_ns
        self._send(flows[~later], begin_ns[~later])
        if later.any():
            self._has_turn[flows[later]] = True
            order = np.argsort(begin_ns[later], kind="stable")
            self._push(flows[later][order], begin_ns[later][order])

    def _send(self, flows: IntArray, begin_ns: FloatArray) -> None:
        if not len(flows):
            return
        parts = self._plan.parts
        row = (self._plan.first_row[flows][:, None] + np.arange(parts)[None, :]).ravel()
        task = np.repeat(flows, parts)
        self._active.add(task, row, np.repeat(begin_ns, parts), self._plan.wire_bits[task])

    # -- ends ----------------------------------------------------------------------------------------------

    def _end(self, ending: IntArray, finish_ns: FloatArray) -> None:
        active, plan = self._active, self._plan
        task, row = active.task[ending], active.row[ending]
        queueing, held_back = self._lost_ns(ending, finish_ns, row)
        sent_ns = finish_ns + held_back
        done_ns = sent_ns + queueing + self._way_ns(task, row)
        active.remove(ending)
        finish = self._order.finish_ns
        np.fmax.at(finish, task, done_ns)
        np.maximum.at(self._sent_ns, task, sent_ns)
        if plan.parts > 1:
            np.subtract.at(self._parts_left, task, 1)
            task = np.unique(task[self._parts_left[task] == 0])
        following, before = self._connections.release(task)
        self._schedule(*self._order.finish(task, finish[task]))
        if len(following):
            begin = np.maximum(self._order.start_ns[following], self._sent_ns[task[before]])
            self._resume(following, begin)

    def _way_ns(self, task: IntArray, row: IntArray) -> FloatArray:
        """Time from a flow's last bit to its end on an empty network: the way, store-and-forward, acknowledgement."""
        network = self._network
        way = network.tail_ns[row] + network.rows.pipe_ns_per_byte[row] * self._plan.tail_bytes[task]
        if self._settings.completion == "sender":
            way = way + network.back_ns[row]
        return way

    def _lost_ns(
        self, ending: IntArray, finish_ns: FloatArray, row: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Time that flows lose by collisions: in queues, and by holding packets back."""
        active, network, settings = self._active, self._network, self._settings
        nothing = np.zeros(len(ending))
        if settings.spreading != "spray" or not (settings.collisions or settings.backoff):
            return nothing, nothing
        matrix = network.matrix
        position, owner = gather_rows(matrix.offset, row)
        spread = network.width[matrix.constraint[position]] > 1
        position, owner = position[spread], owner[spread]
        constraint = matrix.constraint[position]
        load, users = active.usage(row, position, owner)
        hops = Hops(
            owner,
            matrix.share[position],
            load / np.maximum(network.capacity[constraint], 1e-12),
            users,
            network.width[constraint],
            network.packet_ns[constraint],
            None if network.deviation is None else network.deviation[constraint],
        )
        lasted = np.maximum(finish_ns - active.begin_ns[ending], 0.0)
        bound = network.queue_packets
        deviation = None if self._deviation is None else self._deviation[active.task[ending]]
        queueing = queueing_ns(hops, lasted, queue_packets=bound, deviation=deviation)
        held_back = turned_away_ns(hops, lasted, queue_packets=bound)
        return settings.collisions * queueing, settings.backoff * held_back

    # -- what came of it -----------------------------------------------------------------------------------

    def _stalled(self) -> FlowsStalled:
        """What is raised when nothing can happen any more; flows on their way then still arrive."""
        last = float(np.fmax.reduce(self._order.finish_ns, initial=0.0))
        return FlowsStalled(self._what_waits(), self._result(max(self._active.now_ns, last)))

    def _what_waits(self) -> str:
        """Says what is left when nothing happens any more: flows that have no rate and no repair to wait for."""
        active, tasks, left = self._active, self._tasks, self._order.num_unfinished
        stuck, first = np.unique(active.task, return_index=True)
        lines = [
            f"{tasks.describe(int(task))}: {self._why(int(active.row[index]))}"
            for task, index in zip(stuck[:LINES_MAX].tolist(), first.tolist(), strict=False)
        ]
        if len(stuck) > LINES_MAX:
            lines.append(f"{len(stuck) - LINES_MAX} flows more")
        if left > len(stuck):
            lines.append(f"{left - len(stuck)} tasks wait for these")
        return (
            f"nothing happens any more at {active.now_ns / 1e3:.1f} us, {left} tasks are unfinished: "
            + "; ".join(lines)
        )

    def _why(self, row: int) -> str:
        rows = self._network.rows
        if not rows.is_routed[row]:
            return "no path to its destination is left, and nothing follows that could help it"
        if rows.survival[row] <= 0.0:
            return "all its paths lead over dead links, and nothing follows that could help it"
        if not self._network.answered[row]:
            return "its acknowledgements are lost on dead links, and nothing follows that could help it"
        return "its links carry nothing, and nothing follows that could help it"

    def _losses_bits(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Bits of tasks that were lost, sent again, and taken for lost: rates know no difference."""
        return (self._active.lost_bits,) * 3

    def _result(self, end_ns: float) -> SimResult:
        active, order, tasks, settings = self._active, self._order, self._tasks, self._settings
        if np.isfinite(end_ns):
            active.advance(max(active.now_ns, end_ns))
        active.count_all()
        packet_bytes = settings.payload_bytes + settings.overhead_bytes
        lost, again, declared = (
            np.rint(bits / (BITS_PER_BYTE * packet_bytes)).astype(np.int64) for bits in self._losses_bits()
        )
        start = np.where(order.start_ns <= end_ns, order.start_ns, np.nan)
        finish = np.where(order.finish_ns <= end_ns, order.finish_ns, np.nan)
        packets = np.where(~np.isnan(start) & tasks.is_flow, self._plan.packets, 0) + again
        measured = {
            "start_ns": _whole(start),
            "finish_ns": _whole(finish),
            "packets": packets,
            "retransmitted": again,
            "dropped": lost,
            "declared_lost": declared,
        }
        sent, dropped = int(packets.sum()), int(lost.sum())
        left = np.rint(np.maximum(active.left, 0.0).sum() / (BITS_PER_BYTE * packet_bytes))
        counters = {"sent": sent - int(left), "dropped": dropped, "in_flight": 0}
        counters["delivered"] = counters["sent"] - dropped
        meta = {
            "level": "flow",
            "seed": self._seed,
            "fabric": self._topology.name,
            "wall_s": time.perf_counter() - self._began_s,
            "end_ns": float(end_ns) if np.isfinite(end_ns) else float(np.nanmax(order.finish_ns)),
            "payload_share": settings.payload_bytes / packet_bytes,
            "flow_events": self._num_events,
            "rate_computations": active.fills,
        }
        links = LinkUse.of(self._topology, {"bytes": self._network.link_bytes()})
        series = {}
        if self._series is not None:
            series = self._series.columns(settings.payload_bytes / packet_bytes, dropped)
            names = [f"{_tier(low)} -> {_tier(high)}" for low, high in self._series.groups.tolist()]
            meta |= {"sample_interval_ns": self._series.interval_ns, "series_columns": {"group_bytes": names}}
        return SimResult.of(tasks, measured, links, counters=counters, meta=meta, series=series)


def _tier(number: int) -> str:
    return "NIC" if number < 0 else f"T{number}"


def _whole(times_ns: FloatArray) -> IntArray:
    return np.where(np.isnan(times_ns), -1.0, np.rint(np.nan_to_num(times_ns))).astype(np.int64)
