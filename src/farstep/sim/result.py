"""What a simulation found: columns per task and per link, and what people ask of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect_path
from farstep.fabric.topology.node_names import NodeNames
from farstep.sim.extras import extra
from farstep.sim.tasks import TaskTable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TASK_COLUMNS", "LinkUse", "Quantiles", "SimResult", "quantiles"]

TASK_COLUMNS = (
    "start_ns",
    "finish_ns",
    "packets",
    "dropped",
    "trims",
    "declared_lost",
    "spurious",
    "retransmitted",
)
"""Measured columns, one value per task."""

COUNTED = ("drops", "trims", "max_queue_bytes")
"""Columns of links that only a simulation of packets has."""

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Typical, late and last of a set of durations, in ns.

    Attributes:
        count: number of durations.
        p50_ns: median.
        p99_ns: 99 % take no longer.
        p100_ns: the longest, for which a synchronous job waits.
    """

    count: int
    p50_ns: float
    p99_ns: float
    p100_ns: float


def quantiles(durations_ns: NDArray[Any]) -> Quantiles | None:
    """Returns the quantiles of durations, interpolated between neighbours; None if there are none."""
    if not len(durations_ns):
        return None
    p50, p99, p100 = np.percentile(durations_ns, (50, 99, 100))
    return Quantiles(len(durations_ns), float(p50), float(p99), float(p100))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LinkUse:
    """Directed links of the fabric and what they carried; every column has one value per link.

    What a level of simulation does not know is None: the flow level has rates, and neither queues nor packets.

    Attributes:
        source: int32, node that sends (NICs come first).
        target: int32, node that receives.
        rate_gbps: float64, nominal rate.
        plane: int16.
        tier: int8, of the sending node: NIC -1, T0 0, T1 1 ...
        target_tier: int8, of the receiving node.
        bytes: int64, carried on the wire, headers and control packets counted.
        drops: int64, packets lost here: queue full, link down or random loss.
        trims: int64, packets cut to their header because the queue was full.
        max_queue_bytes: int64, the longest the queue in front of the link was.
        names: what nodes are called; no column.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    rate_gbps: NDArray[np.float64]
    plane: NDArray[np.int16]
    tier: NDArray[np.int8]
    target_tier: NDArray[np.int8]
    bytes: NDArray[np.int64]
    drops: NDArray[np.int64] | None
    trims: NDArray[np.int64] | None
    max_queue_bytes: NDArray[np.int64] | None
    names: NodeNames

    @classmethod
    def of(cls, topology: Any, measured: Mapping[str, NDArray[Any]]) -> LinkUse:
        """Joins a topology's links with what an engine measured on them.

        Args:
            topology: a `farstep.fabric.topology.Topology`.
            measured: `bytes`, and of `drops`, `trims`, `max_queue_bytes` what is known, with one value per link.
        """
        counted = {
            name: np.asarray(measured[name], np.int64) if name in measured else None for name in COUNTED
        }
        return cls(
            bytes=np.asarray(measured["bytes"], np.int64),
            source=np.asarray(topology.link_source, np.int32),
            target=np.asarray(topology.link_target, np.int32),
            rate_gbps=np.asarray(topology.link_rate_gbps, np.float64),
            plane=np.asarray(topology.link_plane, np.int16),
            tier=np.asarray(topology.node_tier, np.int8)[topology.link_source],
            target_tier=np.asarray(topology.node_tier, np.int8)[topology.link_target],
            names=topology.names,
            **counted,
        )

    def __len__(self) -> int:
        return len(self.source)

    def name(self, link: int) -> str:
        """Returns what a fault script calls a link, such as `nic/3->t0/p1/7`."""
        return self.names.link(link, self.source, self.target)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns that are known by name."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "names"}
        return {name: column for name, column in found.items() if column is not None}

    def counted(self, name: str) -> NDArray[np.int64]:
        """Returns `drops`, `trims` or `max_queue_bytes`.

        Raises:
            ValueError: the level of the simulation knows nothing of it.
        """
        column: NDArray[np.int64] | None = getattr(self, name)
        if column is None:
            raise ValueError(f"links.{name}: is not known at this level of simulation")
        return column

    def utilisation(self, duration_ns: float) -> NDArray[np.float64]:
        """Share of what each link could have carried in that time, float64 per link."""
        possible = self.rate_gbps * max(duration_ns, 1.0) / BITS_PER_BYTE
        return np.divide(self.bytes, possible, out=np.zeros(len(self)), where=possible > 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class SimResult:
    """Result of one simulation.

    Times are in ns since the start of the simulation, -1 for what never happened. Counts of packets belong to the
    oldest task on their connection that the sender does not know to be done: where flows follow each other on a
    connection without a pause, sums over them are exact, and single ones nearly so.

    Attributes:
        tasks: what was simulated.
        start_ns: int64 (n,), when a task's predecessors were done and its time had come.
        finish_ns: int64 (n,), when it was done.
        packets: int64 (n,), data packets sent, retransmissions counted.
        dropped: int64 (n,), how many of them the network lost without a trace: no room, a dead link, bad luck.
        trims: int64 (n,), how many of them a full queue cut to their header.
        declared_lost: int64 (n,), how many the sender gave up, late ones among them, without word of a trim.
        spurious: int64 (n,), how many arrived whole though they had before: what was sent again for nothing.
        retransmitted: int64 (n,), how many of them were sent before.
        links: what the links carried.
        series: samples over time: `time_ns` (t,), and columns of t rows, such as `plane_bytes` (t, planes).
        ev_events: changes of path states, columns of one length: `time_ns`, `source`, `target`, `ev`, `plane`,
            `state`; empty at levels that have none.
        trace: packets of the flows followed (`run.trace_flows`), columns of one length, see
            `farstep.sim.trace`; empty if none was.
        counters: totals by name, such as `sent`, `delivered`, `trimmed`, `dropped`, `in_flight`.
        meta: `level`, `transport`, `seed`, `fabric`, `versions`, `wall_s`, `scenario`, `faults` and what else
            an engine reports; only what JSON can hold.
    """

    tasks: TaskTable
    start_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    packets: NDArray[np.int64]
    dropped: NDArray[np.int64]
    trims: NDArray[np.int64]
    declared_lost: NDArray[np.int64]
    spurious: NDArray[np.int64]
    retransmitted: NDArray[np.int64]
    links: LinkUse
    series: dict[str, NDArray[Any]] = field(default_factory=dict)
    ev_events: dict[str, NDArray[Any]] = field(default_factory=dict)
    trace: dict[str, NDArray[Any]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tasks: TaskTable, measured: Mapping[str, NDArray[Any]], links: LinkUse, **others: Any
    ) -> SimResult:
        """Builds a result from an engine's columns; what it did not measure is 0, and listed in `meta["unmeasured"]`.

        Args:
            tasks: what was simulated.
            measured: some of `TASK_COLUMNS`, `start_ns` and `finish_ns` among them.
            links: what the links carried.
            others: `series`, `ev_events`, `trace`, `counters`, `meta`.

        Raises:
            ValueError: a column does not have one value per task.
        """
        zeros = np.zeros(len(tasks), np.int64)
        columns: dict[str, Any] = {
            name: np.asarray(measured.get(name, zeros), np.int64) for name in TASK_COLUMNS
        }
        for name, column in columns.items():
            if column.shape != (len(tasks),):
                raise ValueError(
                    f"{name} has shape {column.shape}; it needs one value for {len(tasks)} tasks"
                )
        found = cls(tasks=tasks, links=links, **columns, **others)
        found.meta.setdefault("unmeasured", [name for name in TASK_COLUMNS if name not in measured])
        return found

    # -- which tasks ---------------------------------------------------------------------------------------

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Which tasks are done, bool (n,)."""
        return np.greater_equal(self.finish_ns, 0)

    @property
    def is_complete(self) -> bool:
        """Whether every task is done."""
        return bool(self.finished.all())

    def select(self, *, job: str | None = None, phase: str | None = None) -> NDArray[np.bool_]:
        """Finished flows of a job and a phase, bool (n,).

        Raises:
            ValueError: there is no such job or phase; the message lists them.
        """
        chosen: NDArray[np.bool_] = self.finished & self.tasks.is_flow
        for name, names, column in (
            (job, self.tasks.job_names, self.tasks.job),
            (phase, self.tasks.phase_names, self.tasks.phase),
        ):
            if name is None:
                continue
            if name not in names:
                raise ValueError(f"{quoted(name)} is not part of this result; it has {', '.join(names)}")
            numbers = [index for index, known in enumerate(names) if known == name]
            chosen = chosen & np.isin(column, numbers)
        return chosen

    # -- durations -----------------------------------------------------------------------------------------

    def flow_times_ns(self, *, job: str | None = None, phase: str | None = None) -> NDArray[np.int64]:
        """Durations of the finished flows, in the order of the tasks."""
        chosen = self.select(job=job, phase=phase)
        return self.finish_ns[chosen] - self.start_ns[chosen]

    @property
    def flow_time(self) -> Quantiles | None:
        """Quantiles over all finished flows but those in the background (of no step)."""
        chosen = self.select() & (self.tasks.tag >= 0)
        return quantiles((self.finish_ns - self.start_ns)[chosen])

    def step_times_ns(self, *, job: str | None = None) -> NDArray[np.int64]:
        """Durations of the steps that are complete, job by job.

        A step ends with its last task, and lasts from the end of the job's step before it; the first lasts
        from the start of its first task. So that overlapping steps are not counted twice.
        """
        found = []
        for number, name in enumerate(self.tasks.job_names):
            if job is None or job == name:
                found.append(self._steps_of(number))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _steps_of(self, job: int) -> NDArray[np.int64]:
        mine = (self.tasks.job == job) & (self.tasks.tag >= 0)
        if not mine.any():
            return np.zeros(0, np.int64)
        tags, start, finish = self.tasks.tag[mine], self.start_ns[mine], self.finish_ns[mine]
        steps = int(tags.max()) + 1
        ends = np.full(steps, -1, np.int64)
        np.maximum.at(ends, tags, finish)
        open_steps = tags[finish < 0]
        known = int(open_steps.min(initial=steps))
        begun = start[(tags == 0) & (start >= 0)].min(initial=np.iinfo(np.int64).max)
        ends = np.maximum.accumulate(ends[:known])
        return np.diff(ends, prepend=min(begun, ends[0])) if known else np.zeros(0, np.int64)

    @property
    def step_time(self) -> Quantiles | None:
        """Quantiles over the complete steps of all jobs."""
        return quantiles(self.step_times_ns())

    @property
    def duration_ns(self) -> int:
        """From the first start to the last finish; to the end of the simulation if a task is unfinished."""
        started = self.start_ns[self.start_ns >= 0]
        if not started.size:
            return 0
        end = int(self.finish_ns.max())
        if not self.is_complete:
            end = max(end, int(self.meta.get("end_ns", end)))
        return max(0, end - int(started.min()))

    # -- rates and fairness --------------------------------------------------------------------------------

    @property
    def goodput_gbps(self) -> float:
        """Payload of the finished flows over the whole duration, of all NICs together, in Gb/s."""
        delivered = int(self.tasks.size_bytes[self.finished].sum())
        return delivered * BITS_PER_BYTE / self.duration_ns if self.duration_ns else 0.0

    def flow_rates_gbps(self, *, job: str | None = None, phase: str | None = None) -> NDArray[np.float64]:
        """Payload rate of each finished flow over its own duration, in Gb/s."""
        chosen = self.select(job=job, phase=phase)
        lasted = np.maximum(self.finish_ns[chosen] - self.start_ns[chosen], 1)
        return np.asarray(self.tasks.size_bytes[chosen] * BITS_PER_BYTE / lasted, np.float64)

    def jain(self, *, job: str | None = None, phase: str | None = None) -> float | None:
        """Fairness of the flows' rates after Jain: 1 if all are equal, 1/n if one has everything.

        Unless a phase is named, the victim of an incast and flows in the background do not count.
        """
        rates = self.flow_rates_gbps(job=job, phase=phase)
        if phase is None:
            counted = self.tasks.tag >= 0
            if "victim" in self.tasks.phase_names:
                counted &= self.tasks.phase != self.tasks.phase_names.index("victim")
            rates = rates[counted[self.select(job=job)]]
        if not rates.size:
            return None
        return float(rates.sum() ** 2 / (rates.size * np.square(rates).sum()))

    @property
    def victim_ratio(self) -> float | None:
        """Slowest flow of phase `victim` against the payload rate of its NIC, 0..1; None without a victim."""
        if "victim" not in self.tasks.phase_names:
            return None
        rates = self.flow_rates_gbps(phase="victim")
        if not rates.size:
            return None
        chosen = self.select(phase="victim")
        payload_share = float(self.meta.get("payload_share", 1.0))
        return float((rates / (self._nic_rates_gbps()[self.tasks.source[chosen]] * payload_share)).min())

    def _nic_rates_gbps(self) -> NDArray[np.float64]:
        uplinks = self.links.tier < 0
        rates: NDArray[np.float64] = np.bincount(
            self.links.source[uplinks], weights=self.links.rate_gbps[uplinks]
        ).astype(np.float64)
        return rates

    # -- losses --------------------------------------------------------------------------------------------

    @property
    def retransmission_ratio(self) -> float:
        """Share of the data packets sent that were retransmissions."""
        sent = int(self.packets.sum())
        return int(self.retransmitted.sum()) / sent if sent else 0.0

    # -- links ---------------------------------------------------------------------------------------------

    def plane_bytes(self) -> NDArray[np.int64]:
        """Bytes NICs sent into each plane, int64 (planes,)."""
        uplinks = self.links.tier < 0
        planes = int(self.links.plane.max(initial=-1)) + 1
        carried = np.bincount(
            self.links.plane[uplinks], weights=self.links.bytes[uplinks].astype(np.float64), minlength=planes
        )
        return carried.astype(np.int64)

    @property
    def plane_balance(self) -> float | None:
        """Most against least loaded plane, 1 if equal; None if a plane carried nothing or there is but one."""
        carried = self.plane_bytes()
        if len(carried) < 2 or not carried.min():
            return None
        return float(carried.max() / carried.min())

    @property
    def worst_link(self) -> int | None:
        """The link between switches, or to a NIC, that was busiest for its rate; None if none carried a byte."""
        load = self.links.utilisation(self.duration_ns)
        candidates = np.where(self.links.tier >= 0, load, -1.0)
        if not candidates.size or candidates.max() <= 0.0:
            return None
        return int(np.argmax(candidates))

    @property
    def worst_flow(self) -> int | None:
        """Task number of the slowest flow: an unfinished one if there is, else the longest."""
        flows = np.flatnonzero(self.tasks.is_flow & (self.start_ns >= 0) & (self.tasks.tag >= 0))
        if not flows.size:
            return None
        lasted = np.where(self.finished[flows], self.finish_ns[flows] - self.start_ns[flows], np.inf)
        return int(flows[np.argmax(lasted)])

    # -- as tables and files -------------------------------------------------------------------------------

    @property
    def flows(self) -> pd.DataFrame:
        """One row per flow, as a pandas DataFrame."""
        return self._frame(self.tasks.is_flow)

    @property
    def task_frame(self) -> pd.DataFrame:
        """One row per task, delays included, as a pandas DataFrame."""
        return self._frame(np.ones(len(self.tasks), bool))

    def _frame(self, chosen: NDArray[np.bool_]) -> pd.DataFrame:
        pandas = extra("pandas")
        tasks, rows = self.tasks, np.flatnonzero(chosen)
        done = self.finished[rows]
        lasted = np.where(done, self.finish_ns[rows] - self.start_ns[rows], np.nan)
        columns: dict[str, Any] = {
            "task": rows,
            "job": pandas.Categorical.from_codes(tasks.job[rows], _unique(tasks.job_names)),
            "phase": pandas.Categorical.from_codes(tasks.phase[rows], _unique(tasks.phase_names)),
            "step": tasks.tag[rows],
            "source": tasks.source[rows],
            "target": tasks.target[rows],
            "size_bytes": tasks.size_bytes[rows],
            **{name: getattr(self, name)[rows] for name in TASK_COLUMNS},
            "time_ns": lasted,
            "goodput_gbps": tasks.size_bytes[rows] * BITS_PER_BYTE / np.maximum(lasted, 1.0),
        }
        return pandas.DataFrame(columns).set_index("task")

    @property
    def link_frame(self) -> pd.DataFrame:
        """One row per directed link, as a pandas DataFrame."""
        frame = extra("pandas").DataFrame(
            {**self.links.columns(), "utilisation": self.links.utilisation(self.duration_ns)}
        )
        frame.index.name = "link"
        return frame

    @property
    def event_frame(self) -> pd.DataFrame:
        """One row per change of a path's state, as a pandas DataFrame."""
        return extra("pandas").DataFrame(self.ev_events)

    @property
    def trace_frame(self) -> pd.DataFrame:
        """One row per packet of the flows followed, as a pandas DataFrame; `links` holds lists."""
        columns = {name: list(column) if column.ndim > 1 else column for name, column in self.trace.items()}
        return extra("pandas").DataFrame(columns)

    def metrics(self) -> dict[str, Any]:
        """The figures of `summary` by name, ready for JSON."""
        from farstep.sim.summary import metrics_of

        return metrics_of(self)

    def summary(self) -> str:
        """The result as a table of text."""
        from farstep.sim.summary import render

        return render({str(self.meta.get("transport", "result")): self})

    def story(self) -> list[str]:
        """What happened to the slowest flow, in sentences."""
        from farstep.sim.story import story_of

        return story_of(self)

    def write_html(self, path: str | Path) -> Path:
        """Writes a report for people, one HTML file without a network; returns its path. Needs plotly."""
        from farstep.observe.sim_report import write_sim_report

        return write_sim_report([self], path)

    def to_json(self, path: str | Path) -> Path:
        """Writes everything into one JSON file; returns its path."""
        from farstep.sim.storage import write_json

        return write_json(self, Path(path))

    def to_parquet(self, folder: str | Path) -> Path:
        """Writes Parquet files and a `meta.json` into a folder; returns it. Needs pyarrow."""
        from farstep.sim.storage import write_parquet

        return write_parquet(self, Path(folder))

    @staticmethod
    def load(path: str | Path) -> SimResult:
        """Reads what `to_json` or `to_parquet` wrote.

        Raises:
            ConfigError: there is no result at that path, or one of another version.
        """
        from farstep.sim.storage import read

        expect_path("path", path)
        return read(Path(path))


def _unique(names: tuple[str, ...]) -> list[str]:
    """Names as categories, which must differ."""
    seen: list[str] = []
    for name in names:
        unique, again = name, 2
        while unique in seen:
            unique, again = f"{name} ({again})", again + 1
        seen.append(unique)
    return seen
