"""The address plan of a uSID fabric, walked hop by hop by a model that knows tables and nothing of the plan."""

import doctest
import ipaddress
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import (
    ConfigError,
    Topology,
    WanLink,
    addresses,
    clos,
    fat_tree,
    leaf_spine,
    multi_site,
    torus,
)
from farstep.fabric.addresses import BLOCK, AddressPlan, Hop, ev_of, fields_of_ev
from farstep.fabric.topology import parse_graph
from farstep.mrc.addressing import PathTemplate, SrEv, shift_usid

HOPS_MAX = 16


class Arrival(NamedTuple):
    node: int
    address: ipaddress.IPv6Address
    links: tuple[int, ...]


def walk(plan: AddressPlan, node: int, address: ipaddress.IPv6Address) -> Arrival | None:
    """Follows a packet through the tables as a router does; None if a node has no entry for it."""
    links: list[int] = []
    for _ in range(HOPS_MAX):
        matching = [entry for entry in plan.table(node) if address in entry.network]
        if not matching:
            return None
        entry = max(matching, key=lambda found: found.network.prefixlen)
        if entry.hop is Hop.DELIVER:
            return Arrival(node, address, tuple(links))
        if entry.hop in (Hop.SHIFT, Hop.SHIFT_AND_SEND):
            address = shift_usid(address)
        if entry.hop in (Hop.SEND, Hop.SHIFT_AND_SEND):
            assert plan.topology.link_source[entry.link] == node
            links.append(entry.link)
            node = int(plan.topology.link_target[entry.link])
    raise AssertionError(f"{address} goes round in circles over {links}")


leaf_spines = st.builds(
    leaf_spine,
    leaves=st.integers(1, 4),
    spines=st.integers(1, 4),
    nics_per_leaf=st.integers(2, 3),
    links_per_spine=st.integers(1, 3),
    planes=st.integers(1, 3),
)
networks = st.one_of(
    leaf_spines,
    st.builds(clos, st.sampled_from([4, 8]), planes=st.integers(1, 2), radix=st.sampled_from([4, 8])),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[AddressPlan, int, int]:
    topology = draw(networks)
    source = draw(st.integers(0, topology.num_nics - 1))
    destination = draw(st.integers(0, topology.num_nics - 1).filter(lambda nic: nic != source))
    return AddressPlan(topology), source, destination


@given(pairs())
@settings(max_examples=40, deadline=None)
def test_every_ev_is_a_path_of_its_own_to_the_destination(drawn: tuple[AddressPlan, int, int]) -> None:
    plan, source, destination = drawn
    row = plan.row(source, destination)
    seen = set()
    for ev in row.evs:
        arrived = walk(plan, source, row.address(ev))
        assert arrived is not None
        plane, _ = fields_of_ev(ev)
        assert arrived.node == destination
        assert arrived.address == plan.arrival(destination, plane)
        assert arrived.links == plan.path(source, destination, ev)
        seen.add(arrived.links)
    assert len(seen) == len(row.evs) == row.planes * row.uplinks


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_every_link_between_switches_carries_as_many_evs_as_its_twins(
    drawn: tuple[AddressPlan, int, int],
) -> None:
    plan, source, destination = drawn
    row = plan.row(source, destination)
    paths = [plan.path(source, destination, ev) for ev in row.evs]
    inner = [link for path in paths for link in path[1:-1]]
    assert len(inner) == len(set(inner))


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_templates_are_those_of_the_transport(drawn: tuple[AddressPlan, int, int]) -> None:
    plan, source, destination = drawn
    row = plan.row(source, destination)
    template = PathTemplate(
        block=row.block,
        source_leaf=row.source_leaf,
        destination_leaf=row.destination_leaf,
        downlink=row.downlink,
    )
    for ev in row.evs:
        assert SrEv.parse(ev) == SrEv(*fields_of_ev(ev))
        assert template.path(SrEv.parse(ev)).address == row.address(ev)


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_returning_addresses_come_back_over_the_same_cables(drawn: tuple[AddressPlan, int, int]) -> None:
    plan, nic, _ = drawn
    for plane in range(plan.planes):
        arrived = walk(plan, nic, plan.returning(nic, plane))
        assert arrived is not None
        assert (arrived.node, arrived.address) == (nic, plan.arrival(nic, plane))
        assert arrived.links[0] == arrived.links[1] ^ 1
        for uplink in range(plan.uplinks):
            arrived = walk(plan, nic, plan.returning(nic, plane, uplink))
            assert arrived is not None
            up, over, back, down = arrived.links
            assert (arrived.node, up, over) == (nic, down ^ 1, back ^ 1)
    over_uplinks = {plan.returning(nic, 0, uplink) for uplink in range(plan.uplinks)}
    assert len(over_uplinks) == plan.uplinks


@given(networks)
@settings(max_examples=20, deadline=None)
def test_tables_are_as_small_as_the_paper_says(topology: Topology) -> None:
    plan = AddressPlan(topology)
    for switch in plan.switches(0):
        downlinks = sum(place.leaf == topology.node_number[switch] for place in plan.places)
        assert len(plan.table(switch)) == 1 + plan.uplinks + downlinks
    for switch in plan.switches(1):
        table = plan.table(switch)
        sends = [entry for entry in table if entry.hop is Hop.SEND]
        assert len(sends) == len(plan.switches(0)) // plan.planes


def test_what_is_behind_the_downlink_arrives_unchanged() -> None:
    plan = AddressPlan(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2))
    row = plan.row(0, 3)
    marked = ipaddress.IPv6Address(int(row.address(ev_of(1, 1))) | 0xBEEF_8001)
    arrived = walk(plan, 0, marked)
    assert arrived is not None
    assert arrived.node == 3
    assert int(arrived.address) == int(plan.arrival(3, 1)) | 0xBEEF_8001 << 48


