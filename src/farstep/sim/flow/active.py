"""Flows that are sending: what each has left, at which rate, and when rates must be computed anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.ragged import gather_rows, offsets_of, sums
from farstep.sim.flow.series import RateSeries
from farstep.sim.flow.waterfill import LoadMatrix, max_min_rates

__all__ = ["ActiveFlows"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

OVERFLOWING, OVERFLOWING_LAST = 2.0, 2.5
"""Times its capacity that a link is offered from which on first windows, of a bandwidth-delay product each, are more
than what it carries in a round trip and what its queue holds, which is one such product, and 1.5 in front of a NIC."""

FULL = 1.0 - 1e-7
"""Part of a capacity from which on a constraint counts as full: it may hold flows back."""


class ActiveFlows:
    """Parts of flows that are sending, in columns.

    Args:
        network: what they share.
        num_tasks: tasks of the table.
        series: where rates are added up over time; None: nowhere.
        weight: float64 (tasks,), of flows that share a link whose queue overflows as they begin; None: equal.

    Attributes:
        lost_bits: float64 (tasks,), bits sent over dead or lossy links.
        now_ns: time up to which `left` is true.
        task: int64, task of each part.
        row: int64, row of each part in the network.
        begin_ns: float64, when it began to send.
        left: float64, bits it has yet to bring over.
        rate: float64, Gb/s on the wire.
    """

    def __init__(
        self,
        network: FlowNetwork,
        num_tasks: int,
        series: RateSeries | None = None,
        weight: FloatArray | None = None,
    ) -> None:
        self._network = network
        self._series = series
        self._weight = weight
        self.lost_bits = np.zeros(num_tasks)
        self.now_ns = 0.0
        self.task = np.zeros(0, np.int64)
        self.row = np.zeros(0, np.int64)
        self.begin_ns = np.zeros(0)
        self.left = np.zeros(0)
        self.rate = np.zeros(0)
        self._counted = np.zeros(0)
        self.fills = 0
        self._reset_loads()

    def __len__(self) -> int:
        return len(self.task)

    def _reset_loads(self) -> None:
        count = len(self._network.capacity)
        self.load = np.zeros(count)
        self.users = np.zeros(count)
        self._is_stale = True
        # Integrals over time, and what they were when the last flow of a row began.
        self._work = np.zeros(count)
        self._crowd = np.zeros(count)
        entries = len(self._network.matrix.constraint)
        self._work_then = np.zeros(entries)
        self._crowd_then = np.zeros(entries)
        self._then_ns = np.full(self._network.matrix.num_flows, self.now_ns)

    def finish_times(self) -> FloatArray:
        """When each part will have brought everything over, if nothing changes; infinity for one that waits."""
        with np.errstate(divide="ignore", invalid="ignore"):
            pace = self.rate * self._network.goodput[self.row]
            return np.where(pace > 0, self.now_ns + self.left / pace, np.inf)

    def advance(self, time_ns: float) -> None:
        """Lets all parts send until a time."""
        passed = time_ns - self.now_ns
        if self._series is not None:
            self._series.pass_time(self.row, self.rate, self.now_ns, time_ns)
        self.left -= self.rate * self._network.goodput[self.row] * passed
        self._work += self.load * passed
        self._crowd += self.users * passed
        self.now_ns = time_ns

    def usage(self, row: IntArray, position: IntArray, owner: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean load and mean number of users of constraints since flows began.

        Args:
            row: int64 (k,), rows.
            position: entries of the network's matrix.
            owner: index into `row` of each entry.

        Returns:
            Gb/s and number, one of each per entry.
        """
        constraint = self._network.matrix.constraint[position]
        passed = (self.now_ns - self._then_ns[row])[owner]
        with np.errstate(divide="ignore", invalid="ignore"):
            load = (self._work[constraint] - self._work_then[position]) / passed
            users = (self._crowd[constraint] - self._crowd_then[position]) / passed
        fresh = passed <= 0.0
        return (
            np.where(fresh, self.load[constraint], load),
            np.where(fresh, self.users[constraint], users),
        )

    def _note_beginning(self, row: IntArray) -> None:
        matrix = self._network.matrix
        position, _ = gather_rows(matrix.offset, row)
        self._work_then[position] = self._work[matrix.constraint[position]]
        self._crowd_then[position] = self._crowd[matrix.constraint[position]]
        self._then_ns[row] = self.now_ns

    def add(self, task: IntArray, row: IntArray, begin_ns: FloatArray, bits: FloatArray) -> None:
        """Adds parts that began to send at or before now."""
        network = self._network
        fresh = network.alone[row]
        fits = not self._is_stale and self._fits(row, fresh)
        self._note_beginning(row)
        first = len(self.task)
        self.task = np.concatenate((self.task, task))
        self.row = np.concatenate((self.row, row))
        self.begin_ns = np.concatenate((self.begin_ns, begin_ns))
        self.left = np.concatenate((self.left, bits))
        self._counted = np.concatenate((self._counted, bits))
        self.rate = np.concatenate((self.rate, fresh))
        if not fits:
            self.fill()
        # They have been sending since they began, which may be a moment ago.
        earlier = self.rate[first:] * (self.now_ns - begin_ns)
        self.left[first:] -= earlier * network.goodput[row]
        if self._series is not None:
            self._series.correct(row, earlier, self.now_ns)

    def _fits(self, row: IntArray, rate: FloatArray) -> bool:
        """Lets parts in at the rate they would have alone, unless that is more than there is room for."""
        matrix = self._network.matrix
        position, owner = gather_rows(matrix.offset, row)
        constraint = matrix.constraint[position]
        more = matrix.share[position] * rate[owner]
        np.add.at(self.load, constraint, more)
        np.add.at(self.users, constraint, 1.0)
        if (self.load[constraint] <= self._network.capacity[constraint] * (1.0 + 1e-9)).all():
            return True
        self._is_stale = True
        return False

    def remove(self, index: IntArray) -> None:
        """Takes parts out; others get more if a constraint held them back that is no longer full."""
        matrix = self._network.matrix
        position, owner = gather_rows(matrix.offset, self.row[index])
        constraint = matrix.constraint[position]
        was_full = self.load[constraint] >= self._network.capacity[constraint] * FULL
        was_full &= self._network.can_fill[constraint]
        np.subtract.at(self.load, constraint, matrix.share[position] * self.rate[index][owner])
        np.subtract.at(self.users, constraint, 1.0)
        if (was_full & (self.users[constraint] > 0.5)).any():
            self._is_stale = True
        if self._series is not None:
            goodput = self._network.goodput[self.row[index]]
            excess = np.divide(self.left[index], goodput, out=np.zeros(len(index)), where=goodput > 0)
            self._series.correct(self.row[index], excess, self.now_ns)
        self._count(index)
        kept = np.ones(len(self.task), np.bool_)
        kept[index] = False
        self.task, self.row, self.begin_ns = self.task[kept], self.row[kept], self.begin_ns[kept]
        self.left, self.rate, self._counted = self.left[kept], self.rate[kept], self._counted[kept]

    def refresh(self) -> None:
        """Computes rates anew if parts left that others had to share with."""
        if self._is_stale and len(self.task):
            self.fill()

    def fill(self) -> None:
        """Computes all rates anew."""
        network, self._is_stale = self._network, False
        self.fills += 1
        matrix = network.matrix
        position, owner = gather_rows(matrix.offset, self.row)
        offset = np.zeros(len(self.row) + 1, np.int64)
        np.cumsum(np.bincount(owner, minlength=len(self.row)), out=offset[1:])
        mine = LoadMatrix(offset, matrix.constraint[position], matrix.share[position])
        tight = mine if network.tight_matrix.num_entries == matrix.num_entries else self._tight_rows()
        if self._weight is not None:
            tight = self._unequal(tight, self._weight)
        self.rate = max_min_rates(tight, network.capacity, network.limit[self.row])
        count = len(network.capacity)
        self.load = sums(mine.constraint, mine.share * self.rate[owner], count)
        self.users = np.bincount(mine.constraint, minlength=count).astype(np.float64)

    def _unequal(self, matrix: LoadMatrix, weight: FloatArray) -> LoadMatrix:
        """Gives weights where queues overflow as flows begin: that cuts some of them down more than others."""
        network, owner = self._network, matrix.owners()
        source = network.plan.row_source[self.row]
        senders = np.bincount(source, minlength=network.topology.num_nics)
        offered = network.alone[self.row] / senders[source]
        load = sums(matrix.constraint, matrix.share * offered[owner], len(network.capacity))
        bound = np.where(network.enters_nic, OVERFLOWING_LAST, OVERFLOWING) * network.capacity
        crowded = load > bound
        if not crowded.any():
            return matrix
        return replace(matrix, weight=np.where(crowded[matrix.constraint], weight[self.task][owner], 1.0))

    def _tight_rows(self) -> LoadMatrix:
        matrix = self._network.tight_matrix
        position, _ = gather_rows(matrix.offset, self.row)
        length = matrix.offset[self.row + 1] - matrix.offset[self.row]
        return LoadMatrix(offsets_of(length), matrix.constraint[position], matrix.share[position])

    # -- accounts ------------------------------------------------------------------------------------------

    def _count(self, index: IntArray) -> None:
        """Books what parts have sent over their present rows."""
        network = self._network
        row = self.row[index]
        goodput = network.goodput[row]
        brought = self._counted[index] - np.maximum(self.left[index], 0.0)
        sent = np.divide(brought, goodput, out=np.zeros(len(index)), where=goodput > 0)
        network.carry(row, sent)
        self._counted[index] = np.maximum(self.left[index], 0.0)
        np.add.at(self.lost_bits, self.task[index], sent - brought)

    def count_all(self) -> None:
        """Books everything sent so far, before ways change."""
        self._count(np.arange(len(self.task)))

    def rebind(self) -> None:
        """Goes over to ways that changed."""
        self._reset_loads()
        if self._series is not None:
            self._series.rebind()
        self.refresh()
