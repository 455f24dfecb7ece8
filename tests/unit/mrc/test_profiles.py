"""Profiles: what can be configured, what is derived, and what is said about a mistake."""

import dataclasses

import pytest

from farstep.mrc import (
    CongestionProfile,
    DampingProfile,
    EvEntry,
    EvProfile,
    InvalidFieldError,
    NsccScaling,
)

# Worked rows of the scaling table, MTU 4096, trimming on: rate, base RTT, planes -> BDP, maxwnd, a, target,
# proportional and fair gain per window, eta, fi_scale, marking thresholds of one plane.
WORKED_ROWS = [
    (100, 12_000, 1, 150e3, 225e3, 1.00, 9_000, 12.3e3, 20.5e3, 614, 0.25, 30e3, 120e3),
    (400, 8_000, 1, 400e3, 600e3, 2.67, 6_000, 21.8e3, 54.6e3, 1.6e3, 0.67, 80e3, 320e3),
    (800, 10_000, 8, 1e6, 1.5e6, 6.67, 7_500, 68.3e3, 136.5e3, 4.1e3, 1.67, 25e3, 100e3),
    (800, 12_000, 8, 1.2e6, 1.8e6, 8.00, 9_000, 98.3e3, 163.8e3, 4.9e3, 2.0, 30e3, 120e3),
]


@pytest.mark.parametrize("row", WORKED_ROWS, ids=lambda row: f"{row[0]}G {row[1]} ns")
def test_the_worked_rows_of_the_scaling_table(row):
    rate_gbps, base_rtt_ns, planes, bdp, maxwnd, a, target, proportional, fair, eta, fi_scale, low, high = row
    derived = NsccScaling.derive(rate_gbps=rate_gbps, base_rtt_ns=base_rtt_ns, mtu_bytes=4096, trimming=True)
    assert derived.bdp_bytes == bdp
    assert derived.max_cwnd_bytes == maxwnd
    assert derived.scale_a == pytest.approx(a, abs=0.005)
    assert derived.target_delay_ns == target
    assert derived.scale_b == target / 12_000
    assert derived.max_proportional_gain_bytes == pytest.approx(proportional, abs=50)
    assert derived.fi_bytes == pytest.approx(fair, abs=50)
    assert derived.eta_bytes == pytest.approx(eta, abs=50)
    assert derived.fi_scale == pytest.approx(fi_scale, abs=0.005)
    assert derived.ecn_range_bytes(planes) == pytest.approx((low, high))


def test_constants_that_do_not_scale():
    derived = NsccScaling.derive(rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096, trimming=True)
    assert derived.min_cwnd_bytes == 4096 + 40
    assert derived.adjust_bytes == 8 * 4096
    assert derived.adjust_period_ns == 12_000
    assert (derived.gamma, derived.max_md_jump, derived.delay_weight, derived.qa_gate) == (
        0.8,
        0.5,
        0.0125,
        3,
    )
    assert derived.qa_threshold_ns is None, "with trimming a long delay alone never triggers quick adapt"


def test_without_trimming_the_target_is_a_whole_round_trip():
    derived = NsccScaling.derive(rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096, trimming=False)
    assert derived.target_delay_ns == 12_000
    assert derived.qa_threshold_ns == 48_000


def test_between_sites_one_window_gains_at_most_one_bandwidth_delay_product():
    derived = NsccScaling.derive(rate_gbps=0.2, base_rtt_ns=50_000_000, mtu_bytes=1400, trimming=False)
    assert derived.max_proportional_gain_bytes == pytest.approx(derived.bdp_bytes)


def test_a_tiny_network_still_has_room_for_one_packet():
    derived = NsccScaling.derive(rate_gbps=0.001, base_rtt_ns=1_000, mtu_bytes=4096, trimming=False)
    assert derived.max_cwnd_bytes == derived.min_cwnd_bytes == 4136


def test_knobs_that_are_set_win_over_the_table():
    profile = CongestionProfile(
        fi_bytes=1.0, eta_bytes=0.0, max_cwnd_bytes=99_999, gamma=0.5, qa_threshold_ns=7, quick_adapt=False
    )
    resolved = profile.resolve(rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096)
    derived = NsccScaling.derive(rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096, trimming=False)
    changed = {
        f.name: getattr(resolved, f.name)
        for f in dataclasses.fields(resolved)
        if getattr(resolved, f.name) != getattr(derived, f.name)
    }
    assert changed == {
        "fi_bytes": 1.0,
        "eta_bytes": 0.0,
        "max_cwnd_bytes": 99_999,
        "gamma": 0.5,
        "qa_threshold_ns": 7,
        "quick_adapt": False,
    }


def test_a_profile_without_knobs_is_the_table():
    resolved = CongestionProfile(trimming=True).resolve(rate_gbps=400, base_rtt_ns=8_000, mtu_bytes=4096)
    assert resolved == NsccScaling.derive(rate_gbps=400, base_rtt_ns=8_000, mtu_bytes=4096, trimming=True)


def test_configured_rate_and_round_trip_win_over_measured_ones():
    resolved = CongestionProfile(rate_gbps=100, base_rtt_ns=12_000).resolve(
        rate_gbps=1, base_rtt_ns=1_000, mtu_bytes=4096
    )
    assert resolved.bdp_bytes == 150_000


def test_a_target_delay_that_is_set_decides_the_gain_too():
    resolved = CongestionProfile(target_delay_ns=6_000).resolve(
        rate_gbps=100, base_rtt_ns=12_000, mtu_bytes=4096
    )
    assert resolved.scale_b == 0.5
    assert resolved.max_proportional_gain_bytes == pytest.approx(4 * 4096 * 0.5)
    assert resolved.qa_threshold_ns == 24_000


