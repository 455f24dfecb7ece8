"""Fault scripts in simulated time: convenience of a scenario over the script, draws, and what becomes of it."""

import numpy as np
import pytest

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.build import build_topology
from farstep.sim.faults import link_actions, parse_faults

FABRIC = build_topology("leaf-spine", leaves=2, spines=2, nics_per_leaf=2, planes=2)


def actions(*tables, **options):
    return [
        (action.time_ns, action.kind, action.value, len(action.links))
        for action in link_actions(parse_faults(tables), FABRIC, **options)
    ]


def test_an_outage_comes_and_goes():
    fault = {"kind": "switch_down", "switch": "t1/p0/1", "at_us": 5, "duration_ms": 1}
    assert actions(fault) == [(5_000, "down", 0.0, 4), (1_005_000, "up", 0.0, 4)]
    assert actions({"kind": "switch_down", "switch": "t1/p0/1", "at_s": 5e-6, "duration_s": 1e-3}) == actions(
        fault
    )
    (down, _) = link_actions(parse_faults([fault]), FABRIC)
    assert not down.is_signalled
    assert "switch" in down.text
    assert set(down.links) == set(FABRIC.resolve("switch:t1/p0/1"))
    (seen, _) = link_actions(parse_faults([{**fault, "silent": False}]), FABRIC)
    assert seen.is_signalled


@pytest.mark.parametrize(
    ("fault", "links"),
    [
        ({"kind": "nic_down", "nic": 3}, 4),
        ({"kind": "port_down", "port": "3/1"}, 2),
        ({"kind": "plane_down", "plane": 1}, FABRIC.num_links // 2),
        ({"kind": "link_down", "link": "t0/*/*-t1/*/*", "choose": 3}, 6),
        ({"kind": "link_down", "link": "t0/*/*-t1/*/*", "choose_percent": 25}, 4),
        ({"kind": "plane_down", "plane": 1, "choose": 2}, 4),
    ],
)
def test_a_target_means_its_links(fault, links):
    found = actions({**fault, "at_us": 0})
    assert {action[:3] for action in found} == {(0, "down", 0.0)}
    assert sum(action[3] for action in found) == links


def test_a_draw_comes_from_the_seed():
    fault = {"kind": "link_down", "link": "t0/*/*-t1/*/*", "choose": 3, "at_us": 0}

    def chosen(seed: int) -> list[int]:
        found = link_actions(parse_faults([fault]), FABRIC, seed=seed)
        return sorted(int(link) for action in found for link in action.links)

    assert chosen(1) == chosen(1)
    assert len({tuple(chosen(seed)) for seed in range(20)}) > 5
    assert all(link ^ 1 in chosen(1) for link in chosen(1))  # both directions of a cable


def test_drawn_cables_may_be_parallel_ones():
    fabric = build_topology("leaf-spine", leaves=2, spines=1, nics_per_leaf=2, links_per_spine=3)
    script = parse_faults([{"kind": "link_down", "link": "t0/*/*-t1/*/*", "choose": 5, "at_us": 0}])
    links = {int(link) for action in link_actions(script, fabric) for link in action.links}
    assert len(links) == 10


def test_what_was_drawn_is_restored_by_name():
    cut = {"kind": "link_down", "link": "t0/*/*-t1/*/*", "choose": 3, "at_us": 0, "name": "cut"}
    found = actions(cut, {"kind": "restore", "fault": "cut", "at_us": 9})
    assert sum(links for time, kind, _, links in found if (time, kind) == (9_000, "up")) == 6


def test_a_flap_ends_with_the_run():
    flap = {"kind": "flap", "nic": 0, "at_us": 10, "period_ms": 1, "down_us": 20}
    assert actions(flap, until_ns=2_020_000) == [
        (10_000, "down", 0.0, 4),
        (30_000, "up", 0.0, 4),
        (1_010_000, "down", 0.0, 4),
        (1_030_000, "up", 0.0, 4),
        (2_010_000, "down", 0.0, 4),
    ]
    with pytest.raises(
        ConfigError, match="a flap needs duration_s, duration_ms or duration_us, or the run an end"
    ):
        actions(flap)


def test_a_simulated_flap_may_be_as_fast_as_a_microsecond():
    flap = {"kind": "flap", "nic": 0, "at_us": 0, "period_us": 1, "down_us": 0.25, "duration_us": 2}
    assert [(time, kind) for time, kind, _, _ in actions(flap)] == [
        (0, "down"),
        (250, "up"),
        (1_000, "down"),
        (1_250, "up"),
    ]
    with pytest.raises(ConfigError, match=r"faults\[0\].period_us = 0.5: must be greater than or equal"):
        actions({**flap, "period_us": 0.5})


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "dwon", "at_s": 0}, 'x: faults[0].kind = "dwon": not known; valid: plane_down, '),
        ({"kind": "nic_down", "nic": 0}, "x: faults[0] (nic_down) needs at_s, at_ms or at_us"),
        ({"kind": "nic_down", "nic": 0, "at_s": 0, "at_us": 1}, "x: faults[0]: give at_s or at_us, not both"),
        (
            {"kind": "nic_down", "nic": 0, "at_us": "1"},
            'x: faults[0].at_us = "1": must be a number, at least 0',
        ),
        (
            {"kind": "nic_down", "nic": 0, "at_step": 3},
            "at_step: counts steps of a training run; give at_s, at_ms or at_us here",
        ),
        ({"kind": "nic_down", "nic": 0, "at_sec": 0}, 'no key "at_sec" here; did you mean at_s'),
        (
            {"kind": "nic_down", "nic": 0, "at_s": 0, "choose": 0},
            "choose = 0: must be a whole number, at least 1",
        ),
        (
            {"kind": "nic_down", "nic": 0, "at_s": 0, "choose_percent": 101},
            "must be a number above 0 and at most 100",
        ),
        (
            {"kind": "nic_down", "nic": 0, "at_s": 0, "choose_percent": 1, "choose": 1},
            "give choose or choose_percent",
        ),
        ({"kind": "restore", "nic": 0, "at_s": 0, "choose": 1}, 'no key "choose" here'),
    ],
)
def test_a_wrong_fault_is_told_in_one_line(fault, message):
    with pytest.raises(ConfigError) as caught:
        parse_faults([fault], source="x")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_the_fabric_does_not_have_is_told():
    with pytest.raises(ConfigError, match=r'faults: faults\[0\].nic = 9: no such NIC "9"; valid: 0 to 3'):
        actions({"kind": "nic_down", "nic": 9, "at_us": 0})
    with pytest.raises(ConfigError, match=r"faults\[0\].choose = 99: the target has 2 cables"):
        actions({"kind": "nic_down", "nic": 0, "choose": 99, "at_us": 0})


