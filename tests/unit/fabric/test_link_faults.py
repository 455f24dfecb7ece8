"""The fault script on a topology: which links change, when, and to what."""

import numpy as np
import pytest

from farstep.fabric import FAULT_KINDS, ConfigError, FaultScript, LinkTimeline, clos, fat_tree, multi_site
from farstep.fabric.topology import SIMULATED_KINDS, target_links

TREE = fat_tree(128)
MS = 1_000_000


def changes(*faults, network=TREE, until_ms=100):
    script = FaultScript.parse({"faults": list(faults)})
    return LinkTimeline(script, network, source="faults.toml").until(until_ms * MS)


def told(*faults, network=TREE, **more):
    return [
        (change.time_ns / MS, change.kind, change.value, len(change.links))
        for change in changes(*faults, network=network, **more)
    ]


def test_an_outage_begins_and_ends_on_the_links_of_the_element():
    down, up = changes(
        {"kind": "switch_down", "switch": "t1/p0/5", "at_s": 0.002, "duration_s": 0.003, "name": "boot"}
    )
    assert (down.time_ns, down.kind, down.fault) == (2 * MS, "down", "boot")
    assert (up.time_ns, up.kind, up.fault) == (5 * MS, "up", "boot")
    assert np.array_equal(down.links, TREE.resolve("switch:t1/p0/5"))
    assert np.array_equal(up.links, down.links)


@pytest.mark.parametrize("silent", [True, False])
def test_an_outage_is_signalled_unless_it_is_silent(silent):
    (down,) = changes({"kind": "port_down", "port": "3/0", "at_s": 0, "silent": silent})
    assert down.is_signalled is not silent


def test_a_link_two_faults_hold_down_comes_up_with_the_last():
    assert told(
        {"kind": "nic_down", "nic": 3, "at_s": 0.001, "duration_s": 0.004},
        {"kind": "switch_down", "switch": "t0/p0/0", "at_s": 0.002, "duration_s": 0.001},
    ) == [(1, "down", 0, 2), (2, "down", 0, 14), (3, "up", 0, 14), (5, "up", 0, 2)]


def test_the_most_severe_of_several_is_in_force():
    rates = told(
        {"kind": "rate", "link": "t0/p0/0-t1/p0/0", "rate_percent": 50, "at_s": 0.001, "duration_s": 0.010},
        {"kind": "rate", "link": "t0/p0/0-t1/p0/0", "rate_mbps": 25_000, "at_s": 0.002, "duration_s": 0.002},
    )
    assert rates == [(1, "rate", 0.5, 2), (2, "rate", 0.25, 2), (4, "rate", 0.5, 2), (11, "rate", 1.0, 2)]


def test_loss_is_a_share_and_delay_is_added():
    assert told(
        {"kind": "loss", "transceiver": "nic/7/0", "loss_percent": 2, "at_s": 0},
        {
            "kind": "delay",
            "link": "t0/p0/0->t1/p0/0",
            "extra_delay_ms": 0.5,
            "at_s": 0.001,
            "duration_s": 0.001,
        },
    ) == [(0, "loss", 0.02, 2), (1, "delay", 500_000, 1), (2, "delay", 0, 1)]


def test_a_flap_comes_and_goes():
    flap = {"kind": "flap", "link": "t0/p0/0-t1/p0/0", "period_s": 0.010, "down_s": 0.001, "at_s": 0.005}
    assert [(time, kind) for time, kind, _, _ in told(flap, until_ms=30)] == [
        (5, "down"),
        (6, "up"),
        (15, "down"),
        (16, "up"),
        (25, "down"),
        (26, "up"),
    ]


def test_restore_takes_back_what_is_active_on_a_target():
    assert told(
        {"kind": "switch_down", "switch": "t0/p0/0", "at_s": 0.001},
        {"kind": "restore", "nic": 2, "at_s": 0.002},
    ) == [(1, "down", 0, 16), (2, "up", 0, 2)]


def test_steps_bring_changes_too():
    script = FaultScript.parse(
        {"faults": [{"kind": "nic_down", "nic": 1, "at_step": 4, "duration_steps": 2, "name": "pulled"}]}
    )
    timeline = LinkTimeline(script, TREE)
    assert timeline.next_ns is None
    assert timeline.reach_step(3, 10) == []
    (down,) = timeline.reach_step(4, 20)
    assert (down.kind, down.time_ns, down.step) == ("down", 20, 4)
    assert not timeline.is_finished
    (up,) = timeline.reach_step(6, 50)
    assert (up.kind, up.time_ns, up.step) == ("up", 50, 6)
    assert timeline.is_finished


