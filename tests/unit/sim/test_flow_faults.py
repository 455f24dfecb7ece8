import numpy as np
import pytest

from farstep.fabric.topology import clos, fat_tree, leaf_spine
from farstep.sim.faults import LinkAction
from farstep.sim.flow import FlowFaultError, FlowSettings, FlowSimulator, FlowsStalled, settings_for
from farstep.sim.tasks import TaskTable

PLAIN = {"payload_bytes": 1000, "overhead_bytes": 0, "collisions": 0.0, "ack_every_bytes": None}
SPRAYED = FlowSettings(**PLAIN, detection_ns=10_000.0, restore_ns=20_000.0)
ROUTED = FlowSettings(**PLAIN, spreading="hash", failover="reconverge", reconvergence_ns=500_000.0)


def flows(source, target, size_bytes):
    return TaskTable.from_columns(source=source, target=target, size_bytes=size_bytes)


def action(kind, at_us, links, value=0.0, is_signalled=True):
    return LinkAction(
        time_ns=round(at_us * 1000),
        links=np.atleast_1d(np.asarray(links, np.int32)),
        kind=kind,
        value=value,
        is_signalled=is_signalled,
    )


def fabric_of(spines=4, nics=1):
    return leaf_spine(leaves=2, spines=spines, nics_per_leaf=nics)


def uplinks(fabric, leaf=0):
    """Links from a leaf to the spines."""
    node = fabric.num_nics + leaf
    return np.flatnonzero((fabric.link_source == node) & (fabric.link_target >= fabric.num_nics))


def time_us(fabric, settings, faults, size=10**6, ends=((0,), (1,))):
    run = FlowSimulator(fabric, settings).run(flows(*ends, size), faults)
    return (run.finish_ns - run.start_ns)[0] / 1e3


def test_a_dead_path_costs_its_share_until_it_is_noticed():
    fabric = fabric_of()
    healthy = time_us(fabric, SPRAYED, [])
    hurt = time_us(fabric, SPRAYED, [action("down", 20, uplinks(fabric)[0])])
    # One of four paths for 10 us; the three others carry everything then.
    assert hurt - healthy == pytest.approx(2.5, abs=0.01)


def test_what_was_sent_into_a_dead_link_is_sent_again():
    fabric = fabric_of()
    run = FlowSimulator(fabric, SPRAYED).run(flows([0], [1], 10**6), [action("down", 20, uplinks(fabric)[0])])
    lost = 10_000 * 12.5 / 4 / 1000
    assert run.dropped[0] == pytest.approx(lost, abs=1)
    assert run.retransmitted[0] == run.dropped[0]
    assert run.packets[0] == 1000 + run.dropped[0]
    assert run.counters["dropped"] == run.dropped[0]
    # The dead link carried its share, what lies behind it did not.
    up, down = uplinks(fabric)[0], None
    spine = fabric.link_target[up]
    down = np.flatnonzero((fabric.link_source == spine) & (fabric.link_target == fabric.num_nics + 1))[0]
    assert run.links.bytes[up] - run.links.bytes[down] == pytest.approx(lost * 1000, rel=0.05)


def test_fewer_paths_are_a_smaller_pipe():
    """Two NICs a leaf over two spines; one is left for both."""
    fabric = fabric_of(spines=2, nics=2)
    ends = ((0, 1), (2, 3))
    healthy = time_us(fabric, SPRAYED, [], ends=ends)
    hurt = time_us(fabric, SPRAYED, [action("down", 0, uplinks(fabric)[0])], ends=ends)
    assert healthy == pytest.approx(80, rel=0.1)
    # 10 us at half of the goodput, the rest at half of the rate.
    assert hurt - healthy == pytest.approx(80, rel=0.02)


def test_a_path_comes_back_after_its_probes():
    fabric = fabric_of(spines=2, nics=2)
    ends = ((0, 1), (2, 3))
    link = uplinks(fabric)[0]
    faults = [action("down", 0, link), action("up", 20, link)]
    healthy = time_us(fabric, SPRAYED, [], ends=ends)
    # Half of the goodput from 0 to 40 us: 20 us until the repair, 20 us until it is used again.
    assert time_us(fabric, SPRAYED, faults, ends=ends) - healthy == pytest.approx(20, abs=0.1)