def test_the_example_of_the_paper() -> None:
    """A downlink is the last of four uSIDs, and a T0 of its own needs two (sections 2.2 and 2.3)."""
    plan = AddressPlan(leaf_spine(leaves=4, spines=8, nics_per_leaf=4, planes=8))
    assert str(plan.row(0, 15).address(ev_of(7, 5))) == "fcbb:bbbb:3c00:5c05:3c03:dc03::"
    assert str(plan.row(12, 15).address(ev_of(7, 0))) == "fcbb:bbbb:3c03:dc03::"
    assert BLOCK == 0xFCBBBBBB


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (fat_tree(16), "valid: planes of two tiers"),
        (torus((2, 2)), "valid: planes of two tiers"),
        (clos(128, planes=16), "planes = 16: a uSID counts up to 8"),
        (
            multi_site(
                {"a": clos(4, planes=1), "b": clos(4, planes=1)}, [WanLink(between=("a", "b"), delay_ms=1.0)]
            ),
            r"sites = \['a', 'b'\]: uSIDs are for one site",
        ),
    ],
    ids=["three tiers", "torus", "planes", "sites"],
)
def test_networks_it_cannot_address_are_refused(topology: Topology, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AddressPlan(topology)


def graph(nics: list[list[str]], links: list[tuple[str, str]]) -> Topology:
    return parse_graph(
        {
            "switches": [
                {"name": name, "tier": int(name[1]), "plane": 0} for name in ("t0a", "t0b", "t1a", "t1b")
            ],
            "nics": [{"switches": at} for at in nics],
            "links": [{"between": list(pair)} for pair in links],
        }
    )


FULL = [("t0a", "t1a"), ("t0a", "t1b"), ("t0b", "t1a"), ("t0b", "t1b")]


@pytest.mark.parametrize(
    ("nics", "links", "said"),
    [
        ([["t0a"], ["t0b"], ["t0a", "t0b"]], FULL, "nic/2 has 2 ports; valid: one in each of the 1 planes"),
        ([["t0a"], ["t0b"]], FULL[:3], "t0b has 1 uplinks; valid: 2, as others have"),
        (
            [["t0a"], ["t0b"]],
            [*FULL[:3], ("t0b", "t1a")],
            "no cable between t0b and t1b; valid: every T0 is joined to every T1",
        ),
    ],
    ids=["ports", "uplinks", "cables"],
)
def test_irregular_networks_are_refused(
    nics: list[list[str]], links: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        AddressPlan(graph(nics, links))


def test_cables_in_any_order_are_addressed() -> None:
    plan = AddressPlan(graph([["t0a"], ["t0b"]], [FULL[0], FULL[1], FULL[3], FULL[2]]))
    row = plan.row(0, 1)
    for ev in row.evs:
        arrived = walk(plan, 0, row.address(ev))
        assert arrived is not None
        assert arrived.links == plan.path(0, 1, ev)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda plan: plan.row(0, 4), "destination = 4: no such NIC; valid: 0 to 3"),
        (lambda plan: plan.row(0, 3).address(ev_of(2, 0)), "plane = 2: valid: 0 to 1"),
        (lambda plan: plan.row(0, 3).address(ev_of(0, 2)), "uplink = 2: valid: 0 to 1"),
        (lambda plan: plan.row(0, 3).address(1), "ev = 0x1: valid: 32 bits, of which the lowest 19 are zero"),
        (lambda plan: plan.path(0, 1, ev_of(0, 1)), "uplink = 1: valid: 0 to 0"),
        (lambda plan: plan.returning(0, 0, 2), "uplink = 2: valid: 0 to 1"),
        (lambda plan: plan.arrival(0, 2), "plane = 2: valid: 0 to 1"),
        (lambda plan: plan.host_address(9), "nic = 9: no such NIC"),
        (lambda plan: plan.table(99), "node = 99: valid: 0 to 11"),
        (lambda plan: ev_of(8, 0), "plane = 8: valid: 0 to 7"),
        (lambda plan: AddressPlan(plan.topology, block=1 << 32), "block = 0x100000000: valid: 32 bits"),
    ],
)
def test_wrong_numbers_are_named(call: object, said: str) -> None:
    plan = AddressPlan(leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2))
    with pytest.raises(ConfigError, match=said):
        call(plan)  # type: ignore[operator]


def test_examples_in_the_documentation_of_the_plan() -> None:
    failed, attempted = doctest.testmod(addresses)
    assert attempted > 0
    assert failed == 0
