"""What dead and lossy links cost hashed senders at the flow level: one flow at a time, against packets and by hand."""

import numpy as np
import pytest

from farstep import sim
from farstep.sim.flow.hashing import PathHashes
from farstep.sim.flow.repairs import Arrivals, GoBack, PacketLosses
from farstep.sim.rivals import RoceKnobs
from farstep.sim.tasks import TaskTable

ONE_SPINE = sim.fabric("leaf-spine", leaves=2, spines=1, nics_per_leaf=1)
TWO_SPINES = sim.fabric("leaf-spine", leaves=2, spines=2, nics_per_leaf=1)
PLANES = sim.fabric("clos", nics=32, planes=4, radix=16)
CABLE = "t0/p0/0-t1/p0/0"
MB = 1_000_000


def down(at_us, duration_us, link=CABLE, **more):
    return {"kind": "link_down", "link": link, "at_us": at_us, "duration_us": duration_us, **more}


def one_flow(size_bytes=MB, count=1, gap_us=0):
    starts = [int(number * gap_us * 1000) for number in range(count)]
    return TaskTable.from_columns(
        source=[0] * count, target=[1] * count, size_bytes=size_bytes, start_ns=starts, connection_key=0
    )


def both(tasks, faults, transport="roce", fabric=ONE_SPINE, **knobs):
    return [
        sim.simulate(fabric, tasks, transport={"name": transport, **knobs}, level=level, faults=faults)
        for level in ("packet", "flow")
    ]


def times_us(result):
    return (result.finish_ns - result.start_ns) / 1e3


@pytest.mark.parametrize(
    ("faults", "knobs"),
    [
        pytest.param([down(20, 40)], {}, id="told of the gap, for packets follow"),
        pytest.param([down(20, 40)], {"recovery_ns": 30_000}, id="a NIC that takes its time"),
        pytest.param([down(20, 400)], {}, id="all was sent: the timer"),
        pytest.param([down(20, 1200)], {}, id="the third time the timer helps"),
        pytest.param([down(20, 30), down(58, 300)], {}, id="what is sent again is lost as well"),
        pytest.param([down(0, 700)], {}, id="dead from the start"),
        pytest.param([down(20, 200)], {"window_packets": 64}, id="a window is full"),
    ],
)
def test_a_roce_sender_goes_back_when_it_would_in_packets(faults, knobs):
    engine = {key: knobs[key] for key in ("recovery_ns", "window_packets") if key in knobs}
    packets, flows = both(one_flow(), faults, rto_us=500.0, engine=engine)

    assert times_us(flows)[0] == pytest.approx(times_us(packets)[0], rel=0.01)
    assert flows.dropped[0] == pytest.approx(packets.dropped[0], abs=8, rel=0.05)
    assert flows.retransmitted[0] == pytest.approx(packets.retransmitted[0], abs=8, rel=0.05)
    assert flows.declared_lost[0] == packets.declared_lost[0]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([down(20, 400)], id="one timeout"),
        pytest.param([down(20, 1500)], id="the second one is twice as long"),
        pytest.param([down(20, 5000)], id="the third one four times"),
    ],
)
def test_a_tcp_sender_waits_for_its_timer_and_then_longer(faults):
    packets, flows = both(one_flow(), faults, "tcp")

    assert times_us(flows)[0] == pytest.approx(times_us(packets)[0], rel=0.05)
    assert flows.dropped[0] == pytest.approx(packets.dropped[0], abs=8, rel=0.1)


def test_a_later_message_tells_the_receiver_of_the_gap():
    alone = both(one_flow(), [down(20, 200)], rto_us=5000.0)
    followed = both(one_flow(count=2, gap_us=300), [down(20, 200)], rto_us=5000.0)

    for result in alone:
        assert times_us(result)[0] > 5000
    packets, flows = followed
    assert times_us(packets)[0] < 500
    assert times_us(flows) == pytest.approx(times_us(packets), rel=0.02)


def test_acknowledgements_take_the_ways_they_take_in_packets():
    """A tenth of the links is dead: under `tcp` those flows stop of which either way leads over one."""
    dead = down(0, 1, "t0/*/*-t1/*/*", choose_percent=10)
    waiting = []
    for level in ("packet", "flow"):
        with pytest.raises(sim.SimulationStalled) as stalled:
            sim.simulate(
                PLANES,
                sim.permutation(size_bytes=200_000),
                transport="tcp",
                level=level,
                faults=[_for_ever(dead)],
            )
        waiting.append(np.flatnonzero(stalled.value.result.finish_ns < 0).tolist())

    assert waiting[0] == waiting[1] != []


def _for_ever(fault):
    return {key: value for key, value in fault.items() if key != "duration_us"}


def test_a_nic_leaves_a_port_that_it_is_told_is_dead():
    """The four ports of a NIC but one die for long: a message of `roce` goes on by the one that is left."""
    ports = [down(20, 10**5, f"nic/0-t0/p{plane}/0", silent=False) for plane in range(3)]
    tasks = TaskTable.from_columns(source=[0], target=[31], size_bytes=MB)
    packets, flows = both(tasks, ports, fabric=PLANES, remap_us=15.0)

    assert times_us(packets)[0] < 300
    assert times_us(flows)[0] == pytest.approx(times_us(packets)[0], rel=0.02)
    assert flows.dropped[0] == pytest.approx(packets.dropped[0], abs=2)


