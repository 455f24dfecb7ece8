"""Connections from one NIC to another share a congestion window."""

from __future__ import annotations

import numpy as np
import pytest

from farstep.fabric.topology import leaf_spine
from farstep.sim.reproduce.runs import run, streams


def incast(queue_pairs: int, until_us: float = 1_000.0):
    """Seven NICs of other racks send to one, each over some queue pairs."""
    topology = leaf_spine(leaves=4, spines=4, nics_per_leaf=4, planes=1, port_gbps=400.0)
    tasks = streams(
        np.arange(4, 11), np.zeros(7, int), 100_000, queue_pairs=queue_pairs, messages=24 // queue_pairs
    )
    return run(topology, tasks, seed=1, until_ns=until_us * 1000)


@pytest.mark.parametrize("queue_pairs", [2, 8])
def test_more_queue_pairs_are_no_more_aggressive(queue_pairs):
    one, many = incast(1), incast(queue_pairs)
    share = [run.counters["trimmed"] / run.counters["sent"] for run in (one, many)]
    assert many.finished.all()
    assert share[1] < 1.3 * share[0]


def test_a_connection_that_waits_for_room_goes_on_when_a_sibling_is_acknowledged():
    # The first connection ends long before the other, whose window it opened.
    topology = leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2, port_gbps=100.0)
    tasks = streams([0, 0], [3, 3], 4_000_000, queue_pairs=4, messages=2)
    found = run(topology, tasks, seed=1)
    assert found.finished.all()
    line_ns = 16 * 4_000_000 * 8 / 200
    assert found.finish_ns.max() < 1.15 * line_ns