def test_a_flap_during_the_probes_keeps_the_path_out():
    fabric = fabric_of(spines=2, nics=2)
    ends = ((0, 1), (2, 3))
    link = uplinks(fabric)[0]
    faults = [action(kind, at, link) for kind, at in (("down", 0), ("up", 20), ("down", 35), ("up", 36))]
    healthy = time_us(fabric, SPRAYED, [], ends=ends)
    assert time_us(fabric, SPRAYED, faults, ends=ends) - healthy == pytest.approx(28, abs=0.2)


def test_a_hashed_flow_stalls_until_routing_goes_round():
    fabric = fabric_of(spines=2)
    healthy = time_us(fabric, ROUTED, [])
    one, other = (time_us(fabric, ROUTED, [action("down", 20, link)]) for link in uplinks(fabric))
    # It is on one of the two.
    assert sorted([one, other]) == pytest.approx([healthy, healthy + 500], abs=0.1)


def test_routing_does_not_see_a_silent_black_hole():
    fabric = fabric_of(spines=1)
    link = uplinks(fabric)[0]
    silent = [action("down", 20, link, is_signalled=False)]
    stuck = (
        r"at 20\.0 us, 1 tasks are unfinished: task 0 \(.*NIC 0 -> 1.*\): all its paths lead over dead links"
    )
    with pytest.raises(FlowsStalled, match=stuck):
        time_us(fabric, ROUTED, silent)
    repaired = [*silent, action("up", 70, link)]
    assert time_us(fabric, ROUTED, repaired) == pytest.approx(time_us(fabric, ROUTED, []) + 50, abs=0.1)


def test_a_flow_without_any_way_is_named():
    fabric = fabric_of(spines=2)
    with pytest.raises(FlowsStalled, match=r"task 0 .*no path to its destination is left"):
        time_us(fabric, SPRAYED, [action("down", 20, uplinks(fabric))])


def test_without_failover_the_share_is_lost_until_the_repair():
    fabric = fabric_of(spines=2)
    careless = FlowSettings(**PLAIN, failover="none")
    link = uplinks(fabric)[0]
    faults = [action("down", 20, link), action("up", 60, link)]
    assert time_us(fabric, careless, faults) - time_us(fabric, careless, []) == pytest.approx(20, abs=0.1)


def test_a_dead_nic_port_takes_one_plane_of_four():
    fabric = clos(32, planes=4)
    port = fabric.nic_links(0)[1]
    faults = [action("down", 0, [port, port ^ 1])]
    slow = FlowSettings(**PLAIN, detection_ns=0.0, remap_ns=40_000.0)
    ends = ((0,), (31,))
    healthy = time_us(fabric, slow, [], size=4 * 10**6, ends=ends)
    hurt = time_us(fabric, slow, faults, size=4 * 10**6, ends=ends)
    # 40 us at three quarters of the goodput deliver 1.5 MB, 2.5 MB follow at 300 Gb/s.
    assert hurt - healthy == pytest.approx(40 + 2.5e6 * 8 / 300 / 1e3 - 80, abs=0.2)


def test_planes_stay_equal_while_one_has_fewer_paths():
    """A plane that lost uplinks holds up the others: entropy values are replaced within the plane."""
    fabric = clos(8, planes=2, radix=4)
    assert fabric.num_nics == 8
    leaf = fabric.link_target[fabric.nic_links(0)[0]]
    up = np.flatnonzero((fabric.link_source == leaf) & (fabric.link_target >= 8))
    sources = np.flatnonzero(np.isin(np.arange(8), fabric.link_source[fabric.link_target == leaf]))
    far = np.setdiff1d(np.arange(8), sources)[: len(sources)]
    ends = (tuple(sources), tuple(far))
    settings = FlowSettings(**PLAIN, detection_ns=0.0)
    run = FlowSimulator(fabric, settings).run(flows(*ends, 10**6), [action("down", 0, up[0])])
    sent = run.plane_bytes()
    assert sent[0] == pytest.approx(sent[1], rel=0.01)
    assert (run.finish_ns / 1e3).max() == pytest.approx(80, rel=0.15)


def test_a_slower_link_gets_less_from_those_who_notice():
    """Four NICs a leaf and four spines, one uplink at a quarter: 3.25 links for four flows."""
    fabric = fabric_of(spines=4, nics=4)
    ends = (tuple(range(4)), tuple(range(4, 8)))
    slow = [action("rate", 0, uplinks(fabric)[0], 0.25)]
    clever = FlowSettings(**PLAIN, balancing=1.0)
    blind = FlowSettings(**PLAIN, balancing=0.0)
    healthy = time_us(fabric, clever, [], ends=ends)
    assert time_us(fabric, clever, slow, ends=ends) - healthy == pytest.approx(80 * (4 / 3.25 - 1), abs=0.2)
    assert time_us(fabric, blind, slow, ends=ends) - healthy == pytest.approx(80 * 3, abs=0.5)