def test_links_of_different_rates_keep_their_own():
    network = fat_tree(16, uplink_gbps=200.0)
    assert told({"kind": "rate", "switch": "t0/p0/0", "rate_mbps": 50_000, "at_s": 0}, network=network) == [
        (0, "rate", 0.5, 4),
        (0, "rate", 0.25, 4),
    ]


def test_planes_and_sites_mean_links_too():
    network = multi_site(
        {"a": clos(8, planes=2, radix=4), "b": clos(8, planes=2, radix=4)},
        [{"between": ["a", "b"], "delay_ms": 1, "links": 2}],
    )
    (plane,) = changes({"kind": "plane_down", "plane": 1, "at_s": 0}, network=network)
    assert set(network.link_plane[plane.links]) == {1}
    (site,) = changes({"kind": "site_down", "site": "a", "at_s": 0}, network=network)
    (cut,) = changes({"kind": "partition", "sites": ["b", "a"], "at_s": 0}, network=network)
    assert len(site.links) == 4
    assert np.array_equal(site.links, cut.links)
    (one,) = changes(
        {"kind": "loss", "plane": 0, "sites": ["a", "b"], "direction": "a->b", "loss_percent": 1, "at_s": 0},
        network=network,
    )
    assert len(one.links) == 1
    assert network.node_site[network.link_source[one.links[0]]] == 0
    (narrowed,) = changes({"kind": "switch_down", "switch": "t1/*/0", "plane": 1, "at_s": 0}, network=network)
    assert set(network.link_plane[narrowed.links]) == {1}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            {"kind": "path_down", "path": "p"},
            'faults[0].kind = "path_down": not simulated; valid in a simulation: ',
        ),
        (
            {"kind": "loss", "path": "p", "loss_percent": 1},
            'faults[0].path = "p": a topology has no named paths',
        ),
        ({"kind": "jitter", "nic": 1, "jitter_ms": 1}, 'faults[0].kind = "jitter": not simulated'),
        (
            {"kind": "switch_down", "switch": "t9/p0/0"},
            'faults[0].switch = "t9/p0/0": no such tier "t9"; known',
        ),
        ({"kind": "port_down", "port": "12"}, "faults[0].port = 12: write it as NIC/PORT, such as 12/3"),
        ({"kind": "nic_down", "nic": 128}, 'faults[0].nic = 128: no such NIC "128"; valid: 0 to 127'),
        ({"kind": "site_down", "site": "b"}, 'faults[0].site = "b": no such site; known sites: local'),
        (
            {"kind": "site_down", "site": "local"},
            "faults[0].site=local: no link matches all of this together",
        ),
        ({"kind": "plane_down", "plane": 3}, "no such plane; known planes: 0"),
    ],
)
def test_a_fault_that_no_simulation_has_is_told(fault, said):
    with pytest.raises(ConfigError) as caught:
        changes({"at_s": 1, **fault})
    assert str(caught.value).startswith("faults.toml: ")
    assert said in str(caught.value)


def test_all_mistakes_of_a_script_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        changes({"kind": "nic_down", "nic": 999, "at_s": 1}, {"kind": "nic_down", "nic": "x", "at_s": 1})
    assert [line.partition(":")[2][:11] for line in str(caught.value).splitlines()] == [
        " faults[0].",
        " faults[1].",
    ]


def test_an_endless_flap_is_stopped_at_a_limit(monkeypatch):
    monkeypatch.setattr("farstep.fabric.topology.link_faults.CHANGES_MAX", 100)
    with pytest.raises(ConfigError, match="more than 100 changes; valid: fewer, or an earlier end"):
        changes({"kind": "flap", "nic": 1, "period_s": 0.001, "at_s": 0}, until_ms=1000)


def test_kinds_that_are_simulated_are_kinds_of_faults():
    assert set(SIMULATED_KINDS) < set(FAULT_KINDS)


def test_a_target_is_resolved_alone():
    script = FaultScript.parse({"faults": [{"kind": "nic_down", "nic": "1*", "at_s": 0}]})
    assert len(target_links(TREE, script.faults[0].target)) == 2 * (1 + 10 + 28)


def test_a_plane_of_a_large_network_is_one_change():
    network = clos(2048, planes=4, radix=64)
    down, up = changes({"kind": "plane_down", "plane": 2, "at_s": 0, "duration_s": 0.01}, network=network)
    assert len(down.links) == len(up.links) == network.num_links // 4
