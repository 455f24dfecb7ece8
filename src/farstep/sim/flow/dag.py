"""When tasks may start: their predecessors, their delays and the connection they share with others."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import gather_rows
from farstep.sim.tasks import TaskTable

__all__ = ["Connections", "TaskOrder"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class TaskOrder:
    """Follows dependencies; delays are done by themselves, flows are handed out when they may start.

    Args:
        tasks: what is to be done.
    """

    def __init__(self, tasks: TaskTable) -> None:
        self._tasks = tasks
        self._is_flow = tasks.is_flow
        self._waiting = np.diff(tasks.dep_offset)
        self._ready_ns = np.zeros(len(tasks))
        self._after_offset, self._after = tasks.successors()
        self.start_ns = np.full(len(tasks), np.nan)
        self.finish_ns = np.full(len(tasks), np.nan)
        self.num_unfinished = len(tasks)

    def begin(self) -> tuple[IntArray, FloatArray]:
        """Returns the flows without predecessors and when they may start."""
        first = np.flatnonzero(self._waiting == 0)
        return self._release(first)

    def finish(self, tasks: IntArray, time_ns: FloatArray) -> tuple[IntArray, FloatArray]:
        """Marks tasks as done and returns the flows that may start now, and when."""
        self.finish_ns[tasks] = time_ns
        self.num_unfinished -= len(tasks)
        return self._release(self._followers(tasks, time_ns))

    def _followers(self, tasks: IntArray, time_ns: FloatArray) -> IntArray:
        """Tasks whose last predecessor is among these."""
        position, owner = gather_rows(self._after_offset, tasks)
        if not len(position):
            return position
        after = self._after[position]
        np.maximum.at(self._ready_ns, after, time_ns[owner])
        np.subtract.at(self._waiting, after, 1)
        return np.unique(after[self._waiting[after] == 0]).astype(np.int64)

    def _release(self, tasks: IntArray) -> tuple[IntArray, FloatArray]:
        """Runs the delays among tasks that are free, and theirs, until only flows are left."""
        flows: list[IntArray] = []
        starts: list[FloatArray] = []
        while len(tasks):
            start = np.maximum(
                self._ready_ns[tasks] + self._tasks.delay_ns[tasks], self._tasks.start_ns[tasks]
            )
            is_flow = self._is_flow[tasks]
            flows.append(tasks[is_flow])
            starts.append(start[is_flow])
            delays, done = tasks[~is_flow], start[~is_flow]
            self.start_ns[delays] = done - self._tasks.delay_ns[delays]
            self.finish_ns[delays] = done
            self.num_unfinished -= len(delays)
            tasks = self._followers(delays, done) if len(delays) else delays
        if not flows:
            return np.zeros(0, np.int64), np.zeros(0)
        return np.concatenate(flows), np.concatenate(starts)


class Connections:
    """Flows of one connection follow each other: the next sends when the last byte of the one before has left.

    Args:
        number: int64 (tasks,), connection of each task; only flows are asked about.
    """

    def __init__(self, number: IntArray) -> None:
        self._number = number
        self._is_shared = np.bincount(number) > 1
        self._is_busy = np.zeros(len(self._is_shared), np.bool_)
        self._queue: dict[int, deque[int]] = {}

    def admit(self, flows: IntArray) -> NDArray[np.bool_]:
        """Tells which of the flows, in order, may send at once; the others wait for their turn."""
        connection = self._number[flows]
        admitted = np.ones(len(flows), np.bool_)
        shared = np.flatnonzero(self._is_shared[connection])
        if not len(shared):
            return admitted
        for index, flow, key in zip(
            shared.tolist(), flows[shared].tolist(), connection[shared].tolist(), strict=True
        ):
            if self._is_busy[key]:
                self._queue.setdefault(key, deque()).append(flow)
                admitted[index] = False
            else:
                self._is_busy[key] = True
        return admitted

    def behind(self, flow: int) -> tuple[int, ...]:
        """Flows that wait until this one, whose turn it is, has left."""
        return tuple(self._queue.get(int(self._number[flow]), ()))

    def release(self, flows: IntArray) -> tuple[IntArray, IntArray]:
        """Frees the connections of flows that have sent everything.

        Returns:
            Flows whose turn it is, and for each the index of the flow before it.
        """
        connection = self._number[flows]
        following: list[int] = []
        before: list[int] = []
        for index in np.flatnonzero(self._is_shared[connection]).tolist():
            key = int(connection[index])
            queue = self._queue.get(key)
            if queue:
                following.append(queue.popleft())
                before.append(index)
            else:
                self._is_busy[key] = False
        return np.asarray(following, np.int64), np.asarray(before, np.int64)
