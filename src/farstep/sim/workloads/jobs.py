"""Several jobs on one fabric: which NICs each gets, and steps that follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.errors import quoted
from farstep.fabric.expected import expect, expect_list, expect_whole
from farstep.sim.tasks import TIME_NS_MAX, TaskBuilder, TaskTable, WorkloadError, whole_numbers
from farstep.sim.workloads.ranks import Nics, to_nics

__all__ = ["PLACEMENTS", "Placer", "delayed", "in_background", "repeat"]

NICS_MAX = 2**20
"""More NICs than this are a slip."""

PLACEMENTS = ("packed", "spread", "random")
"""Policies by name; a list of NICs is the fourth."""


class Placer:
    """Gives NICs to jobs, one after the other; a NIC serves one job only unless it is named explicitly.

    Args:
        groups: number of the rack (the first switch) of every NIC, int (nics,), or the number of NICs.

    Example:
        >>> placer = Placer([0, 0, 1, 1])
        >>> placer.place(2, "spread").tolist(), placer.place(2, "packed").tolist()
        ([0, 2], [1, 3])
    """

    def __init__(self, groups: int | ArrayLike) -> None:
        if isinstance(groups, int):
            expect_whole("groups", groups, 1, NICS_MAX)
            groups = np.zeros(groups, np.int64)
        self._groups: NDArray[np.int64] = whole_numbers("groups", groups)
        if self._groups.ndim != 1 or not len(self._groups):
            raise WorkloadError(f"groups has shape {self._groups.shape}; it needs one number for each NIC")
        self._is_free = np.ones(len(self._groups), bool)

    @property
    def num_free(self) -> int:
        """NICs no job has yet."""
        return int(self._is_free.sum())

    def place(self, count: int | None, policy: str | Sequence[int] = "packed", *, seed: int = 0) -> Nics:
        """Returns the NIC of every rank of a job.

        Args:
            count: number of ranks; None: all NICs that are free, or as many as are named.
            policy: `packed` fills rack after rack, `spread` takes a NIC of each rack in turn, `random` draws;
                a list names the NICs, taken or not.
            seed: of the draw.

        Raises:
            WorkloadError: there are not so many, or no such policy.
        """
        if count is not None:
            expect_whole("count", count, 1, NICS_MAX)
        if not isinstance(policy, str):
            return self._named(count, expect_list("placement", policy, "NIC numbers"))
        if policy not in PLACEMENTS:
            raise WorkloadError(
                f"placement is {quoted(policy)}; valid: {', '.join(PLACEMENTS)}, or a list of NIC numbers"
            )
        wanted = self.num_free if count is None else count
        if not 0 < wanted <= self.num_free:
            total = len(self._groups)
            raise WorkloadError(f"{wanted} ranks need as many NICs; {self.num_free} of {total} are free")
        free = np.flatnonzero(self._is_free)
        if policy == "random":
            chosen = np.random.default_rng([seed, wanted]).permutation(free)[:wanted]
        else:
            by_rack = free[np.argsort(self._groups[free], kind="stable")]
            chosen = (by_rack if policy == "packed" else self._in_turn(by_rack))[:wanted]
        self._is_free[chosen] = False
        return chosen.astype(np.int64)

    def _in_turn(self, by_rack: NDArray[np.int64]) -> NDArray[np.int64]:
        """First NIC of every rack, second of every rack, and so on."""
        racks, first = np.unique(self._groups[by_rack], return_index=True)
        within = np.arange(len(by_rack)) - first[np.searchsorted(racks, self._groups[by_rack])]
        return by_rack[np.argsort(within, kind="stable")]

    def _named(self, count: int | None, nics: Sequence[int]) -> Nics:
        chosen = to_nics(whole_numbers("placement", nics), at_least=1)
        if count is not None and count != len(chosen):
            raise WorkloadError(f"{len(chosen)} NICs are named for {count} ranks")
        if chosen.max() >= len(self._groups):
            raise WorkloadError(f"NIC {chosen.max()} is named; the fabric has 0..{len(self._groups) - 1}")
        self._is_free[chosen] = False
        return chosen


def repeat(table: TaskTable, times: int, *, barrier: bool = False, gap_ns: int = 0) -> TaskTable:
    """Does the same again and again: step k+1 of a NIC starts when it has sent and received all of step k.

    Args:
        table: tasks of one step, of one job.
        times: number of steps, at least 1.
        barrier: whether a step starts only when all NICs are done with the one before.
        gap_ns: time between the steps.
    """
    expect("table", table, TaskTable, "a TaskTable")
    expect_whole("times", times, 1, 10**6)
    expect_whole("gap_ns", gap_ns, 0, TIME_NS_MAX)
    if times == 1:
        return table
    build = TaskBuilder(job_names=[table.job_names[0]])
    has_follower = np.zeros(len(table), bool)
    has_follower[table.dep_index] = True
    lasts = np.flatnonzero(~has_follower)
    roots = np.flatnonzero(np.diff(table.dep_offset) == 0)
    nics = np.array([-1]) if barrier else np.unique(table.source[roots])
    flows = np.flatnonzero(table.is_flow)
    gates: NDArray[np.int64] | None = None
    for step in range(times):
        build.tag = step
        ids = build.append(table)
        if gates is not None:
            build.after(ids[roots], gates[0 if barrier else np.searchsorted(nics, table.source[roots])])
        if step + 1 == times:
            break
        gates = build.delays(table.source[roots[:1]] if barrier else nics, gap_ns, phase="join")
        if barrier:
            build.after(gates, ids[lasts])
            continue
        for tasks, ends in ((lasts, table.source[lasts]), (flows, table.target[flows])):
            known = np.isin(ends, nics)
            build.after(gates[np.searchsorted(nics, ends[known])], ids[tasks[known]])
    return build.table()


def delayed(table: TaskTable, start_ns: int) -> TaskTable:
    """The same tasks, none of which starts before `start_ns` more than it would."""
    is_root = np.diff(table.dep_offset) == 0
    return replace(table, start_ns=np.where(is_root | (table.start_ns > 0), table.start_ns + start_ns, 0))


def in_background(table: TaskTable) -> TaskTable:
    """The same tasks as part of no step."""
    return replace(table, tag=np.full(len(table), -1, np.int32))
