"""What the transport makes of two attachments is what the address plan of the fabric says."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import AddressPlan, leaf_spine
from farstep.mrc import addressing
from farstep.mrc.addressing import Attachment
from farstep.mrc.errors import InvalidFieldError


def attachment(plan: AddressPlan, nic: int) -> Attachment:
    place = plan.places[nic]
    return Attachment(block=plan.block, leaf=place.leaf, downlink=place.downlink, uplinks=plan.uplinks)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[AddressPlan, int, int]:
    topology = leaf_spine(
        leaves=draw(st.integers(1, 5)),
        spines=draw(st.integers(1, 5)),
        nics_per_leaf=draw(st.integers(2, 5)),
        links_per_spine=draw(st.integers(1, 3)),
        planes=draw(st.integers(1, 8)),
    )
    nics = st.integers(0, topology.num_nics - 1)
    source = draw(nics)
    return AddressPlan(topology), source, draw(nics.filter(lambda nic: nic != source))


@given(pairs())
@settings(max_examples=40, deadline=None)
def test_every_ev_gets_the_address_of_the_plan(drawn: tuple[AddressPlan, int, int]) -> None:
    plan, source, destination = drawn
    row = plan.row(source, destination)
    here, there = attachment(plan, source), attachment(plan, destination)
    template = here.paths_to(there)
    evs = [ev for plane in range(plan.planes) for ev in here.evs_to(there, plane=plane)]
    assert [ev.value for ev in evs] == list(row.evs)
    for ev in evs:
        assert template.path(ev).address == row.address(ev.value)


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_arrivals_and_gateways_are_those_of_the_plan(drawn: tuple[AddressPlan, int, int]) -> None:
    plan, nic, _ = drawn
    here = attachment(plan, nic)
    for plane in range(plan.planes):
        assert here.arrival(plane) == plan.arrival(nic, plane)
        (way_out,) = [
            entry for entry in plan.table(nic) if here.gateway(plane) in entry.network and entry.link >= 0
        ]
        assert way_out.link == plan.topology.nic_links(nic)[plane]


def test_networks_of_different_blocks_are_not_joined() -> None:
    here = Attachment(block=1, leaf=0, downlink=0, uplinks=1)
    with pytest.raises(InvalidFieldError, match="block = '0x2'"):
        here.paths_to(Attachment(block=2, leaf=0, downlink=0, uplinks=1))


@pytest.mark.parametrize(
    ("name", "value"), [("block", 1 << 32), ("leaf", 1024), ("downlink", -1), ("uplinks", 0)]
)
def test_numbers_out_of_range_are_named(name: str, value: int) -> None:
    numbers = {"block": 0xFCBBBBBB, "leaf": 0, "downlink": 0, "uplinks": 1}
    with pytest.raises(InvalidFieldError, match=f"{name} = {value}"):
        Attachment(**(numbers | {name: value}))


def test_examples_in_the_documentation_of_addresses() -> None:
    failed, attempted = doctest.testmod(addressing)
    assert attempted > 0
    assert failed == 0
