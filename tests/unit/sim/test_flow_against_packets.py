"""The flow level against the packet engine on shared cases: medians within 5 %, P99 within 10 %."""

import numpy as np
import pytest

from farstep.fabric.topology import clos, fat_tree
from farstep.sim.closed_form import MessageTimes, ring_all_reduce_ns, ring_pairs
from farstep.sim.faults import LinkAction
from farstep.sim.flow import FlowSimulator, settings_for
from farstep.sim.flow.symmetric import ring_time_ns
from farstep.sim.packet import PacketSimulator
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.patterns import incast, permutation

MEDIAN_BAND = 0.05
P99_BAND = 0.10
FAULT_BAND = 0.15
"""For P99 where a dead link leaves too few paths: senders that find out by losses lose some time by it."""


@pytest.fixture(scope="module")
def tree():
    return fat_tree(128, radix=8)


def both(fabric, tasks, faults=(), seed=1):
    """Flow times in packets and by rates."""
    packets = PacketSimulator(fabric).run(tasks, faults, seed)
    rates = FlowSimulator(fabric, settings_for("mrc")).run(tasks, faults, seed)
    assert packets.is_complete
    assert rates.is_complete
    return packets.flow_times_ns(), rates.flow_times_ns()


def assert_alike(fabric, tasks, faults=()):
    band = FAULT_BAND if faults else P99_BAND
    packets, rates = both(fabric, tasks, faults)
    assert np.median(rates) == pytest.approx(np.median(packets), rel=MEDIAN_BAND)
    assert np.percentile(rates, 99) == pytest.approx(np.percentile(packets, 99), rel=band)


def at(fabric, time_us, target, kind="down", value=0.0):
    links = np.asarray(fabric.resolve(target), np.int32)
    return LinkAction(time_ns=round(time_us * 1000), links=links, kind=kind, value=value)


@pytest.mark.parametrize("size_bytes", [4096, 100_000, 2_000_000])
@pytest.mark.parametrize("target", [1, 5, 127])
def test_single_flows_agree_to_the_nanosecond_or_two(tree, size_bytes, target):
    packets, rates = both(tree, TaskTable.from_columns(source=[0], target=[target], size_bytes=size_bytes))
    assert rates[0] == pytest.approx(packets[0], abs=5)


@pytest.mark.parametrize("size_bytes", [200_000, 2_000_000])
def test_permutations(tree, size_bytes):
    assert_alike(tree, permutation(128, size_bytes, seed=4))


def test_a_larger_permutation():
    assert_alike(fat_tree(432, radix=12), permutation(432, 2_000_000, seed=1))


def test_planes():
    assert_alike(clos(128, planes=8), permutation(128, 2_000_000, seed=1))


def test_a_ring():
    assert_alike(fat_tree(16, radix=4), ring_all_reduce(16, 16 * 500_000))


def test_the_last_flow_of_an_incast(tree):
    packets, rates = both(tree, incast(128, 1_000_000, senders=31, victim=False))
    assert rates.max() == pytest.approx(packets.max(), rel=P99_BAND)


@pytest.mark.parametrize("target", ["link:t0/p0/0-t1/p0/0", "switch:t1/p0/0"])
def test_a_part_that_dies(tree, target):
    assert_alike(tree, permutation(128, 2_000_000, seed=1), [at(tree, 50, target)])


def test_a_link_at_a_quarter_of_its_rate(tree):
    slow = at(tree, 0, "link:t0/p0/0-t1/p0/0", "rate", 0.25)
    assert_alike(tree, permutation(128, 2_000_000, seed=1), [slow])


def test_a_port_that_dies():
    fabric = clos(32, planes=4)
    assert_alike(fabric, permutation(32, 8_000_000, seed=1), [at(fabric, 50, "nic-port:0/1")])


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_rings_without_simulation_are_within_a_percent_or_two(is_shuffled):
    fabric, members, size_bytes = fat_tree(16, radix=4), np.arange(16), 16 * 1_000_000
    settings = settings_for("mrc")
    if is_shuffled:
        members = np.random.default_rng(1).permutation(16)
    packets = PacketSimulator(fabric).run(ring_all_reduce(members, size_bytes)).duration_ns
    assert ring_time_ns(fabric, members, size_bytes, settings) == pytest.approx(packets, rel=0.015)
    if not is_shuffled:
        times = MessageTimes.between(fabric, *ring_pairs(members), settings)
        assert ring_all_reduce_ns(times, size_bytes) == pytest.approx(packets, rel=0.01)
