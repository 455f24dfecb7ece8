"""Entropy values as ports, hop fields and SRv6 paths."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep import _native
from farstep.mrc import InvalidFieldError
from farstep.mrc.addressing import (
    EvField,
    EvFormat,
    EvMode,
    PathTemplate,
    SrEv,
    Tier,
    Usid,
    UsidPath,
    place_ev,
    read_ev,
    shift_usid,
)

REFERENCE_HOPS = [  # what the switches of the reference example make of one packet
    "fcbb:bbbb:0103:0207:0105:f011::",
    "fcbb:bbbb:0207:0105:f011::",
    "fcbb:bbbb:0105:f011::",
    "fcbb:bbbb:f011::",
    "fcbb:bbbb::",
]


@given(st.integers(0, 2**32 - 1))
def test_an_entropy_value_survives_port_and_label(ev):
    source_port, flow_label = place_ev(ev)
    assert flow_label < 1 << 16, "the upper four label bits stay free"
    assert read_ev(source_port, flow_label) == ev == _native.wire.ev_from(flow_label, source_port)
    assert read_ev(source_port) == ev & 0xFFFF, "over IPv4 only the port is seen"


def test_upper_label_bits_do_not_reach_the_entropy_value():
    assert read_ev(1, 0xF0002) == _native.wire.ev_from(0xF0002, 1) == 0x00020001


@pytest.mark.parametrize("ev", [-1, 2**32, 1.5])
def test_an_entropy_value_has_32_bits(ev):
    with pytest.raises(InvalidFieldError, match="ev = "):
        place_ev(ev)


# ---- fields


def test_a_field_spreads_bits_over_its_mask_from_the_top():
    field = EvField(width_bits=8, init_value=0b1000_0001, mask=0b0011_0100, maximum=7)
    assert field.expand(0b000) == 0b1000_0001
    assert field.expand(0b100) == 0b1010_0001
    assert field.expand(0b011) == 0b1001_0101
    assert field.expand(0b111) == 0b1011_0101


def test_generated_bits_replace_those_of_the_initial_value():
    assert EvField(width_bits=4, init_value=0b1111, mask=0b0110, maximum=3).expand(0b01) == 0b1011


def test_the_first_field_is_most_significant():
    stev = EvFormat(
        (EvField(width_bits=8, mask=0xFF, maximum=255), EvField(width_bits=4, mask=0xF, maximum=15))
    )
    assert stev.expand(0xABC) == 0xABC
    srv6 = EvFormat(
        (
            EvField(width_bits=32, init_value=0xFCBBBBBB),
            EvField(width_bits=16, init_value=0x0100, mask=0x00FF, maximum=255),  # upper byte: tier
            EvField(width_bits=16, init_value=0x0200, mask=0x00FF, maximum=15),
        ),
        EvMode.USID,
    )
    assert srv6.expand(0x03_07) == 0xFCBBBBBB_0103_0207
    assert srv6.compact(0xFCBBBBBB_0103_0207) == 0x03_07


def test_values_beyond_the_maximum_are_not_generated():
    """180 leaves exist although the field has room for 256."""
    stev = EvFormat(
        (EvField(width_bits=8, mask=0xFF, maximum=179), EvField(width_bits=4, mask=0xF, minimum=2, maximum=3))
    )
    values = list(stev.values())
    assert len(values) == len(set(values)) == stev.count == 360
    assert values == sorted(values)
    assert all(stev.compact(stev.expand(value)) == value for value in values)
    with pytest.raises(InvalidFieldError, match=r"fields\[0\] = 180"):
        stev.expand(180 << 4 | 2)
    with pytest.raises(InvalidFieldError, match=r"fields\[1\] = 0"):
        stev.expand(0)


@st.composite
def formats(draw):
    fields = []
    for width in draw(st.lists(st.integers(1, 8), min_size=1, max_size=4)):
        mask = draw(st.integers(0, 2**width - 1))
        maximum = 2 ** mask.bit_count() - 1
        fields.append(
            EvField(
                width_bits=width, init_value=draw(st.integers(0, 2**width - 1)), mask=mask, maximum=maximum
            )
        )
    return EvFormat(tuple(fields))


@given(formats(), st.data())
def test_expanding_can_be_undone_and_leaves_constant_bits_alone(ev_format, data):
    compact = data.draw(st.integers(0, 2**ev_format.compact_bits - 1))
    expanded = ev_format.expand(compact)
    assert ev_format.compact(expanded) == compact
    constant, generated = 0, 0
    for field in ev_format.fields:
        constant = constant << field.width_bits | field.init_value
        generated = generated << field.width_bits | field.mask
    assert (expanded ^ constant) & ~generated == 0


def test_a_format_must_fit_its_carrier():
    wide = EvField(width_bits=17, mask=0x1FFFF, maximum=9)
    EvFormat((wide,), EvMode.STEV)
    with pytest.raises(InvalidFieldError, match="1 to 16 bits together for ECMP"):
        EvFormat((wide,), EvMode.ECMP)
    with pytest.raises(InvalidFieldError, match="fields"):
        EvFormat((), EvMode.STEV)


def test_a_field_must_be_consistent():
    with pytest.raises(InvalidFieldError, match="maximum"):
        EvField(width_bits=8, mask=0x0F, maximum=16)
    with pytest.raises(InvalidFieldError, match="minimum"):
        EvField(width_bits=8, mask=0x0F, minimum=5, maximum=4)
    with pytest.raises(InvalidFieldError, match="mask"):
        EvField(width_bits=4, mask=0x1F)


# ---- SRv6


def test_every_switch_shifts_the_path_by_one_usid():
    path = UsidPath.parse(REFERENCE_HOPS[0])
    assert path == UsidPath(0xFCBBBBBB, (0x0103, 0x0207, 0x0105, 0xF011))
    for hop in REFERENCE_HOPS:
        assert path.address == ipaddress.IPv6Address(hop)
        assert shift_usid(hop) == path.shifted().address
        path = path.shifted()
    assert path.usids == ()


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 0xFFFF), max_size=6))
def test_a_path_survives_its_address(block, usids):
    path = UsidPath(block, tuple(usids))
    assert UsidPath.parse(path.address) == path
    assert UsidPath.parse(path.address.packed) == path


@given(st.integers(0, 2**128 - 1))
def test_a_shift_moves_the_usid_part_and_nothing_else(number):
    shifted = int(shift_usid(ipaddress.IPv6Address(number)))
    assert shifted >> 96 == number >> 96
    assert shifted & 0xFFFF == 0
    assert shifted >> 16 & (1 << 80) - 1 == number & (1 << 80) - 1


def test_a_usid_of_zero_cannot_stand_inside_a_path():
    with pytest.raises(InvalidFieldError, match=r"usids\[1\] = 0"):
        UsidPath(0xFCBBBBBB, (1, 0, 2))
    with pytest.raises(InvalidFieldError, match=r"usids\[1\] = 0"):
        UsidPath.parse("fcbb:bbbb:1:0:2::")


def test_an_address_has_room_for_six():
    UsidPath(0, (1, 2, 3, 4, 5, 6))
    with pytest.raises(InvalidFieldError, match=r"len\(usids\) = 7"):
        UsidPath(0, (1, 2, 3, 4, 5, 6, 7))


@given(st.sampled_from(Tier), st.integers(0, 7), st.integers(0, 1023))
def test_a_usid_of_our_plan_survives_its_bits(tier, plane, index):
    usid = Usid(tier, plane, index)
    assert Usid.parse(usid.value) == usid
    assert 0 < usid.value < 0xE000, "inside the global identifier block"


def test_a_usid_outside_our_plan_is_refused():
    with pytest.raises(InvalidFieldError, match=r"usid.tier = 7 .*1 \(T0\)"):
        Usid.parse(0xF011)


@given(st.integers(0, 7), st.integers(0, 1023))
def test_an_sr_entropy_value_survives_its_bits(plane, uplink):
    ev = SrEv(plane, uplink)
    assert SrEv.parse(ev.value) == ev
    assert ev.value == plane << 29 | uplink << 19


def test_an_sr_entropy_value_has_19_zero_bits():
    with pytest.raises(InvalidFieldError, match="19 zero bits"):
        SrEv.parse(0xBEEF8001)


@given(st.integers(0, 7), st.integers(0, 1023))
def test_plane_and_uplink_of_the_entropy_value_pick_the_path(plane, uplink):
    row = PathTemplate(block=0xFCBBBBBB, source_leaf=3, destination_leaf=5, downlink=17)
    hops = [Usid.parse(usid) for usid in row.path(SrEv(plane, uplink)).usids]
    assert hops == [
        Usid(Tier.T0, plane, 3),
        Usid(Tier.T1, plane, uplink),
        Usid(Tier.T0, plane, 5),
        Usid(Tier.DOWNLINK, plane, 17),
    ]


def test_a_path_under_one_switch_needs_no_second_tier():
    row = PathTemplate(block=0xFCBBBBBB, source_leaf=3, destination_leaf=3, downlink=17)
    hops = [Usid.parse(usid) for usid in row.path(SrEv(1, 99)).usids]
    assert hops == [Usid(Tier.T0, 1, 3), Usid(Tier.DOWNLINK, 1, 17)]
