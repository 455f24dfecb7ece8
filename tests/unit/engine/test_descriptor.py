"""Peer descriptors: what comes back is what was sent, and garbage is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep.engine import EngineError
from farstep.engine.descriptor import ConnectionDescriptor, PortDescriptor

PORT = PortDescriptor(
    "10.1.2.3", 4791, 0, 200.0, 4 << 20, {"*": ("192.0.2.1", 5000), "west": ("2001:db8::1", 1)}
)
DESCRIPTOR = ConnectionDescriptor(
    peer_id=2**64 - 1,
    site="east",
    qpn=0xABCDEF,
    start_psn=77,
    mtu_bytes=4096,
    is_mtu_fixed=False,
    mpr=16,
    wimm=256,
    icrc=True,
    ports=(PORT, PortDescriptor("::1", 1, 31, None, 0, {})),
)
FIELDS = json.loads(DESCRIPTOR.encode())
ATTACHMENT = {"block": 0xFCBBBBBB, "leaf": 1, "downlink": 2, "uplinks": 4}

fields = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def test_a_descriptor_survives_its_bytes():
    assert ConnectionDescriptor.decode(DESCRIPTOR.encode()) == DESCRIPTOR


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_by_name(data):
    with pytest.raises(EngineError, match="the peer descriptor"):
        ConnectionDescriptor.decode(data)


@given(st.sampled_from(sorted(FIELDS)), fields)
def test_a_field_of_any_other_kind_is_refused_or_well_formed(name, value):
    data = json.dumps({**FIELDS, name: value}).encode()
    try:
        descriptor = ConnectionDescriptor.decode(data)
    except EngineError:
        return
    descriptor.check()


@given(st.sampled_from(sorted(FIELDS["ports"][0])), fields)
def test_a_field_of_a_port_of_any_other_kind_is_refused_or_well_formed(name, value):
    data = json.dumps({**FIELDS, "ports": [{**FIELDS["ports"][0], name: value}]}).encode()
    try:
        descriptor = ConnectionDescriptor.decode(data)
    except EngineError:
        return
    host, port = descriptor.ports[0].address_for("west", "east")
    assert isinstance(host, str)
    assert 0 < port < 65_536


@given(
    fields
    | st.dictionaries(st.sampled_from(sorted(ATTACHMENT)), fields).map(lambda some: {**ATTACHMENT, **some})
)
def test_an_attachment_of_any_other_kind_is_refused_or_well_formed(value):
    data = json.dumps({**FIELDS, "ports": [{**FIELDS["ports"][0], "attachment": value}]}).encode()
    try:
        descriptor = ConnectionDescriptor.decode(data)
    except EngineError:
        return
    attachment = descriptor.ports[0].attachment
    assert descriptor.path_mode == ("udp" if attachment is None else "srv6")
    if attachment is not None:
        assert attachment.paths_to(attachment).path(attachment.evs_to(attachment, plane=0)[0]).address


@given(st.integers(0, len(DESCRIPTOR.encode()) - 1), st.integers(0, 7))
def test_a_flipped_bit_never_gives_a_malformed_descriptor(at, bit):
    data = bytearray(DESCRIPTOR.encode())
    data[at] ^= 1 << bit
    try:
        descriptor = ConnectionDescriptor.decode(bytes(data))
    except EngineError:
        return
    descriptor.check()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"protocol": "smtp"}, "of another protocol"),
        ({"version": 9}, "the peer speaks version 9 of the descriptor, we speak 1"),
        ({"qpn": 1 << 24}, "qpn = 16777216 is not in 0 to 16777215"),
        ({"mtu_bytes": 10}, "mtu_bytes = 10 is not in 64 to 60000"),
        ({"mpr": 0}, "mpr = 0 is not in 1 to 255"),
        ({"wimm": True}, "wimm = True is not in"),
        ({"ports": []}, "number of ports = 0 is not in 1 to 32"),
        ({"site": 4}, "site is not a text"),
        ({"icrc": "yes"}, "icrc is neither true nor false"),
        ({"novel": 1}, "novel"),
        ({"ports": [{**FIELDS["ports"][0], "port": 0}]}, "port = 0 is not in 1 to 65535"),
        ({"ports": [{**FIELDS["ports"][0], "host": "localhost"}]}, "'localhost' of a port is no IP address"),
        ({"ports": [{**FIELDS["ports"][0], "rate_mbps": "fast"}]}, "rate_mbps = 'fast' is out of range"),
        ({"ports": [{**FIELDS["ports"][0], "public": {"*": ["x", 1]}}]}, "public address"),
        (
            {"ports": [{**FIELDS["ports"][0], "attachment": ATTACHMENT}, FIELDS["ports"][1]]},
            "others have none",
        ),
        ({"ports": [{**FIELDS["ports"][1], "attachment": ATTACHMENT}]}, "plane = 31 is not in 0 to 7"),
        ({"ports": [{**FIELDS["ports"][0], "attachment": {**ATTACHMENT, "leaf": 1024}}]}, "leaf = 1024"),
    ],
)
def test_the_offending_field_is_named(change, said):
    with pytest.raises(EngineError, match=said):
        ConnectionDescriptor.decode(json.dumps({**FIELDS, **change}).encode())


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_missing_field_is_named(name):
    left = {key: value for key, value in FIELDS.items() if key != name}
    with pytest.raises(EngineError, match=name):
        ConnectionDescriptor.decode(json.dumps(left).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read"),
        (b"\xff\xff\xfe", "it is no text"),
        (b"[" * 60_000, "cannot be read"),
        (b"1" * 60_000, "cannot be read"),
        (b"{" + b" " * 70_000, "longer than 65536"),
        (b"null", "cannot be read"),
        ("text", "is bytes, not str"),
        (None, "is bytes, not NoneType"),
    ],
)
def test_what_is_no_descriptor_at_all_is_refused(data, said):
    with pytest.raises(EngineError, match=said):
        ConnectionDescriptor.decode(data)


def test_a_peer_of_the_same_site_is_reached_directly_and_others_by_their_scope():
    assert PORT.address_for("east", "east") == ("10.1.2.3", 4791)
    assert PORT.address_for("west", "east") == ("2001:db8::1", 1)
    assert PORT.address_for("north", "east") == ("192.0.2.1", 5000)
    bare = DESCRIPTOR.ports[1]
    assert bare.address_for("north", "east") == ("::1", 1)
