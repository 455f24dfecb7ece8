"""Settings of endpoints and ports: what is refused, and with which words."""

import pytest

from farstep.engine import EndpointProfile, InvalidFieldError, PortConfig
from farstep.engine.profile import split_address
from farstep.mrc.profiles import CongestionProfile, EvEntry, EvProfile


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("mtu_bytes", 63, "64 to 60000"),
        ("mtu_bytes", 60_001, "64 to 60000"),
        ("mtu_bytes", 1500.0, "a whole number from 64 to 60000"),
        ("burst_segments", 0, "1 to 64"),
        ("burst_segments", True, "a whole number from 1 to 64"),
        ("mpr", 256, "1 to 255"),
        ("wimm", 0, "1 to 32768"),
        ("send_queue", 1000, "a power of two from 2 to 32768"),
        ("send_queue", 65_536, "2 to 32768"),
        ("immediate_queue", 1, "2 to 32768"),
        ("sack_threshold_bytes", 0, "1 to 16777216"),
        ("rto_base_ns", 99_999, "100000 to 17179869184"),
        ("rto_max_ns", 1, "67108864 to 600000000000"),
        ("linear_count", 8, "0 to 7"),
        ("exponential_count", 26, "0 to 25"),
        ("loss_slack_min_ns", 999, "1000 to 1000000000"),
        ("receive_buffer_bytes", 1, "65536 to 1073741824"),
        ("send_buffer_bytes", "4M", "a whole number from 65536 to 1073741824"),
        ("max_connections", 4097, "1 to 4096"),
        ("max_regions", 0, "1 to 65536"),
        ("icrc", 1, "True or False"),
        ("seed", "x", "a whole number from 0 to 18446744073709551615"),
        ("seed", -1, "0 to 18446744073709551615"),
        ("ev", 8, "an EvProfile"),
        ("congestion", None, "a CongestionProfile"),
    ],
)
def test_an_impossible_setting_is_named_with_what_would_be_valid(field, value, valid):
    with pytest.raises(InvalidFieldError) as caught:
        EndpointProfile(**{field: value})
    assert caught.value.field == field
    assert caught.value.value == value
    assert str(caught.value) == f"{field} = {value!r} is not valid; valid is {valid}"


def test_paths_given_one_by_one_are_refused_where_paths_are_source_ports():
    ev = EvProfile(mode="explicit", active_per_plane=1, backup_per_plane=0, entries=(EvEntry(value=1),))
    with pytest.raises(InvalidFieldError, match=r"ev\.mode = 'explicit' is not valid"):
        EndpointProfile(ev=ev)


def test_the_limits_themselves_are_valid():
    EndpointProfile(
        mtu_bytes=64, burst_segments=64, mpr=255, send_queue=2, exponential_count=25, seed=2**64 - 1
    )
    EndpointProfile(mtu_bytes=60_000, burst_segments=1, mpr=1, immediate_queue=32_768, linear_count=0, seed=0)


def test_profiles_of_paths_and_congestion_are_taken():
    profile = EndpointProfile(ev=EvProfile(active_per_plane=2), congestion=CongestionProfile(rate_gbps=1.0))
    assert profile.ev.active_per_plane == 2


@pytest.mark.parametrize(
    ("mtu_bytes", "asked", "packets"),
    [
        (4096, 15, 15),
        (4096, 64, 15),
        (16_000, 15, 4),
        (60_000, 15, 1),
        (1360, 64, 46),
        (64, 64, 64),
        (9000, 1, 1),
    ],
)
def test_a_burst_is_what_one_segmented_send_can_hold(mtu_bytes, asked, packets):
    assert EndpointProfile(burst_segments=asked).burst_packets(mtu_bytes) == packets


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("plane", 32, "0 to 31"),
        ("plane", "a", "a whole number from 0 to 31"),
        ("rate_mbps", 0, "0.01 to 10000000"),
        ("rate_mbps", "fast", "a number from 0.01 to 10000000"),
    ],
)
def test_an_impossible_port_is_named_with_what_would_be_valid(field, value, valid):
    with pytest.raises(InvalidFieldError) as caught:
        PortConfig(**{field: value})
    assert str(caught.value) == f"{field} = {value!r} is not valid; valid is {valid}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1", ("127.0.0.1", 0)),
        ("127.0.0.1:4791", ("127.0.0.1", 4791)),
        ("::1", ("::1", 0)),
        ("[::1]:7", ("::1", 7)),
        ("[::1]", ("::1", 0)),
        ("0:0:0:0:0:0:0:1", ("::1", 0)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
    ],
)
def test_addresses_are_split(text, address):
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":80", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", "[::1]x", "[::1", "[]:1", 5],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidFieldError, match="is not valid; valid is"):
        split_address(text)


def test_a_name_that_does_not_resolve_is_refused():
    with pytest.raises(InvalidFieldError, match="a name or number that resolves"):
        split_address("no-such-host.invalid:1")