def test_ends_are_told_of_a_return_if_they_were_told_of_the_end():
    script = parse_faults(
        [
            {"kind": "port_down", "port": "0/0", "at_us": 0, "duration_us": 9, "silent": False},
            {"kind": "port_down", "port": "1/0", "at_us": 0, "duration_us": 9},
        ]
    )
    found = [(action.kind, action.is_signalled) for action in link_actions(script, FABRIC)]
    assert sorted(found) == [("down", False), ("down", True), ("up", False), ("up", True)]


def test_actions_are_in_the_order_of_time_and_change_something():
    random = np.random.default_rng(3)
    tables = [
        {
            "kind": "nic_down",
            "nic": int(random.integers(4)),
            "at_us": int(random.integers(50)),
            "duration_us": 9,
        }
        for _ in range(40)
    ]
    is_down = np.zeros(FABRIC.num_links, bool)
    last = 0
    for action in link_actions(parse_faults(tables), FABRIC):
        assert action.time_ns >= last
        last = action.time_ns
        assert (is_down[action.links] == (action.kind == "up")).all()
        is_down[action.links] = action.kind == "down"
    assert not is_down.any()


@pytest.mark.parametrize("fault", [{"rate_percent": 200}, {"rate_mbps": 400_000}])
def test_no_link_gets_faster_than_it_was_built(fault):
    network = build_topology("leaf-spine", leaves=2, spines=2, nics_per_leaf=2, port_gbps=100.0)
    with pytest.raises(
        ConfigError, match=r"% of its rate; valid: up to 100 %|rate_percent = 200: must be at most 100"
    ):
        link_actions(parse_faults([{"kind": "rate", "plane": 0, "at_us": 1, **fault}]), network)
