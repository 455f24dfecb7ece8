import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric.topology import clos, fat_tree, leaf_spine
from farstep.sim.flow import (
    TRANSPORTS,
    FlowSettings,
    FlowSettingsError,
    FlowSimulator,
    ignored_knobs,
    settings_for,
    settings_of,
)
from farstep.sim.tasks import TaskBuilder, TaskTable, WorkloadError
from farstep.sim.transports import Switch, Transport
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.patterns import incast, permutation

PLAIN = FlowSettings(payload_bytes=1000, overhead_bytes=0, collisions=0.0, ack_every_bytes=None)
"""Packets without headers: 100 Gb/s move 12.5 bytes a nanosecond."""

HASHED = FlowSettings(
    payload_bytes=1000, overhead_bytes=0, collisions=0.0, spreading="hash", ack_every_bytes=None
)

GBPS = 100.0


def flows(source, target, size_bytes, **columns):
    return TaskTable.from_columns(source=source, target=target, size_bytes=size_bytes, **columns)


def one_switch(nics=8):
    """All NICs of a leaf: only their own links can be full."""
    return leaf_spine(leaves=2, spines=1, nics_per_leaf=nics)


def times_us(result):
    return (result.finish_ns - result.start_ns) / 1e3


# -- rates -------------------------------------------------------------------------------------------------


def test_two_flows_from_one_nic_take_twice_the_time():
    fabric = one_switch()
    alone = FlowSimulator(fabric, PLAIN).run(flows([0], [1], 10**6)).finish_ns[0]
    both = FlowSimulator(fabric, PLAIN).run(flows([0, 0], [1, 2], 10**6)).finish_ns
    assert both == pytest.approx(alone + 80_000, abs=2)


def test_what_a_short_flow_leaves_goes_to_the_long_one():
    """Both have 50 Gb/s until the short one ends after 160 us; 1 MB of the long one is left then."""
    run = FlowSimulator(one_switch(), PLAIN).run(flows([0, 0], [1, 2], [10**6, 2 * 10**6]))
    overhead = FlowSimulator(one_switch(), PLAIN).run(flows([0], [1], 10**6)).finish_ns[0] - 80_000
    assert run.finish_ns[0] == pytest.approx(160_000 + overhead, abs=2)
    assert run.finish_ns[1] == pytest.approx(240_000 + overhead, abs=2)


def test_a_flow_that_starts_later_shares_from_then_on():
    """The first sends alone for 40 us, shares, and has half a MB left then: 80 us more."""
    run = FlowSimulator(one_switch(), PLAIN).run(flows([0, 1], [2, 2], 10**6, start_ns=[0, 40_000]))
    overhead = FlowSimulator(one_switch(), PLAIN).run(flows([0], [1], 10**6)).finish_ns[0] - 80_000
    assert run.finish_ns == pytest.approx(np.array([120_000, 160_000]) + overhead, abs=2)


def test_spraying_uses_all_paths_and_a_hash_only_one():
    """Four NICs of a leaf to four of the other, over four spines: no link is shared if all are used evenly."""
    fabric = leaf_spine(leaves=2, spines=4, nics_per_leaf=4)
    tasks = flows([0, 1, 2, 3], [4, 5, 6, 7], 10**6)
    sprayed = FlowSimulator(fabric, PLAIN).run(tasks)
    assert times_us(sprayed) == pytest.approx(times_us(sprayed)[0])
    assert times_us(sprayed)[0] == pytest.approx(80, rel=0.1)
    slowest = [times_us(FlowSimulator(fabric, HASHED).run(tasks, seed=seed)).max() for seed in range(20)]
    # 4! / 4^4 = 9 % of the seeds are free of collisions on the way up, and there is a way down, too.
    assert np.median(slowest) == pytest.approx(160, rel=0.1)
    assert max(slowest) >= 220


def test_an_oversubscribed_leaf_halves_the_rates():
    fabric = leaf_spine(leaves=2, spines=2, nics_per_leaf=4)
    run = FlowSimulator(fabric, PLAIN).run(flows([0, 1, 2, 3], [4, 5, 6, 7], 10**6))
    assert times_us(run) == pytest.approx(160, rel=0.05)


def test_planes_carry_equal_parts():
    fabric = clos(32, planes=4)
    run = FlowSimulator(fabric, PLAIN).run(flows([0], [31], 4 * 10**6))
    assert times_us(run)[0] == pytest.approx(80, rel=0.1)
    assert run.plane_balance == pytest.approx(1.0)
    assert run.plane_bytes().sum() == pytest.approx(4 * 10**6, rel=1e-6)


