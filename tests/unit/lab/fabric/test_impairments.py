"""What is the matter with links, and the commands that make it so."""

import re
from typing import Any

import pytest

from farstep.fabric import ConfigError, Topology, leaf_spine, parse_fault
from farstep.fabric.topology import LinkChange, LinkTimeline
from farstep.lab.fabric.impairments import (
    Features,
    LinkState,
    arrival_rules,
    changed,
    check_changes,
    is_cut,
    marking_rules,
    shaping,
    upper_end,
)
from farstep.lab.fabric.options import LabOptions
from farstep.lab.fabric.wiring import FabricWiring

OPTIONS = LabOptions(mtu_bytes=2000, queue_ms=10.0, mark_ms=1.0)
ALL = Features(filters=True, marks=True, netem=True)


def make(**changes: Any) -> Topology:
    shape: dict[str, Any] = {"leaves": 2, "spines": 2, "nics_per_leaf": 2, "port_gbps": 0.1}
    return leaf_spine(**{**shape, **changes})


@pytest.fixture
def wiring() -> FabricWiring:
    return FabricWiring(make(), OPTIONS)


def script(topology: Topology, **fault: Any) -> list[LinkChange]:
    return LinkTimeline([parse_fault({"at_s": 0.0, **fault})], topology).until(10**9)


def test_changes_add_up_to_what_is_the_matter_with_a_link() -> None:
    topology = make()
    state = LinkState()
    for fault in (
        {"kind": "loss", "link": "t0/p0/0-t1/p0/1", "loss_percent": 20},
        {"kind": "rate", "link": "t0/p0/0-t1/p0/1", "rate_percent": 50},
        {"kind": "delay", "link": "t0/p0/0-t1/p0/1", "extra_delay_ms": 2},
        {"kind": "link_down", "link": "t0/p0/0-t1/p0/1", "silent": False},
    ):
        state = changed(state, script(topology, **fault)[0])
    assert state.text == "down, signalled, loss 20 %, rate 50 %, delay +2 ms"
    (up,) = [
        change
        for change in script(topology, kind="link_down", link="*-*", duration_s=0.1)
        if change.kind == "up"
    ]
    assert changed(state, up).text == "loss 20 %, rate 50 %, delay +2 ms"
    assert LinkState().text == "healthy"


@pytest.mark.parametrize(("signalled", "cut"), [(False, False), (True, True)])
def test_only_a_signalled_outage_takes_the_carrier(signalled: bool, cut: bool) -> None:
    state = LinkState(is_down=True, is_signalled=signalled)
    assert is_cut(state, LinkState()) is cut
    assert is_cut(LinkState(), state) is cut
    assert state.is_dropping is not cut


def test_the_upper_end_of_a_cable_is_at_the_higher_tier(wiring: FabricWiring) -> None:
    ends = [upper_end(wiring, cable) for cable in wiring.cables]
    assert [int(wiring.topology.node_tier[end.node]) for end in ends] == [0] * 4 + [1] * 4


def test_a_link_is_shaped_to_its_rate(wiring: FabricWiring) -> None:
    cable = wiring.cables[0]
    assert (
        shaping(cable, 0, LinkState(), OPTIONS)
        == "qdisc replace dev p0 root tbf rate 100000000bit burst 6250 limit 131250"
    )
    assert "rate 25000000bit" in str(shaping(cable, 1, LinkState(rate_share=0.25), OPTIONS))


def test_the_kernel_delays_where_it_can() -> None:
    options = LabOptions(mtu_bytes=2000, delay="netem", queue_ms=10.0)
    cable = FabricWiring(make(link_latency_ns=2e6), options).cables[0]
    line = shaping(cable, 0, LinkState(delay_ns=500_000), options)
    assert line == "qdisc replace dev p0 root netem delay 2.500ms limit 1000 rate 100000000bit"


def test_links_faster_than_any_processor_are_left_alone() -> None:
    cable = FabricWiring(make(port_gbps=100.0), OPTIONS).cables[0]
    assert shaping(cable, 0, LinkState(), OPTIONS) is None
    assert marking_rules(cable, 0, LinkState(), OPTIONS) == ""


def test_carried_cables_are_not_shaped_twice() -> None:
    cable = FabricWiring(make(link_latency_ns=2e6), OPTIONS).cables[0]
    assert shaping(cable, 0, LinkState(), OPTIONS) is None
    assert marking_rules(cable, 0, LinkState(), OPTIONS) == ""


def test_what_is_dropped_on_arrival(wiring: FabricWiring) -> None:
    cable = wiring.cables[0]
    silent = arrival_rules(cable, 0, LinkState(is_down=True, loss=0.5))
    assert 'hook ingress device "d0"' in silent
    assert "  counter drop\n" in silent
    assert "numgen random mod 1000000 < 12500 counter drop" in arrival_rules(cable, 1, LinkState(loss=0.0125))
    healthy = arrival_rules(cable, 1, LinkState())
    assert healthy == "add table netdev farstep_arrive_p0\ndelete table netdev farstep_arrive_p0\n"
    signalled = arrival_rules(cable, 1, LinkState(is_down=True, is_signalled=True))
    assert signalled == healthy


def test_marks_count_every_packet_by_its_length(wiring: FabricWiring) -> None:
    rules = marking_rules(wiring.cables[0], 0, LinkState(), OPTIONS)
    per_s = re.search(r"rate over (\d+)/second burst (\d+) packets", rules)
    assert per_s is not None
    assert int(per_s[1]) * 256 == pytest.approx(0.97 * 12_500_000, rel=0.001)
    assert int(per_s[2]) * 256 == pytest.approx(12_500, rel=0.02)  # a millisecond
    lengths = [int(length) for length in re.findall(r"meta length > (\d+)", rules)]
    assert lengths == [128 + 256 * grain for grain in range(8)]
    assert marking_rules(wiring.cables[0], 0, LinkState(), LabOptions(mark_ms=0.0)) == ""


@pytest.mark.parametrize(
    ("fault", "features", "said"),
    [
        (
            {"kind": "link_down", "link": "t0/p0/0->t1/p0/1", "silent": False},
            ALL,
            "silent = false for t0/p0/0->t1/p0/1 alone: a link has carrier both ways or neither; valid: silent = true",
        ),
        (
            {"kind": "delay", "nic": "0", "extra_delay_ms": 3},
            Features(filters=True, marks=True, netem=False),
            "delay of nic/0->t0/p0/0: this kernel delays no packets (netem)",
        ),
        (
            {"kind": "loss", "nic": "0", "loss_percent": 3},
            Features(filters=False, marks=False, netem=True),
            'kind = "loss" needs the command nft (package nftables), which does not work here',
        ),
    ],
    ids=["one way", "delay", "filter"],
)
def test_what_a_lab_cannot_do_is_refused_before_anything_happens(
    wiring: FabricWiring, fault: dict[str, Any], features: Features, said: str
) -> None:
    changes = script(wiring.topology, **fault)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_changes(wiring, features, changes, source="script.toml")
    if fault["kind"] != "link_down":
        check_changes(wiring, ALL, changes, source="script.toml")


def test_a_process_that_carries_packets_needs_no_help(wiring: FabricWiring) -> None:
    carried = FabricWiring(make(link_latency_ns=2e6), OPTIONS)
    nothing = Features(filters=False, marks=False, netem=False)
    for fault in ({"kind": "loss", "loss_percent": 3}, {"kind": "delay", "extra_delay_ms": 3}):
        check_changes(carried, nothing, script(carried.topology, nic="0", **fault), source="script.toml")
