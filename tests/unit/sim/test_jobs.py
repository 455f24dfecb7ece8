"""Where jobs are placed, and steps that follow each other."""

import numpy as np
import pytest

from farstep.fabric.errors import ConfigError
from farstep.sim.tasks import TaskBuilder, WorkloadError
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.jobs import Placer, repeat

RACKS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_jobs_get_nics_of_their_own():
    placer = Placer(RACKS)
    packed = placer.place(5, "packed")
    spread = placer.place(4, "spread")
    drawn = placer.place(None, "random", seed=3)
    assert packed.tolist() == [0, 1, 2, 3, 4]
    assert spread.tolist() == [5, 8, 6, 9]  # a NIC of each rack that has one left, in turn
    assert sorted([*packed, *spread, *drawn]) == list(range(12))
    assert placer.num_free == 0


def test_named_nics_are_taken_as_they_are():
    placer = Placer(RACKS)
    assert placer.place(None, [7, 0]).tolist() == [7, 0]
    assert placer.place(2, "packed").tolist() == [1, 2]
    assert placer.place(2, [0, 1]).tolist() == [0, 1]  # two jobs on one NIC, when asked for


@pytest.mark.parametrize(
    ("count", "policy", "message"),
    [
        (13, "packed", "13 ranks need as many NICs; 12 of 12 are free"),
        (2, "near", 'placement is "near"; valid: packed, spread, random, or a list of NIC numbers'),
        (2, [1, 2, 3], "3 NICs are named for 2 ranks"),
        (None, [12], "NIC 12 is named; the fabric has 0..11"),
        (None, [1, 1], "NIC 1 is given to two ranks"),
    ],
)
def test_an_impossible_placement_is_refused(count, policy, message):
    with pytest.raises(WorkloadError) as caught:
        Placer(RACKS).place(count, policy)
    assert message in str(caught.value)


def finish_times(table, flow_ns: int) -> np.ndarray:
    """When every task is done if flows last so long and nothing is in their way."""
    finish = np.full(len(table), -1, np.int64)
    while (finish < 0).any():
        for task in np.flatnonzero(finish < 0):
            before = finish[table.predecessors(task)]
            if (before < 0).any():
                continue
            start = max(table.start_ns[task], before.max(initial=0) + table.delay_ns[task])
            finish[task] = start + (flow_ns if table.is_flow[task] else 0)
    return finish


def test_steps_follow_each_other():
    once = ring_all_reduce(4, 400)
    for barrier in (False, True):
        table = repeat(once, 3, barrier=barrier, gap_ns=7).validate(4)
        finish = finish_times(table, flow_ns=10)
        ends = [finish[table.tag == step].max() for step in range(3)]
        assert ends == [60, 127 + 7 * 0, 194] or ends == [
            60 + 7,
            127 + 7,
            194,
        ]  # gaps belong to the step before
        assert table.num_flows == 3 * once.num_flows


def test_a_step_of_one_nic_does_not_wait_for_the_others():
    build = TaskBuilder()
    build.flows([0, 2], [1, 3], 10, delay_ns=[0, 1000])
    table = repeat(build.table(), 2).validate(4)
    finish = finish_times(table, flow_ns=10)
    flows = np.flatnonzero(table.is_flow & (table.tag == 1))
    assert finish[flows].tolist() == [20, 2020]
    finish = finish_times(repeat(build.table(), 2, barrier=True), flow_ns=10)
    assert sorted(finish)[-2:] == [1020, 2020]


def test_once_is_not_repeated():
    once = ring_all_reduce(4, 400)
    assert repeat(once, 1) is once
    with pytest.raises(ConfigError, match="times = 0: must be a whole number from 1"):
        repeat(once, 0)