def test_queue_pairs_of_one_message_end_with_the_slowest():
    fabric = leaf_spine(leaves=2, spines=4, nics_per_leaf=4)
    tasks = flows([0, 1, 2, 3], [4, 5, 6, 7], 10**6)
    one = [times_us(FlowSimulator(fabric, HASHED).run(tasks, seed=s)).mean() for s in range(10)]
    eight = FlowSettings(payload_bytes=1000, overhead_bytes=0, spreading="hash", paths=8)
    many = [times_us(FlowSimulator(fabric, eight).run(tasks, seed=s)).mean() for s in range(10)]
    assert 80 < np.mean(many) < np.mean(one)


def test_coupled_paths_are_as_slow_as_the_slowest_of_them():
    fabric = leaf_spine(leaves=2, spines=4, nics_per_leaf=4)
    tasks = flows([0, 1, 2, 3], [4, 5, 6, 7], 10**6)
    parts = FlowSettings(payload_bytes=1000, overhead_bytes=0, spreading="hash", paths=8)
    coupled = FlowSettings(payload_bytes=1000, overhead_bytes=0, spreading="hash", paths=8, is_coupled=True)
    for seed in range(5):
        free = times_us(FlowSimulator(fabric, parts).run(tasks, seed=seed)).max()
        bound = times_us(FlowSimulator(fabric, coupled).run(tasks, seed=seed)).max()
        assert bound >= free * 0.99


def test_a_window_holds_a_long_path_back():
    fabric = leaf_spine(leaves=2, spines=1, nics_per_leaf=1, link_latency_ns=250_000)
    capped = FlowSettings(payload_bytes=1000, overhead_bytes=0, collisions=0.0, window_bytes=100_000)
    run = FlowSimulator(fabric, capped).run(flows([0], [1], 10**6))
    assert times_us(run)[0] == pytest.approx(10 * 2000 + 1000, rel=0.02)


def test_headers_and_host_latency_count():
    fabric = one_switch()
    heavy = FlowSettings(payload_bytes=1000, overhead_bytes=250, collisions=0.0, host_latency_ns=700.0)
    plain = FlowSimulator(fabric, PLAIN).run(flows([0], [1], 10**6)).finish_ns[0]
    run = FlowSimulator(fabric, heavy).run(flows([0], [1], 10**6))
    assert run.finish_ns[0] == pytest.approx(plain + 20_000 + 20 + 700, abs=2)
    assert run.meta["payload_share"] == 0.8


# -- order of tasks ----------------------------------------------------------------------------------------


def test_tasks_wait_for_their_predecessors_and_delays():
    build = TaskBuilder()
    first = build.flows([0], [1], 10**6)
    compute = build.delays([1], 30_000)
    second = build.flows([1], [2], 10**6, delay_ns=5_000)
    build.after(compute, first)
    build.after(second, compute)
    run = FlowSimulator(one_switch(), PLAIN).run(build.table())
    lasted = run.finish_ns[0]
    assert run.start_ns.tolist() == [0, lasted, lasted + 35_000]
    assert run.finish_ns.tolist() == [lasted, lasted + 30_000, 2 * lasted + 35_000]


def test_flows_of_a_connection_follow_each_other():
    fabric = one_switch()
    run = FlowSimulator(fabric, PLAIN).run(flows([0, 0], [1, 1], 10**6))
    alone = FlowSimulator(fabric, PLAIN).run(flows([0], [1], 10**6)).finish_ns[0]
    assert run.finish_ns == pytest.approx([alone, alone + 80_000], abs=2)
    apart = FlowSimulator(fabric, PLAIN).run(flows([0, 0], [1, 1], 10**6, connection_key=[0, 1]))
    assert apart.finish_ns == pytest.approx(alone + 80_000, abs=2)


def test_jobs_share_a_network():
    tasks = flows([0, 0], [1, 2], 10**6, job=[0, 1], job_names=("a", "b"))
    run = FlowSimulator(one_switch(), PLAIN).run(tasks)
    assert run.flow_times_ns(job="a") == pytest.approx(run.flow_times_ns(job="b"))


def test_a_ring_keeps_in_step():
    fabric = fat_tree(16, radix=4)
    run = FlowSimulator(fabric, PLAIN).run(ring_all_reduce(16, 16 * 10**6))
    assert run.is_complete
    # Rates are computed once: nothing that starts or ends holds anything else back.
    assert run.meta["rate_computations"] <= 2