def test_routing_goes_round_a_failure_that_is_over_before_it_knows():
    """Each change takes effect so much later: for 40 us there is a way round, and then not."""
    packets, flows = both(one_flow(), [down(20, 40, silent=False)], fabric=TWO_SPINES, reconvergence_us=100.0)
    assert times_us(flows)[0] == pytest.approx(times_us(packets)[0], rel=0.02)


def test_nobody_steps_through_a_long_wait():
    _, flows = both(one_flow(), [down(20, 10_000)], rto_us=100_000.0)
    assert times_us(flows)[0] > 100_000
    assert flows.meta["rate_computations"] < 1000


def test_what_is_sent_is_taken_or_lost_and_links_before_the_dead_one_carry_it():
    _, flows = both(one_flow(), [down(20, 400)], rto_us=500.0)

    lost = int(flows.dropped[0])
    assert lost > 100
    assert flows.packets[0] == 245 + flows.retransmitted[0]
    assert flows.counters["sent"] == flows.counters["delivered"] + flows.counters["dropped"]
    into, out_of = (
        int(flows.links.bytes[(flows.links.source == one) & (flows.links.target == other)].sum())
        for one, other in ((0, 2), (3, 1))
    )
    assert into - out_of == pytest.approx(lost * (4096 + 102), rel=0.02)


def test_series_count_what_is_lost_when_it_is():
    result = sim.simulate(
        ONE_SPINE,
        one_flow(),
        transport={"name": "roce", "rto_us": 500.0},
        level="flow",
        faults=[down(20, 400)],
        sample_interval_us=50.0,
    )
    dropped = result.series["dropped"]
    assert dropped.sum() == result.dropped.sum()
    assert dropped[:4].sum() == pytest.approx(dropped.sum(), abs=1)
    assert result.series["goodput_bytes"].sum() == pytest.approx(MB, rel=0.01)


@pytest.mark.parametrize("transport", ["roce", "tcp"])
def test_flows_that_can_never_go_on_are_named_when_all_they_may_send_is_lost(transport):
    with pytest.raises(sim.SimulationStalled, match="over dead links") as stalled:
        sim.simulate(
            ONE_SPINE, one_flow(), transport=transport, level="flow", faults=[_for_ever(down(20, 1))]
        )
    assert stalled.value.result.dropped.sum() > 20


def test_a_lossy_link_costs_a_roce_flow_a_round_trip_for_each_loss():
    losses = [{"kind": "loss", "link": CABLE, "loss_percent": 0.2, "at_us": 0}]
    runs = [
        [
            sim.simulate(
                ONE_SPINE, one_flow(10 * MB), transport="roce", level=level, faults=losses, seed=seed
            )
            for seed in range(1, 7)
        ]
        for level in ("packet", "flow")
    ]
    for name in ("dropped", "retransmitted"):
        one, other = (sum(int(getattr(run, name).sum()) for run in some) for some in runs)
        assert other == pytest.approx(one, rel=0.35)


# -- parts ---------------------------------------------------------------------------------------------------


def test_ports_that_cannot_be_used_leave_their_rows_to_the_others():
    hashes = PathHashes.of(np.arange(400), np.full(400, 4), 1, seed=1)
    port, number = hashes.choose()
    is_usable = np.ones((400, 4), np.bool_)
    is_usable[:, 2] = False
    other, fresh = hashes.choose(is_usable)

    assert set(other.tolist()) == {0, 1, 3}
    kept = port != 2
    assert (other[kept] == port[kept]).all()
    assert (fresh[kept] == number[kept]).all()
    assert (hashes.choose(np.zeros((400, 4), np.bool_))[0] == port).all()


def test_losses_are_as_many_as_the_rate_says():
    names = np.arange(2000, dtype=np.uint64) * np.uint64(7919)
    part, hazard, packets = np.arange(2000), np.full(2000, 0.01), np.full(2000, 50.0)
    losses = PacketLosses()
    losses.add(names)
    assert losses.count(part, hazard, packets).mean() == pytest.approx(0.5, rel=0.1)
    assert np.isfinite(losses.first(part, hazard, packets)).mean() == pytest.approx(1 - np.exp(-0.5), rel=0.1)
    assert losses.count(part[:3], np.full(3, 20.0), packets[:3]) == pytest.approx([50.0] * 3)


def test_a_receiver_speaks_of_a_gap_once():
    packet = 8000.0
    repair = GoBack(RoceKnobs(rto_ns=1_000_000), packet)
    repair.add(np.ones(1, np.uint64), np.array([100 * packet]), np.array([10_000.0]))

    def step(begin_ns, arrived, vanished, left):
        bits = [np.array([packets * packet]) for packets in (arrived, 0, vanished, left)]
        ways = (np.zeros(1), np.ones(1, np.bool_), np.zeros(1))
        return [
            value[0] / packet for value in repair.receive(Arrivals(begin_ns, begin_ns + 1000, *bits, *ways))
        ]

    assert step(0, 10, 0, 100) == [10, 0, 0]
    assert step(1000, 0, 5, 90) == [0, 0, 5]
    assert step(2000, 4, 0, 90) == [0, 4, 0]
    assert repair.next_ns(3000) == 12_000
    assert [len(which) for which in repair.due(12_000, np.zeros(1))] == [1, 1]
    # It goes back, and what it sends is lost again: nothing is said, and the timer of the last progress runs on.
    assert step(12_000, 0, 5, 90) == [0, 0, 5]
    assert step(13_000, 4, 0, 90) == [0, 4, 0]
    assert repair.next_ns(14_000) == 1000 + 10_000 + 1_000_000
