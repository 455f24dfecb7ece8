"""What a simulated cluster has to do: flows between NICs and delays on them, in order of their dependencies.

A table is columns, not objects: a ring all-reduce of 1,024 ranks has two million flows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect, expect_list, expect_whole

__all__ = [
    "TIME_NS_MAX",
    "TaskBuilder",
    "TaskKind",
    "TaskTable",
    "WorkloadError",
    "concatenate",
    "whole_numbers",
]

TIME_NS_MAX = 365 * 86_400 * 10**9
"""A year: a longer time is a slip of the unit, and sums of a few stay far inside 64 bits."""

IntArray = NDArray[np.int64]


class WorkloadError(ConfigError):
    """A workload that cannot be simulated; the message names the task and what is wrong with it."""


class TaskKind(enum.IntEnum):
    """What a task is."""

    FLOW = 0
    """Bytes from one NIC to another."""
    DELAY = 1
    """Time that passes on a NIC's rank, such as a computation; of 0 ns it only joins dependencies."""


_DTYPES: dict[str, Any] = {
    "kind": np.uint8,
    "source": np.int32,
    "target": np.int32,
    "size_bytes": np.int64,
    "start_ns": np.int64,
    "delay_ns": np.int64,
    "connection_key": np.int64,
    "job": np.int32,
    "tag": np.int32,
    "phase": np.int16,
    "dep_offset": np.int64,
    "dep_index": np.int32,
}
"""Columns of a table and the types they are kept in."""