# ---- entropy values


def test_defaults_follow_the_design():
    profile = EvProfile()
    assert (profile.mode, profile.share, profile.restore_successes) == ("generated", "equal", 5)
    assert profile.num_active(2) == 128
    assert profile.min_active_of(2) == 32
    assert profile.probe_interval_of(10_000) == 1_000_000
    assert profile.probe_interval_of(50_000_000) == 1_600_000_000


def test_the_floor_keeps_one_value_per_plane():
    assert EvProfile(active_per_plane=2).min_active_of(8) == 8
    assert EvProfile(active_per_plane=2, min_active=0).min_active_of(8) == 0
    assert EvProfile(active_per_plane=2, min_active=99).min_active_of(8) == 16


def test_each_relapse_doubles_the_probes_up_to_a_limit():
    damping = DampingProfile(successes_max=50)
    assert [damping.successes_after(n, 5) for n in range(6)] == [5, 10, 20, 40, 50, 50]
    assert DampingProfile().successes_after(10_000, 5) == 160


@pytest.mark.parametrize("planes", [1, 2, 3, 8, 32])
def test_a_sized_profile_has_equal_planes_and_fits(planes):
    profile = EvProfile.sized_for(rate_gbps=800, base_rtt_ns=10_000, mtu_bytes=4096, num_planes=planes)
    assert profile.active_per_plane >= 8
    assert profile.num_active(planes) <= 256
    assert profile.backup_per_plane == profile.active_per_plane // 2
    small = EvProfile.sized_for(rate_gbps=1, base_rtt_ns=10_000, mtu_bytes=4096, num_planes=planes)
    assert small.active_per_plane == 8


def test_an_explicit_profile_lists_its_paths():
    entries = tuple(EvEntry(value=value, plane=plane) for plane in (0, 1) for value in range(3))
    profile = EvProfile(mode="explicit", active_per_plane=2, backup_per_plane=1, entries=entries)
    assert profile.num_active(2) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "automatic"}, "mode = 'automatic' is not valid; valid is 'generated' or 'explicit'"),
        ({"share": "fair"}, "share = 'fair' is not valid; valid is 'equal' or 'capacity'"),
        ({"active_per_plane": 0}, "active_per_plane = 0 is not valid; valid is 1 to 1024"),
        ({"active_per_plane": 1000}, "backup_per_plane = 32 is not valid; valid is 0 to 24"),
        ({"active_per_plane": 64.0}, "active_per_plane = 64.0 is not valid; valid is a whole number"),
        ({"probe_interval_ns": 5}, "probe_interval_ns = 5 is not valid; valid is 1000 to"),
        ({"skip_passes": -1}, "skip_passes = -1 is not valid; valid is 0 to 1000"),
        ({"restore_successes": 161}, "restore_successes = 161 is not valid; valid is 1 to 160"),
        ({"mode": "explicit"}, "entries = '0 entries' is not valid; valid is at least one entry"),
        ({"entries": (EvEntry(value=1),)}, "entries = '1 entries' is not valid"),
    ],
)
def test_a_wrong_path_profile_is_explained(arguments, said):
    with pytest.raises(InvalidFieldError) as caught:
        EvProfile(**arguments)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([(1, 0), (1, 0)], "at most once per plane"),
        ([(1, 0), (2, 2)], "planes numbered from 0 without a gap"),
        ([(1, 0), (2, 0), (1, 1)], "2 for every plane"),
    ],
)
def test_wrong_explicit_entries_are_explained(entries, said):
    listed = tuple(EvEntry(value=value, plane=plane) for value, plane in entries)
    with pytest.raises(InvalidFieldError, match=said):
        EvProfile(mode="explicit", active_per_plane=1, backup_per_plane=1, entries=listed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"algorithm": "dcqcn"}, "algorithm = 'dcqcn' is not valid; valid is 'uet-1.0-nscc' or 'none'"),
        ({"algorithm": "none"}, "max_cwnd_bytes = None is not valid; valid is a number of bytes"),
        ({"gamma": 1.5}, "gamma = 1.5 is not valid; valid is 0 to 1"),
        ({"gamma": float("nan")}, "gamma = nan is not valid"),
        ({"max_md_jump": "half"}, "max_md_jump = 'half' is not valid; valid is a number from 0 to 1"),
        ({"rate_gbps": 0}, "rate_gbps = 0 is not valid"),
        ({"base_rtt_ns": 1.5}, "base_rtt_ns = 1.5 is not valid; valid is a whole number"),
        ({"max_cwnd_bytes": True}, "max_cwnd_bytes = True is not valid; valid is a whole number"),
    ],
)
def test_a_wrong_congestion_profile_is_explained(arguments, said):
    with pytest.raises(InvalidFieldError) as caught:
        CongestionProfile(**arguments)
    assert str(caught.value).startswith(said)
    assert caught.value.field in arguments or caught.value.field == "max_cwnd_bytes"


def test_wrong_arguments_of_the_scaling_table_are_explained():
    with pytest.raises(InvalidFieldError, match="mtu_bytes = 10"):
        NsccScaling.derive(rate_gbps=1, base_rtt_ns=1_000, mtu_bytes=10, trimming=False)
    with pytest.raises(InvalidFieldError, match="num_planes = 33"):
        EvProfile().num_active(33)
    with pytest.raises(InvalidFieldError, match=r"num_planes \* .* = 3072"):
        EvProfile().num_active(32)


def test_profiles_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EvProfile().active_per_plane = 3
