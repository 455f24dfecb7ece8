"""The ways of acknowledgements in the packet engine: one for each port of the receiver, drawn when routes are made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import HERE
from farstep.sim.flow.bundles import BundleTable
from farstep.sim.flow.hashing import Draws
from farstep.sim.flow.rows import Rows, hashed_rows, lanes_between
from farstep.sim.flow.walk import HOPS_MAX, RoutingView

__all__ = ["answer_rows"]

IntArray = NDArray[np.int64]
Words = NDArray[np.uint64]


def answer_rows(
    view: RoutingView, table: BundleTable, ends: tuple[IntArray, IntArray], port: IntArray, words: Words
) -> Rows:
    """Finds the ways by which receivers answer.

    Args:
        view: the network.
        table: where bundles are kept.
        ends: sources and targets of the data, NICs, int64 (rows,).
        port: int64 (rows,), port of its source that the data of each row leaves by.
        words: uint64 (rows,), what ways are drawn of.
    """
    source, target = ends
    draws, counter = Draws(words), np.zeros(len(words), np.int64)
    # The engine looks at all ways out first, which takes draws from the ways back.
    there = _Ports.of(view, source, target)
    for number in range(there.count.shape[1]):
        _walk(draws, counter, there.count[:, number])
    arrives = there.arrives_by[np.arange(len(words)), port]
    back, path = _Ports.of(view, target, source), np.zeros(len(words), np.uint64)
    for number in range(back.count.shape[1]):
        start = _walk(draws, counter, back.count[:, number])
        path = np.where(arrives == number, start, path)
    return hashed_rows(view, table, target, source, words, 1, (arrives, path))


class _Ports:
    """Paths from each port of NICs to others.

    Attributes:
        count: int64 (rows, ports), number of paths; 0: there is none.
        arrives_by: int64 (rows, ports), port of the far NIC where the first of them ends.
    """

    def __init__(self, count: IntArray, arrives_by: IntArray) -> None:
        self.count, self.arrives_by = count, arrives_by

    @classmethod
    def of(cls, view: RoutingView, source: IntArray, target: IntArray) -> _Ports:
        """Counts them as the packet engine does: by the links at every hop of the first one."""
        topology = view.topology
        offset = topology.ports.offset
        number = np.zeros(topology.num_links, np.int64)
        number[topology.ports.link] = np.arange(len(topology.ports.link)) - offset[topology.ports.nic]
        lanes = lanes_between(topology, source, target)
        distinct, first, inverse = np.unique(
            lanes.row * (int(np.diff(offset).max(initial=1)) + 1) + number[lanes.up],
            return_index=True,
            return_inverse=True,
        )
        row, up, down = lanes.row[first], number[lanes.up[first]], lanes.down[first]
        paths = np.bincount(inverse, minlength=len(distinct)).astype(np.int64)
        if topology.via_switches is not None:
            paths *= len(topology.via_switches)
        node = topology.link_target[lanes.up[first]].astype(np.int64)
        goal = topology.link_source[down].astype(np.int64)
        walking = np.arange(len(row))
        for _ in range(HOPS_MAX):
            sets = view.sets(node[walking], goal[walking])
            paths[walking[(sets < 0) & (sets != HERE)]] = 0
            walking, sets = walking[sets >= 0], sets[sets >= 0]
            if not len(walking):
                break
            paths[walking] *= np.diff(view.set_offset)[sets]
            node[walking] = topology.link_target[view.set_links[view.set_offset[sets]]]
        shape = (len(source), int(np.diff(offset).max(initial=1)))
        count, arrives_by = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        count[row, up], arrives_by[row, up] = paths, number[down ^ 1]
        return cls(count, arrives_by)


def _walk(draws: Draws, counter: IntArray, count: IntArray) -> Words:
    """Draws the first of so many paths, and a stride through them, which no answer needs; moves the counters on."""
    some = np.flatnonzero(count > 0)
    size = count.astype(np.uint64)
    start = np.zeros(len(count), np.uint64)
    start[some] = draws.at(counter[some], some) % size[some]
    counter[some] += 1
    while len(some):
        stride = draws.at(counter[some], some) % size[some] + np.uint64(1)
        counter[some] += 1
        some = some[np.gcd(stride, size[some]) != 1]
    return start
