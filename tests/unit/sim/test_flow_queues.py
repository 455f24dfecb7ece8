"""Queues as fluids, and the paths of hashed flows."""

import numpy as np
import pytest

from farstep import sim
from farstep.fabric.topology import clos, fat_tree, leaf_spine
from farstep.sim.flow import FlowSimulator, settings_for
from farstep.sim.flow.queues import LinkQueues, aligned_paths
from farstep.sim.tasks import TaskTable

PACKET_BITS = 1000.0


def two_into_one(**settings):
    """Two flows over links 0 and 1 into link 2, all of 100 bits per ns; link 3 stands for none."""
    queues = LinkQueues(np.full(3, 100.0), 2, packet_bits=PACKET_BITS, **settings)
    queues.add(2)
    return queues, np.array([[0, 1], [2, 2]])


def test_what_does_not_fit_waits_and_leaves_in_order():
    queues, path = two_into_one()

    sent, arrived, lost = queues.move(path, np.array([100.0, 100.0]) * 10.0, 10.0)
    assert sent == pytest.approx([1000.0, 1000.0])
    assert arrived == pytest.approx([500.0, 500.0])
    assert not lost.any()
    assert queues.depth[2] == pytest.approx(1000.0)

    # What waits goes first: the newcomer's bits have to stay.
    _, arrived, _ = queues.move(path, np.array([1000.0, 0.0]), 10.0)
    assert arrived == pytest.approx([500.0, 500.0])
    _, arrived, _ = queues.move(path, np.zeros(2), 10.0)
    assert arrived == pytest.approx([1000.0, 0.0])
    assert queues.depth[2] == pytest.approx(0.0)


def test_a_link_is_paused_by_what_it_brought():
    queues, path = two_into_one(pause=2000.0)
    for _ in range(20):
        sent, arrived, _ = queues.move(path, np.array([1000.0, 1000.0]), 10.0)
    assert queues.depth[2] == pytest.approx(4000.0, rel=0.1)
    assert sent == pytest.approx([500.0, 500.0])
    assert arrived == pytest.approx([500.0, 500.0])


def test_a_full_queue_loses_whole_packets_and_nothing_else():
    queues, path = two_into_one(limit=np.full(3, 3000.0), seed=1)
    total = np.zeros(3)
    for _ in range(100):
        sent, arrived, lost = queues.move(path, np.array([1000.0, 1000.0]), 10.0)
        total += [sent.sum(), arrived.sum(), lost.sum()]
        assert np.minimum(lost % PACKET_BITS, PACKET_BITS - lost % PACKET_BITS) == pytest.approx(
            0.0, abs=1e-6
        )
    assert total[0] == pytest.approx(total[1] + total[2] + queues.waiting.sum())
    assert total[2] == pytest.approx(100_000.0, rel=0.1)


def test_links_stand_in_the_same_column_whichever_way_leads_over_them():
    fabric = fat_tree(16, radix=4)
    paths = fabric.routes().paths([0, 0, 0], [1, 2, 15], 0, 0)
    links = [row[row >= 0] for row in paths]
    offset = np.r_[0, np.cumsum([len(row) for row in links])]
    ends = (fabric.link_source.astype(np.int64), fabric.link_target.astype(np.int64))
    shuffled = np.concatenate([np.sort(row) for row in links]).astype(np.int64)

    found = aligned_paths(shuffled, offset, np.zeros(3, np.int64), ends, fabric.node_tier.astype(np.int64))

    assert found.shape == (3, 6)
    for row, expected in zip(found, links, strict=True):
        assert row[row < fabric.num_links].tolist() == expected.tolist()
    assert (found[:, 0] == found[0, 0]).all()
    assert (found[:, 5] < fabric.num_links).all()
    assert (found[0, 1:5] == fabric.num_links).all()