@dataclass(frozen=True, slots=True, eq=False)
class TaskTable:
    """Tasks as numpy columns of one length n, and their predecessors in compressed rows.

    A task starts `delay_ns` after the last of its predecessors is done, and not before `start_ns`; a DELAY is
    done at once then, so that `delay_ns` is its duration.

    Attributes:
        kind: uint8 (n,), a `TaskKind`.
        source: int32 (n,), NIC that sends, or on which the delay runs.
        target: int32 (n,), NIC that receives; of a DELAY the same as `source`.
        size_bytes: int64 (n,), payload of a flow; 0 for a DELAY.
        start_ns: int64 (n,), earliest start since the start of the simulation.
        delay_ns: int64 (n,), time between the last predecessor and the start; of a DELAY its duration.
        connection_key: int64 (n,), flows of equal key (and equal ends) share a connection and follow each
            other on it; -1: one connection for each source, target and job.
        job: int32 (n,), index into `job_names`.
        tag: int32 (n,), number of the step (iteration) a task belongs to; -1: background, part of no step.
        phase: int16 (n,), index into `phase_names`, for tables and plots only.
        dep_offset: int64 (n+1,), predecessors of task i are `dep_index[dep_offset[i]:dep_offset[i+1]]`.
        dep_index: int32, task numbers.
        job_names: what the jobs are called.
        phase_names: what the phases are called.
    """

    kind: NDArray[np.uint8]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    delay_ns: NDArray[np.int64]
    connection_key: NDArray[np.int64]
    job: NDArray[np.int32]
    tag: NDArray[np.int32]
    phase: NDArray[np.int16]
    dep_offset: NDArray[np.int64]
    dep_index: NDArray[np.int32]
    job_names: tuple[str, ...] = ("job",)
    phase_names: tuple[str, ...] = ("flow",)

    @classmethod
    def from_columns(
        cls,
        *,
        source: ArrayLike,
        target: ArrayLike,
        size_bytes: ArrayLike,
        job_names: Sequence[str] = ("job",),
        phase_names: Sequence[str] = ("flow",),
        **columns: ArrayLike,
    ) -> Self:
        """Builds a table; columns left out get their neutral value, scalars fill a column.

        Raises:
            WorkloadError: columns differ in length, a name is unknown or a value does not fit its type.
        """
        unknown = sorted(set(columns) - set(_DTYPES))
        if unknown:
            raise WorkloadError(f"no column {quoted(unknown[0])}; columns: {', '.join(_DTYPES)}")
        n = whole_numbers("source", source).size
        neutral: dict[str, ArrayLike] = {
            "kind": 0,
            "start_ns": 0,
            "delay_ns": 0,
            "connection_key": -1,
            "job": 0,
            "tag": 0,
            "phase": 0,
            "dep_offset": np.zeros(n + 1, np.int64),
            "dep_index": np.zeros(0, np.int32),
        }
        given = {**neutral, "source": source, "target": target, "size_bytes": size_bytes, **columns}
        made = {name: _column(name, given[name], n) for name in _DTYPES}
        return cls(**made, job_names=tuple(job_names), phase_names=tuple(phase_names))

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_flow(self) -> NDArray[np.bool_]:
        """Which tasks are flows, bool (n,)."""
        return np.equal(self.kind, TaskKind.FLOW)

    @property
    def num_flows(self) -> int:
        """Number of flows."""
        return int(np.count_nonzero(self.is_flow))

    @property
    def total_bytes(self) -> int:
        """Payload of all flows."""
        return int(self.size_bytes.sum())

    @property
    def num_steps(self) -> int:
        """Number of steps: one more than the highest tag."""
        return int(self.tag.max(initial=-1)) + 1

    def columns(self) -> dict[str, NDArray[Any]]:
        """Columns by name, as a packet engine takes them; no copies."""
        return {name: getattr(self, name) for name in _DTYPES}

    def predecessors(self, task: int) -> NDArray[np.int32]:
        """Tasks that must be done before `task` starts."""
        return self.dep_index[self.dep_offset[task] : self.dep_offset[task + 1]]

    def successors(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The dependencies the other way round, as (offset, index) in compressed rows."""
        after = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.dep_offset))
        order = np.argsort(self.dep_index, kind="stable")
        counts = np.bincount(self.dep_index, minlength=len(self))
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), after[order]

    def describe(self, task: int) -> str:
        """One task in words, for messages."""
        job = self.job_names[self.job[task]] if self.job[task] < len(self.job_names) else self.job[task]
        if self.kind[task] == TaskKind.DELAY:
            return f"task {task} ({job}: delay of {self.delay_ns[task]} ns on NIC {self.source[task]})"
        ends = f"NIC {self.source[task]} -> {self.target[task]}"
        return f"task {task} ({job}: {ends}, {self.size_bytes[task]} B)"

    def validate(self, num_nics: int | None = None) -> Self:
        """Checks ranges and that the dependencies have an order.

        Args:
            num_nics: number of NICs of the fabric; None: only what holds on any fabric.

        Returns:
            The table itself.

        Raises:
            WorkloadError: naming the first task that is wrong.
        """
        if num_nics is not None:
            expect_whole("num_nics", num_nics, 1, np.iinfo(np.int32).max)
        if not len(self):
            raise WorkloadError("the workload is empty: it has no task")
        self._check_ranges(num_nics)
        self._check_dependencies()
        return self

    def _check_ranges(self, num_nics: int | None) -> None:
        flow = self.is_flow
        ends = np.maximum(self.source, self.target)
        lowest = np.minimum(self.source, self.target)
        refusals: list[tuple[NDArray[np.bool_], str]] = [
            (self.kind > max(TaskKind), "is of no known kind"),
            (lowest < 0, "names a NIC below 0"),
            (flow & (self.source == self.target), "sends to itself"),
            (~flow & (self.source != self.target), "is a delay, and names two NICs"),
            (flow & (self.size_bytes < 1), "has no byte to send"),
            (~flow & (self.size_bytes != 0), "is a delay, and has bytes"),
            ((self.start_ns < 0) | (self.start_ns > TIME_NS_MAX), "starts outside 0 ns .. one year"),
            ((self.delay_ns < 0) | (self.delay_ns > TIME_NS_MAX), "is delayed outside 0 ns .. one year"),
            (self.connection_key < -1, "has a connection key below -1"),
            ((self.job < 0) | (self.job >= len(self.job_names)), "belongs to a job without a name"),
            ((self.phase < 0) | (self.phase >= len(self.phase_names)), "is of a phase without a name"),
            (self.tag < -1, "has a step below -1"),
        ]
        if num_nics is not None:
            refusals.insert(2, (ends >= num_nics, f"needs a NIC the fabric does not have: it has {num_nics}"))
        for wrong, why in refusals:
            if wrong.any():
                raise WorkloadError(f"{self.describe(int(np.argmax(wrong)))} {why}")

    def _check_dependencies(self) -> None:
        n, offset, index = len(self), self.dep_offset, self.dep_index
        if len(offset) != n + 1 or offset[0] != 0 or offset[-1] != len(index) or (np.diff(offset) < 0).any():
            raise WorkloadError(
                f"dep_offset must rise from 0 to {len(index)}, the length of dep_index, in {n + 1} entries"
            )
        if not len(index):
            return
        after = np.repeat(np.arange(n, dtype=np.int64), np.diff(offset))
        wrong = (index < 0) | (index >= n)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise WorkloadError(f"{self.describe(int(after[at]))} waits for task {index[at]}, which is none")
        if (index < after).all():  # in an order already, as every generator here writes them
            return
        stuck = _first_in_cycle(self)
        if stuck is not None:
            raise WorkloadError(f"{self.describe(stuck)} waits for itself, through its predecessors")

    def renamed(self, *, job_names: Sequence[str]) -> Self:
        """The same tasks under other job names."""
        return replace(self, job_names=tuple(job_names))


def whole_numbers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Returns whole numbers as an array of whatever shape they come in.

    Raises:
        WorkloadError: they are none, or do not fit into 64 bits.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise WorkloadError(f"{name} must hold whole numbers, in rows of one length") from error
    if array.size and array.dtype.kind not in "iu":
        raise WorkloadError(f"{name} = {quoted(values)}: must hold whole numbers")
    if array.size and array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise WorkloadError(f"{name} must lie below 2^63")
    return array.astype(np.int64, copy=False)


def _broadcast(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Arrays of one shape.

    Raises:
        WorkloadError: they cannot have one.
    """
    try:
        return np.broadcast_arrays(*arrays)
    except ValueError as error:
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise WorkloadError(f"columns differ in length: {shapes}") from error


def _column(name: str, values: ArrayLike, n: int) -> NDArray[Any]:
    dtype = _DTYPES[name]
    length = n + 1 if name == "dep_offset" else n
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise WorkloadError(f"column {name} must hold integers, one for each task") from error
    if array.size and array.dtype.kind not in "iu":
        raise WorkloadError(f"column {name} must hold integers, not {array.dtype}")
    bounds = np.iinfo(dtype)
    if array.size and (array.min() < bounds.min or array.max() > bounds.max):
        raise WorkloadError(f"column {name} must lie in {bounds.min}..{bounds.max}")
    if array.ndim == 0:
        return np.full(length, array, dtype)
    if array.ndim != 1 or (name != "dep_index" and len(array) != length):
        raise WorkloadError(f"column {name} has shape {array.shape}; it needs {length} values")
    return np.ascontiguousarray(array, dtype)


def _first_in_cycle(table: TaskTable) -> int | None:
    """Takes tasks away whose predecessors are all gone; what stays waits for itself."""
    waiting = np.diff(table.dep_offset)
    offset, index = table.successors()
    ready = list(np.flatnonzero(waiting == 0))
    left = waiting.tolist()
    bounds, after = offset.tolist(), index.tolist()
    done = 0
    while ready:
        task = ready.pop()
        done += 1
        for follower in after[bounds[task] : bounds[task + 1]]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return None if done == len(table) else next(task for task, count in enumerate(left) if count)


@dataclass(slots=True)
class TaskBuilder:
    """Collects tasks block by block and turns them into a table.

    Example:
        >>> build = TaskBuilder()
        >>> first = build.flows([0, 1], [1, 0], 1000)
        >>> second = build.flows([0, 1], [1, 0], 1000)
        >>> build.after(second, first)
        >>> len(build.table())
        4
    """

    job: int = 0
    """Job of the tasks added from now on."""
    tag: int = 0
    """Step of the tasks added from now on."""
    job_names: list[str] = field(default_factory=lambda: ["job"])
    phase_names: list[str] = field(default_factory=list)
    _blocks: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    _edges: list[tuple[IntArray, IntArray]] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def flows(
        self,
        source: ArrayLike,
        target: ArrayLike,
        size_bytes: ArrayLike,
        *,
        start_ns: ArrayLike = 0,
        delay_ns: ArrayLike = 0,
        connection_key: ArrayLike = -1,
        phase: str = "flow",
    ) -> IntArray:
        """Adds flows, one per element of the broadcast arguments; returns their numbers, int64 (k,)."""
        return self._add(
            phase,
            kind=TaskKind.FLOW,
            source=source,
            target=target,
            size_bytes=size_bytes,
            start_ns=start_ns,
            delay_ns=delay_ns,
            connection_key=connection_key,
        )

    def delays(
        self, rank: ArrayLike, duration_ns: ArrayLike, *, start_ns: ArrayLike = 0, phase: str = "compute"
    ) -> IntArray:
        """Adds delays on NICs; returns their numbers, int64 (k,)."""
        return self._add(
            phase,
            kind=TaskKind.DELAY,
            source=rank,
            target=rank,
            size_bytes=0,
            start_ns=start_ns,
            delay_ns=duration_ns,
            connection_key=-1,
        )

    def after(self, tasks: ArrayLike, predecessors: ArrayLike) -> None:
        """Makes `tasks[i]` wait for `predecessors[i]`, broadcast against each other; -1 is no predecessor."""
        later, earlier = _broadcast(
            whole_numbers("tasks", tasks), whole_numbers("predecessors", predecessors)
        )
        kept = earlier.ravel() >= 0
        self._edges.append((later.ravel()[kept], earlier.ravel()[kept]))

    def after_all(self, tasks: ArrayLike, predecessors: ArrayLike) -> None:
        """Makes every one of `tasks` wait for all of `predecessors`.

        Many waiting for many go through one delay of 0 ns, so that the number of edges is a sum and no product.
        """
        later = np.atleast_1d(whole_numbers("tasks", tasks))
        earlier = np.atleast_1d(whole_numbers("predecessors", predecessors))
        if not later.size or not earlier.size:
            return
        if later.size * earlier.size <= later.size + earlier.size:
            self.after(later[:, None], earlier[None, :])
            return
        gate = self.delays([self._source_of(int(later[0]))], 0, phase="join")
        self.after(gate, earlier)
        self.after(later, gate)

    def append(
        self, table: TaskTable, *, after: ArrayLike | None = None, phase: str | None = None
    ) -> IntArray:
        """Adds all tasks of a table under this builder's job and step; returns their numbers, int64 (k,).

        Args:
            table: its jobs and tags are replaced.
            after: tasks that must be done before the table's first tasks start.
            phase: name of their phase; by default they keep theirs.
        """
        ids = np.arange(self._count, self._count + len(table), dtype=np.int64)
        block = {name: getattr(table, name) for name in _DTYPES if not name.startswith("dep_")}
        block["job"] = np.full(len(table), self.job, np.int32)
        block["tag"] = np.where(table.tag < 0, -1, self.tag).astype(np.int32)
        names = np.array([self._phase(phase or name) for name in table.phase_names], np.int16)
        block["phase"] = names[table.phase]
        self._blocks.append(block)
        self._count += len(table)
        counts = np.diff(table.dep_offset)
        self.after(np.repeat(ids, counts), table.dep_index + ids[0] if len(table) else table.dep_index)
        if after is not None:
            self.after_all(ids[counts == 0], after)
        return ids

    def table(self) -> TaskTable:
        """Returns what was collected; ranges are checked by `TaskTable.validate`."""
        if self._edges:
            later = np.concatenate([edge[0] for edge in self._edges])
            earlier = np.concatenate([edge[1] for edge in self._edges])
        else:
            later = earlier = np.zeros(0, np.int64)
        if (later[1:] < later[:-1]).any():
            order = np.argsort(later, kind="stable")
            later, earlier = later[order], earlier[order]
        offset = np.concatenate(([0], np.cumsum(np.bincount(later, minlength=self._count))))
        names = [name for name in _DTYPES if not name.startswith("dep_")]
        columns = {
            name: np.concatenate([block[name] for block in self._blocks] or [np.zeros(0, _DTYPES[name])])
            for name in names
        }
        return TaskTable.from_columns(
            **columns,
            dep_offset=offset,
            dep_index=earlier,
            job_names=self.job_names,
            phase_names=self.phase_names or ["flow"],
        )

    def _add(self, phase: str, **values: ArrayLike) -> IntArray:
        expect("phase", phase, str, "text")
        arrays = _broadcast(*(np.atleast_1d(whole_numbers(name, value)) for name, value in values.items()))
        n = arrays[0].size
        block = {name: _column(name, array.ravel(), n) for name, array in zip(values, arrays, strict=True)}
        block["job"] = np.full(n, self.job, np.int32)
        block["tag"] = np.full(n, self.tag, np.int32)
        block["phase"] = np.full(n, self._phase(phase), np.int16)
        self._blocks.append(block)
        self._count += n
        return np.arange(self._count - n, self._count, dtype=np.int64)

    def _phase(self, name: str) -> int:
        if name not in self.phase_names:
            self.phase_names.append(name)
        return self.phase_names.index(name)

    def _source_of(self, task: int) -> int:
        for block in self._blocks:
            if task < len(block["source"]):
                return int(block["source"][task])
            task -= len(block["source"])
        raise WorkloadError(f"there is no task {task} yet")


def concatenate(tables: Iterable[TaskTable]) -> TaskTable:
    """Puts independent tables side by side: jobs and connections of each stay its own, names are kept.

    Raises:
        WorkloadError: there is no table.
    """
    listed: list[TaskTable] = expect_list("tables", tables, "TaskTables")
    for table in listed:
        expect("tables", table, TaskTable, "a list of TaskTables")
    if not listed:
        raise WorkloadError("the workload is empty: there is no table to join")
    phase_names: list[str] = []
    columns: dict[str, list[NDArray[Any]]] = {item.name: [] for item in fields(TaskTable)[: len(_DTYPES)]}
    first_task = first_job = first_key = 0
    for table in listed:
        phase_names += [name for name in table.phase_names if name not in phase_names]
        numbers = np.array([phase_names.index(name) for name in table.phase_names], np.int16)
        shifted: dict[str, NDArray[Any]] = {
            "job": table.job + first_job,
            "phase": numbers[table.phase],
            "connection_key": np.where(table.connection_key < 0, -1, table.connection_key + first_key),
            "dep_index": table.dep_index + first_task,
            "dep_offset": np.diff(table.dep_offset),
        }
        for name, parts in columns.items():
            parts.append(shifted.get(name, getattr(table, name)))
        first_task += len(table)
        first_job += len(table.job_names)
        first_key += int(table.connection_key.max(initial=-1)) + 1
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    joined["dep_offset"] = np.concatenate(([0], np.cumsum(joined["dep_offset"])))
    names = tuple(name for table in listed for name in table.job_names)
    return TaskTable.from_columns(**joined, job_names=names, phase_names=phase_names)