def test_a_rate_that_returns_speeds_flows_up_again():
    fabric = fabric_of(spines=1)
    link = uplinks(fabric)[0]
    faults = [action("rate", 0, link, 0.5), action("rate", 40, link, 1.0)]
    assert time_us(fabric, SPRAYED, faults) - time_us(fabric, SPRAYED, []) == pytest.approx(20, abs=0.1)


def test_losses_cost_themselves_or_a_window():
    fabric = fabric_of(spines=1)
    link = fabric.nic_links(0)[0]
    faults = [action("loss", 0, link, 0.005)]
    selective = time_us(fabric, SPRAYED, faults) - time_us(fabric, SPRAYED, [])
    assert selective == pytest.approx(80 * 0.005, rel=0.05)
    go_back = FlowSettings(**PLAIN, spreading="hash", failover="none", loss_response="go_back_n")
    # 4 us of propagation either way hold 100 packets of 80 ns; 1.5 times as many are repeated.
    expected = 80 * 0.005 / 0.995 * 150
    assert time_us(fabric, go_back, faults) - time_us(fabric, go_back, []) == pytest.approx(
        expected, rel=0.05
    )


def test_a_lossy_path_is_left_out_and_a_lossy_port_is_not():
    fabric = fabric_of(spines=4)
    healthy = time_us(fabric, SPRAYED, [])
    path = time_us(fabric, SPRAYED, [action("loss", 0, uplinks(fabric)[0], 0.2)])
    assert path - healthy == pytest.approx(10 * 0.2 / 4, rel=0.05)
    port = time_us(fabric, SPRAYED, [action("loss", 0, fabric.nic_links(0)[0], 0.2)])
    assert port - healthy == pytest.approx(80 * 0.25, rel=0.05)


def test_extra_delay_is_added_to_the_way():
    fabric = fabric_of(spines=1)
    faults = [action("delay", 0, uplinks(fabric)[0], 7000.0)]
    assert time_us(fabric, SPRAYED, faults) - time_us(fabric, SPRAYED, []) == pytest.approx(7, abs=0.01)


def test_a_fault_far_from_all_traffic_changes_nothing():
    fabric = fat_tree(128, radix=8)
    tasks = flows([0, 1], [5, 6], 10**6)
    away = np.flatnonzero(fabric.link_source == fabric.link_source.max())
    simulator = FlowSimulator(fabric, settings_for("mrc"))
    assert (simulator.run(tasks).finish_ns == simulator.run(tasks, [action("down", 1, away)]).finish_ns).all()


def test_paths_behind_a_dead_link_are_left_out_as_a_whole():
    """A dead T1-T2 link takes one of 16 paths; the others keep equal shares, also below the same T1."""
    fabric = fat_tree(128, radix=8)
    dead = np.flatnonzero(
        (fabric.node_tier[fabric.link_source] == 1) & (fabric.node_tier[fabric.link_target] == 2)
    )[0]
    settings = FlowSettings(**PLAIN, detection_ns=0.0)
    run = FlowSimulator(fabric, settings).run(flows([0], [127], 15 * 10**5), [action("down", 0, dead)])
    t1 = fabric.link_source[dead]
    beside = np.flatnonzero((fabric.link_source == t1) & (fabric.node_tier[fabric.link_target] == 2))
    assert run.links.bytes[dead] == 0
    assert run.links.bytes[beside[1:]] == pytest.approx(10**5, rel=1e-6)
    into = np.flatnonzero((fabric.link_target == t1) & (run.links.bytes > 0))
    assert run.links.bytes[into].tolist() == pytest.approx([3 * 10**5])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (action("down", 0, 10**6), "down at 0 ns: names link 1000000"),
        (action("loss", 0, 0, 1.5), "loss at 0 ns: value = 1.5; valid: 0 to 1"),
        (action("rate", 3, 0, -0.5), "rate at 3000 ns: value = -0.5"),
    ],
)
def test_a_fault_that_cannot_be_is_named(fault, message):
    with pytest.raises(FlowFaultError, match=message):
        time_us(fabric_of(), SPRAYED, [fault])
