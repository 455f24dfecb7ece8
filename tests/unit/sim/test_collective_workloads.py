"""Collectives as flows: what is generated without objects equals what the schedule says."""

import time
from collections import Counter

import numpy as np
import pytest

from farstep.collectives.schedule import (
    hierarchical_all_reduce as hierarchical_schedule,
)
from farstep.collectives.schedule import (
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    split_evenly,
    tree_reduce,
)
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.workloads import collectives
from farstep.sim.workloads.collectives import COLLECTIVES, collective, from_schedule, ring_steps


def as_graph(table: TaskTable) -> Counter[int]:
    """Each flow by what it is and by all that leads to it, whatever the numbers of the tasks are."""
    table.validate()
    known: list[int] = []
    for task in range(len(table)):
        what = (table.source[task], table.target[task], table.size_bytes[task], table.delay_ns[task])
        before = sorted(known[earlier] for earlier in table.predecessors(task))
        known.append(hash((tuple(map(int, what)), tuple(before))))
    return Counter(known)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("size_bytes", [1, 3, 700, 10_000])
def test_rings_equal_their_schedules(size, size_bytes):
    blocks = split_evenly(size_bytes, size)
    for ours, schedule in (
        (collectives.ring_all_reduce, ring_all_reduce(size, size_bytes)),
        (collectives.ring_reduce_scatter, ring_reduce_scatter(blocks)),
        (collectives.ring_all_gather, ring_all_gather(blocks)),
    ):
        made = ours(size, size_bytes, step_delay_ns=9)
        expected = from_schedule(schedule, step_delay_ns=9)
        assert len(made) == len(expected)
        assert as_graph(made) == as_graph(expected)


@pytest.mark.parametrize(("groups", "members"), [(1, 4), (2, 1), (2, 2), (2, 5), (3, 2), (4, 3)])
def test_the_hierarchical_all_reduce_of_equal_groups_equals_its_schedule(groups, members):
    size_bytes = groups * members * 100
    sites = np.arange(groups * members).reshape(groups, members)
    made = collectives.hierarchical_all_reduce(sites, size_bytes, step_delay_ns=3)
    expected = from_schedule(hierarchical_schedule(sites.tolist(), size_bytes), step_delay_ns=3)
    assert len(made) == len(expected)
    assert as_graph(made) == as_graph(expected)


def test_unequal_groups_go_by_the_schedule():
    made = collectives.hierarchical_all_reduce([[5, 6], [9]], 1001)
    expected = from_schedule(hierarchical_schedule([[0, 1], [2]], 1001), [5, 6, 9])
    assert as_graph(made) == as_graph(expected)


def test_a_ring_of_1024_ranks_is_made_in_a_moment():
    begin = time.process_time()
    table = collectives.ring_all_reduce(1024, 1 << 30)
    assert time.process_time() - begin < 10
    assert len(table) == 2046 * 1024
    assert table.total_bytes == 2 * 1023 * (1 << 30)


def test_a_send_waits_for_every_part_of_its_sum():
    table = from_schedule(tree_reduce(4, 100, 0))
    by_ends = {(int(s), int(t)): i for i, (s, t) in enumerate(zip(table.source, table.target, strict=True))}
    assert table.predecessors(by_ends[2, 0]).tolist() == [by_ends[3, 2]]
    assert table.predecessors(by_ends[1, 0]).tolist() == []


def test_recursive_doubling_sends_what_the_steps_before_brought():
    table = from_schedule(recursive_doubling_all_reduce(8, 100))
    counts = [len(table.predecessors(task)) for task in range(len(table))]
    assert sorted(counts) == [0] * 8 + [1] * 8 + [2] * 8


def test_rings_wait_for_their_members_own_data():
    build = TaskBuilder()
    ready = build.delays([0, 1, 2], [10, 20, 30])
    received = ring_steps(build, [0, 1, 2], 100, reduces=True, gathers=True, after=ready)
    table = build.table().validate(3)
    flows = np.arange(3, 15).reshape(4, 3)
    assert table.predecessors(flows[0, 1]).tolist() == [1]
    assert table.predecessors(flows[1, 1]).tolist() == [flows[0, 0], 1]
    assert table.predecessors(flows[2, 1]).tolist() == [
        flows[1, 0],
        1,
    ]  # the sum it completed is partly its own
    assert table.predecessors(flows[3, 1]).tolist() == [flows[2, 0]]
    assert received[0, :, 1].tolist() == [flows[1, 0], flows[2, 0], flows[3, 0]]  # own block, then the others


def test_channels_are_connections_of_their_own():
    table = collectives.ring_all_reduce(4, 1000, channels=3)
    assert sorted(set(table.connection_key.tolist())) == [0, 1, 2]
    assert table.total_bytes == 6 * 1000


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_runs_with_every_algorithm(name):
    nics = [3, 1, 4, 15, 9, 2]
    for algorithm in COLLECTIVES[name]:
        table = collective(name, nics, 60_000, algorithm=algorithm, group_size=3).validate(16)
        assert set(table.source.tolist()) | set(table.target.tolist()) == set(nics)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduc", 4, 100), 'collective is "all_reduc"; valid: all_reduce, '),
        (("all_reduce", 1, 100), "1 ranks are too few; at least 2 are needed"),
        (("all_reduce", [1, 1], 100), "NIC 1 is given to two ranks"),
        (("all_reduce", 4, 0), "size_bytes is 0; it must be at least 1"),
    ],
)
def test_wrong_collectives_are_named(arguments, message):
    with pytest.raises(WorkloadError) as caught:
        collective(*arguments)
    assert message in str(caught.value)


def test_wrong_algorithms_and_groups_are_named():
    with pytest.raises(WorkloadError, match="valid: ring, tree, recursive_doubling, hierarchical"):
        collective("all_reduce", 4, 100, algorithm="rng")
    with pytest.raises(WorkloadError, match="group_size is 3; it must divide the 4 ranks"):
        collective("all_reduce", 4, 100, algorithm="hierarchical", group_size=3)
