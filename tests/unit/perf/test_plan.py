"""Plans of measurements: what a server lets a client ask for."""

import doctest

import pytest

from farstep.cli import perf_text
from farstep.engine import InvalidFieldError
from farstep.perf import ConnectionFigures, LatencyFigures, PerfError, PerfPlan
from farstep.perf.figures import Sample


def test_a_plan_survives_the_wire():
    plan = PerfPlan(direction="both", connections=3, time_s=None, total_bytes=10, mtu_bytes=1024)
    assert PerfPlan.from_table(plan.table()) == plan


def test_connections_share_the_whole():
    plan = PerfPlan(connections=3, time_s=None, total_bytes=11)
    assert [plan.bytes_of(index) for index in range(3)] == [4, 4, 3]
    assert PerfPlan().bytes_of(0) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"measure": "speed"}, "measure = 'speed': valid: goodput, latency"),
        ({"direction": "up"}, "direction = 'up': valid: forward, reverse, both"),
        ({"path_mode": "mpls"}, "path_mode = 'mpls': valid: auto, udp, srv6"),
        ({"size_bytes": 0}, "size_bytes = 0: valid: 1 to 1,073,741,824"),
        ({"size_bytes": True}, "size_bytes = True"),
        ({"depth": 5000}, "depth = 5000: valid: 1 to 4,096"),
        ({"connections": 1.0}, "connections = 1.0: valid: 1 to 256"),
        ({"planes": 33}, "planes = 33: valid: 1 to 32"),
        ({"time_s": None}, "time_s and total_bytes: one of the two"),
        ({"total_bytes": 5}, "time_s and total_bytes: one of the two"),
        ({"time_s": float("nan")}, "time_s = nan"),
        ({"time_s": "1"}, "time_s = '1'"),
        ({"omit_s": -1.0}, "omit_s = -1.0"),
        ({"measure": "latency", "connections": 2}, "latency is measured on one connection"),
        ({"measure": "latency", "direction": "both"}, "latency is measured on one connection"),
        ({"connections": 200, "size_bytes": 1 << 30}, "need more than 4,294,967,296 bytes of memory"),
        ({"mtu_bytes": 1}, "mtu_bytes = 1 is not valid"),
        ({"burst_segments": 65}, "burst_segments = 65 is not valid"),
        ({"is_checked": 3}, "icrc = 3 is not valid"),
    ],
)
def test_what_cannot_be_measured_is_named(changed, said):
    with pytest.raises(PerfError, match=said):
        PerfPlan(**changed)
    with pytest.raises(PerfError, match=said):
        PerfPlan.from_table(PerfPlan().table() | changed)


@pytest.mark.parametrize("table", [None, [], {}, {"size_bytes": 1}, PerfPlan().table() | {"colour": "red"}])
def test_plans_of_another_form_are_refused(table):
    with pytest.raises(PerfError, match="another version"):
        PerfPlan.from_table(table)


def test_profiles_follow_the_plan():
    profile = PerfPlan(burst_segments=1, mtu_bytes=512, is_checked=False, path_mode="udp").profile()
    assert (profile.burst_segments, profile.mtu_bytes, profile.icrc, profile.path_mode) == (
        1,
        512,
        False,
        "udp",
    )
    with pytest.raises(InvalidFieldError):
        PerfPlan().profile(max_connections=0)


def test_figures_are_differences_of_samples():
    figures = ConnectionFigures.between(
        Sample(sent_bytes=100, sent_writes=1, retransmitted=2),
        Sample(sent_bytes=1100, sent_writes=11, retransmitted=5, cwnd_bytes=7, rtt_us=3.0),
        0.5,
    )
    assert figures.sent_bits_per_s == 16_000
    assert (figures.sent_writes, figures.retransmitted, figures.cwnd_bytes) == (10, 3, 7)
    both = ConnectionFigures.together([figures, figures], 0.5)
    assert (both.sent_bytes, both.cwnd_bytes, both.rtt_us) == (2000, 7, 3.0)
    assert ConnectionFigures(seconds=0.0, sent_bytes=1).table()["sent_bits_per_s"] == 0.0


def test_latency_is_half_of_there_and_back():
    latency = LatencyFigures.of([2_000, 4_000, 6_000])
    assert (latency.count, latency.min_us, latency.median_us, latency.max_us) == (3, 1.0, 2.0, 3.0)


def test_examples_of_the_terminal():
    failed, attempted = doctest.testmod(perf_text)
    assert attempted > 0
    assert failed == 0