def test_a_simulation_can_end_early():
    run = FlowSimulator(one_switch(), PLAIN).run(flows([0, 1], [2, 3], [10**5, 10**6]), until_ns=20_000)
    assert run.finish_ns[0] > 0
    assert run.finish_ns[1] == -1
    assert run.meta["end_ns"] == 20_000
    sent = run.links.bytes[one_switch().nic_links(1)[0]]
    assert sent == pytest.approx(250_000, rel=0.01)


# -- accounts ----------------------------------------------------------------------------------------------


def test_links_carry_what_flows_send():
    fabric = fat_tree(128, radix=8)
    tasks = permutation(128, 100_000, seed=2)
    run = FlowSimulator(fabric, settings_for("mrc")).run(tasks)
    wire = 128 * (100_000 + 25 * 166) * (1 + 178 / (16_384 + 4 * 166))
    uplinks = fabric.link_source < 128
    downlinks = fabric.link_target < 128
    assert run.links.bytes[uplinks].sum() == pytest.approx(wire, rel=1e-5)
    assert run.links.bytes[downlinks].sum() == pytest.approx(wire, rel=1e-5)
    assert run.counters["sent"] == run.counters["delivered"] == 128 * 25


@given(st.integers(0, 1000), st.sampled_from(["mrc", "roce", "ideal"]))
@settings(max_examples=25, deadline=None)
def test_no_link_carries_more_than_its_rate_allows(seed, transport):
    rng = np.random.default_rng(seed)
    fabric = leaf_spine(leaves=4, spines=2, nics_per_leaf=4)
    source = rng.integers(0, 16, 40)
    target = (source + rng.integers(1, 16, 40)) % 16
    tasks = flows(source, target, rng.integers(1, 10**6, 40), start_ns=rng.integers(0, 200_000, 40))
    run = FlowSimulator(fabric, settings_for(transport)).run(tasks, seed=seed)
    assert run.is_complete
    assert (run.links.bytes * 8 <= run.duration_ns * run.links.rate_gbps * (1 + 1e-6)).all()
    # Nor is any flow faster than its own wire.
    least = tasks.size_bytes * 8 / GBPS
    assert (run.finish_ns - run.start_ns >= least).all()


def test_the_order_of_the_table_does_not_matter():
    fabric = fat_tree(128, radix=8)
    tasks = permutation(128, 500_000, seed=5)
    order = np.random.default_rng(0).permutation(128)
    shuffled = flows(tasks.source[order], tasks.target[order], 500_000)
    for transport in (
        "mrc",
        "ndp",
    ):  # hashed paths are numbered as the packet engine does, in order of appearance
        simulator = FlowSimulator(fabric, settings_for(transport))
        straight = simulator.run(tasks, seed=3).finish_ns
        assert simulator.run(shuffled, seed=3).finish_ns == pytest.approx(straight[order], abs=2)


def test_a_seed_replays_and_another_differs():
    fabric = fat_tree(128, radix=8)
    tasks = permutation(128, 500_000, seed=5)
    for transport in (
        "mrc",
        "ndp",
    ):  # hashed paths are numbered as the packet engine does, in order of appearance
        simulator = FlowSimulator(fabric, settings_for(transport))
        first, again, other = (simulator.run(tasks, seed=seed) for seed in (3, 3, 4))
        assert (first.finish_ns == again.finish_ns).all()
        assert (first.links.bytes == again.links.bytes).all()
        assert (first.finish_ns != other.finish_ns).any()


def test_closer_events_are_no_less_exact():
    """The default resolution changes times by far less than a packet engine would differ."""
    fabric = fat_tree(16, radix=4)
    tasks = incast(range(12), 200_000, senders=6, victim=False)
    fine = FlowSimulator(fabric, FlowSettings(is_noisy=False, resolution_ns=0.0)).run(tasks)
    usual = FlowSimulator(fabric, FlowSettings(is_noisy=False)).run(tasks)
    assert usual.finish_ns == pytest.approx(fine.finish_ns, rel=0.005)


# -- mistakes ----------------------------------------------------------------------------------------------


def test_an_unknown_setting_is_named():
    with pytest.raises(
        FlowSettingsError, match=r"window: no setting of the flow level; valid: .*window_bytes"
    ):
        settings_for("mrc", {"window": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"payload_bytes": 0}, "payload_bytes = 0; valid: a number from 1 on"),
        ({"spreading": "flood"}, 'spreading = "flood"; valid: spray, hash'),
        ({"failover": 3}, "failover = 3; valid: exclude, reconverge, none"),
        ({"collisions": float("nan")}, "collisions = nan; valid"),
        ({"detection_ns": "soon"}, 'detection_ns = "soon"; valid'),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    with pytest.raises(FlowSettingsError, match=message):
        settings_for("mrc", changes)