@pytest.mark.parametrize("transport", ["roce", "tcp"])
@pytest.mark.parametrize("planes", [1, 4])
def test_hashed_flows_take_the_paths_of_the_packet_engine(transport, planes):
    fabric = clos(32, planes=planes) if planes > 1 else fat_tree(54, radix=6)
    loads = [
        sim.simulate(
            fabric, sim.permutation(size_bytes=40_960), transport=transport, seed=5, level=level
        ).links.bytes
        for level in ("packet", "flow")
    ]
    # Answers, of which this counts even those that take another way back, are a few percent.
    carried = [load > 20_000 for load in loads]
    assert (carried[0] == carried[1]).all()
    assert carried[0].sum() > 32


@pytest.mark.parametrize("transport", ["roce", "tcp"])
def test_hashed_flows_alone_and_in_turn(transport):
    fabric = leaf_spine(leaves=2, spines=2, nics_per_leaf=2)
    tasks = TaskTable.from_columns(source=[0, 0], target=[2, 2], size_bytes=[1_000_000, 1_000_000])
    simulator = FlowSimulator(fabric, settings_for(transport))
    result = simulator.run(tasks, seed=1)
    alone = simulator.run(TaskTable.from_columns(source=[0], target=[2], size_bytes=1_000_000)).duration_ns
    assert result.is_complete
    assert result.finish_ns[0] == pytest.approx(alone)
    # The second has no slow start to go through again.
    assert 0.75 * alone < result.finish_ns[1] - result.finish_ns[0] < 1.01 * alone
    assert result.links.bytes.max() > 2_000_000
    assert simulator.run(tasks, seed=1).finish_ns.tolist() == result.finish_ns.tolist()


def dead_end(transport, **run):
    fabric = leaf_spine(leaves=2, spines=1, nics_per_leaf=2)
    fault = {"kind": "link_down", "link": "t0/p0/0-t1/p0/0", "at_us": 20}
    workload = TaskTable.from_columns(
        source=[0, 0, 1],
        target=[2, 1, 3],
        size_bytes=[10_000_000, 10_000, 10_000_000],
    )
    return sim.simulate(fabric, workload, transport=transport, level="flow", faults=[fault], **run)


@pytest.mark.parametrize("transport", ["mrc", "roce", "tcp"])
def test_a_stuck_run_tells_what_waits_and_what_was_done(transport):
    with pytest.raises(
        sim.SimulationStalled, match=r"tasks are unfinished: .*NIC 0 -> 2.*; .*NIC 1 -> 3"
    ) as caught:
        dead_end(transport)
    result = caught.value.result
    assert result.finished.tolist() == [False, True, False]
    assert 0 < result.finish_ns[1] < 20_000
    assert result.meta["stalled"] == str(caught.value)


@pytest.mark.parametrize("transport", ["mrc", "roce", "tcp"])
def test_a_repair_lets_a_run_go_on(transport):
    fabric = leaf_spine(leaves=2, spines=1, nics_per_leaf=2)
    tasks = TaskTable.from_columns(source=[0], target=[2], size_bytes=10_000_000)
    fault = {"kind": "link_down", "link": "t0/p0/0-t1/p0/0", "at_us": 20, "duration_ms": 2}
    hurt = sim.simulate(fabric, tasks, transport=transport, level="flow", faults=[fault])
    sound = sim.simulate(fabric, tasks, transport=transport, level="flow")
    assert hurt.is_complete
    assert hurt.duration_ns > sound.duration_ns + 1_900_000


@pytest.mark.parametrize("transport", ["mrc", "roce"])
def test_progress_is_told(transport, monkeypatch):
    monkeypatch.setattr("farstep.sim.flow.run.PROGRESS_S", 0.0)
    told = []
    fabric = leaf_spine(leaves=2, spines=2, nics_per_leaf=4)
    workload = sim.all_to_all(size_bytes=100_000)
    result = sim.simulate(fabric, workload, transport=transport, level="flow", on_progress=told.append)
    done = [step.done for step in told]
    assert done == sorted(done)
    assert done[-1] == told[-1].tasks == len(result.tasks)
    assert told[0].now_ns < told[-1].now_ns <= result.duration_ns
    assert any(0 < count < len(result.tasks) for count in done)