def test_an_unknown_transport_is_named():
    with pytest.raises(FlowSettingsError, match=r'transport = "smoke"; valid: mrc, '):
        settings_for("smoke")


def test_a_nic_the_fabric_does_not_have():
    with pytest.raises(WorkloadError, match="fabric does not have"):
        FlowSimulator(one_switch(), PLAIN).run(flows([0], [99], 1))


def test_a_scenario_gives_the_settings():
    transport = Transport(name="roce", queue_pairs=4, mtu_bytes=1024, host_latency_us=1.5, pfc=True)
    found = settings_of(transport, Switch(queue_bytes=112_600, ecn_min_bytes=9_000, trimming=False))
    assert (found.paths, found.payload_bytes, found.host_latency_ns) == (4, 1024, 1500.0)
    assert (found.queue_packets, found.ecn_min_bytes) == (100.0, 9_000)
    assert ignored_knobs(transport, Switch(trimming=False)) == ["switch.trimming"]


def test_a_scenario_gives_the_knobs_of_dcqcn():
    transport = Transport(name="roce", dcqcn=False, engine={"preset": "simai-100g", "xoff_packets": 20})
    found = settings_of(transport)
    assert (found.rival.dcqcn, found.rival.xoff_packets, found.ecn_max_bytes) == (False, 20, 6.4e6)
    assert ignored_knobs(transport) == []


def test_probes_set_the_time_to_restore():
    found = settings_of(Transport(probe_interval_us=200.0, restore_probes=3))
    assert found.restore_ns == 600_000.0
    assert settings_of(Transport(probe_interval_us=200.0)).restore_ns == 1_000_000.0


def test_every_transport_of_a_scenario_is_known():
    from farstep.sim.transports import TRANSPORTS as names

    assert set(names) == set(TRANSPORTS)
    for name in names:
        assert settings_of(Transport(name=name)) == TRANSPORTS[name]


def test_many_batches_of_starts_at_the_same_time():
    """Rings in rank order start their next steps in many groups, some of them at equal times."""
    fabric = fat_tree(128, radix=8)
    run = FlowSimulator(fabric, settings_for("mrc")).run(ring_all_reduce(64, 64 * 20_000))
    assert run.is_complete
    assert (np.diff(run.finish_ns.reshape(126, 64), axis=0) > 0).all()


def test_a_series_adds_up_to_what_was_sent():
    fabric = clos(32, planes=4)
    tasks = permutation(32, 400_000, seed=3)
    simulator = FlowSimulator(fabric, settings_for("mrc"))
    run = simulator.run(tasks, sample_interval_ns=1_000.0)
    assert run.series["time_ns"].tolist() == [1000 * (i + 1) for i in range(len(run.series["time_ns"]))]
    uplinks = fabric.link_source < 32
    # The links carry acknowledgements, too.
    assert run.series["plane_bytes"].sum(axis=0) == pytest.approx(run.plane_bytes() / 1.01044, rel=1e-4)
    assert run.series["goodput_bytes"].sum() == pytest.approx(32 * 400_000, rel=0.01)
    into_fabric = run.meta["series_columns"]["group_bytes"].index("NIC -> T0")
    carried = run.links.bytes[uplinks].sum()
    assert run.series["group_bytes"][:, into_fabric].sum() == pytest.approx(carried / 1.01044, rel=1e-4)
    again = simulator.run(tasks)
    assert again.series == {}
    assert (again.finish_ns == run.finish_ns).all()


def test_a_series_shows_rates_as_they_change():
    """A second flow starts in the middle of the fifth sample and takes half of the receiver's link."""
    tasks = flows([0, 1], [2, 2], 10**6, start_ns=[0, 45_000], tag=[0, 0])
    run = FlowSimulator(one_switch(), PLAIN).run(tasks, sample_interval_ns=10_000.0)
    assert run.series["goodput_bytes"][:4] == pytest.approx(125_000, abs=2)
    assert run.series["plane_bytes"][6, 0] == pytest.approx(125_000, abs=2)
    assert run.series["goodput_bytes"].sum() == pytest.approx(2 * 10**6, rel=1e-4)


def test_a_sample_interval_must_be_above_zero():
    with pytest.raises(ValueError, match="sample_interval_ns = 0"):
        FlowSimulator(one_switch(), PLAIN).run(flows([0], [1], 10), sample_interval_ns=0.0)
