"""Fault scripts over a topology: what is named, when it acts, and what holds when several act."""

import numpy as np
import pytest

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.build import build_topology
from farstep.sim.fault_script import parse_faults
from farstep.sim.faults import link_actions

FABRIC = build_topology("leaf-spine", leaves=2, spines=2, nics_per_leaf=2, planes=2)
SITES = build_topology(
    "multi-site",
    sites={
        "a": {"kind": "leaf-spine", "leaves": 2, "spines": 1, "nics_per_leaf": 1, "planes": 2},
        "b": {"kind": "leaf-spine", "leaves": 2, "spines": 1, "nics_per_leaf": 1, "planes": 2},
    },
    wan=[{"between": ("a", "b"), "fibre_km": 10, "links": 4}],
)


def actions(*tables, topology=FABRIC, **options):
    return [
        (action.time_ns, action.kind, action.value, len(action.links))
        for action in link_actions(parse_faults(tables), topology, **options)
    ]


def test_an_outage_comes_and_goes():
    fault = {"kind": "switch_down", "target": "switch:t1/p0/1", "at_us": 5, "duration_ms": 1}
    assert actions(fault) == [(5_000, "down", 0.0, 4), (1_005_000, "up", 0.0, 4)]
    (down, _) = link_actions(parse_faults([fault]), FABRIC)
    assert not down.is_signalled
    assert down.text == "switch down switch:t1/p0/1"
    assert set(down.links) == set(FABRIC.resolve("switch:t1/p0/1"))
    (seen, _) = link_actions(parse_faults([{**fault, "silent": False}]), FABRIC)
    assert seen.is_signalled


@pytest.mark.parametrize(
    ("fault", "links"),
    [
        ({"kind": "nic_down", "target": "nic:3"}, 4),
        ({"kind": "port_down", "target": "nic-port:3/1"}, 2),
        ({"kind": "transceiver_down", "target": "transceiver:nic/3/0"}, 4),
        ({"kind": "plane_down", "plane": 1}, FABRIC.num_links // 2),
        ({"kind": "down", "target": ["nic:0", "nic:1"]}, 8),
        ({"kind": "link_down", "target": "link:t0/p0/0-t1/p0/*"}, 4),
        ({"kind": "link_down", "target": "link:t0/*/*-t1/*/*", "choose": 3}, 6),
        ({"kind": "link_down", "target": "link:t0/*/*-t1/*/*", "choose_percent": 25}, 4),
    ],
)
def test_a_target_means_its_links(fault, links):
    assert actions({**fault, "at_s": 0}) == [(0, "down", 0.0, links)]


@pytest.mark.parametrize(
    ("fault", "links"),
    [
        ({"kind": "path_down", "path": "a-b:1"}, 4),
        ({"kind": "path_down", "path": "a-b"}, 8),
        ({"kind": "partition", "sites": ["b", "a"]}, 8),
        ({"kind": "partition", "sites": ["b", "a"], "plane": 0}, 4),
    ],
)
def test_scripts_of_sites_and_paths_mean_wan_links(fault, links):
    assert actions({**fault, "at_s": 0}, topology=SITES) == [(0, "down", 0.0, links)]


def test_a_choice_is_drawn_from_the_seed():
    fault = {"kind": "link_down", "target": "link:t0/*/*-t1/*/*", "choose": 3, "at_us": 0}

    def chosen(seed: int) -> list[int]:
        (action,) = link_actions(parse_faults([fault]), FABRIC, seed=seed)
        return action.links.tolist()

    assert chosen(1) == chosen(1)
    assert len({tuple(chosen(seed)) for seed in range(20)}) > 5
    assert all(link ^ 1 in chosen(1) for link in chosen(1))  # both directions of a cable


def test_a_flap_ends_with_the_run():
    flap = {"kind": "flap", "target": "nic:0", "at_us": 10, "period_us": 100, "down_us": 20}
    assert actions(flap, until_ns=250_000) == [
        (10_000, "down", 0.0, 4),
        (30_000, "up", 0.0, 4),
        (110_000, "down", 0.0, 4),
        (130_000, "up", 0.0, 4),
        (210_000, "down", 0.0, 4),
        (230_000, "up", 0.0, 4),
    ]
    assert len(actions({**flap, "duration_us": 150})) == 4
    with pytest.raises(ConfigError, match="a flap needs a duration, or the run an end"):
        actions(flap)
    with pytest.raises(ConfigError, match="is too long; at most 100000"):
        actions(flap, until_ns=10**13)


def test_the_most_severe_of_several_faults_is_in_force():
    assert actions(
        {"kind": "loss", "target": "nic:0", "loss_percent": 1, "at_us": 0, "duration_us": 100},
        {"kind": "loss", "target": "nic-port:0/0", "loss_percent": 5, "at_us": 10, "duration_us": 20},
        {"kind": "rate", "target": "nic:1", "rate_percent": 25, "at_us": 5},
        {"kind": "delay", "target": "nic:1", "extra_delay_us": 3, "at_us": 7},
    ) == [
        (0, "loss", 0.01, 4),
        (5_000, "rate", 0.25, 4),
        (7_000, "delay", 3_000.0, 4),
        (10_000, "loss", 0.05, 2),
        (30_000, "loss", 0.01, 2),
        (100_000, "loss", 0.0, 4),
    ]


def test_a_link_is_up_when_its_last_outage_is_over():
    assert actions(
        {"kind": "nic_down", "target": "nic:0", "at_us": 0, "duration_us": 50},
        {"kind": "port_down", "target": "nic-port:0/1", "at_us": 20, "duration_us": 60},
    ) == [(0, "down", 0.0, 4), (50_000, "up", 0.0, 2), (80_000, "up", 0.0, 2)]


def test_restore_ends_by_name_or_by_target():
    cut = {"kind": "nic_down", "target": "nic:0", "at_us": 0, "name": "cut"}
    slow = {"kind": "rate", "target": "nic:0", "rate_percent": 50, "at_us": 0}
    assert actions(cut, slow, {"kind": "restore", "fault": "cut", "at_us": 9})[2:] == [(9_000, "up", 0.0, 4)]
    assert actions(cut, {"kind": "restore", "target": "nic-port:0/0", "at_us": 9}) == [
        (0, "down", 0.0, 4),
        (9_000, "up", 0.0, 2),
    ]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"kind": "dwon"}, "x: faults[0].kind = \"dwon\": input should be 'down', 'link_down'"),
        ({"kind": "down", "target": "nic:0"}, "x: faults[0]: down needs at_s, at_ms or at_us"),
        ({"kind": "down", "at_s": 0}, 'down needs a target, such as target = "switch:t1/p0/5"'),
        ({"kind": "down", "target": "nick:0", "at_s": 0}, 'target = "nick:0": names nothing of a network; valid: nic:'),
        ({"kind": "nic_down", "target": "plane:0", "at_s": 0}, 'a target that begins with nic:, not "plane:0"'),
        ({"kind": "down", "target": "nic:0", "at_s": 0, "at_us": 1}, "give at_s, at_ms or at_us, and only one of them"),
        ({"kind": "down", "target": "nic:0", "plane": 1, "at_s": 0}, "give one target: target or plane"),
        ({"kind": "loss", "target": "nic:0", "at_s": 0}, "loss needs loss_percent"),
        ({"kind": "loss", "target": "nic:0", "at_s": 0, "loss_percent": 101}, "loss_percent = 101: input should"),
        ({"kind": "down", "target": "nic:0", "at_s": 0, "loss_percent": 1}, "down takes no loss_percent; that"),
        ({"kind": "down", "target": "nic:0", "at_step": 3}, "at_step counts steps of a training run; give at_us here"),
        ({"kind": "flap", "target": "nic:0", "at_s": 0, "period_us": 5, "down_us": 5}, "must be shorter than"),
        ({"kind": "restore", "fault": "cut", "at_s": 1}, 'faults[0].fault = "cut": no such fault; named: none'),
        ({"kind": "down", "target": "nic:0", "at_sec": 0}, 'no key "at_sec" here; did you mean at_us? '),
        ({"kind": "down", "target": "nic:0", "at_s": 1e9}, "at_s = 1000000000.0: must be at most a year"),
    ],
)  # fmt: skip
def test_a_wrong_fault_is_told_in_one_line(fault, message):
    with pytest.raises(ConfigError) as caught:
        parse_faults([fault], source="x")
    text = str(caught.value)
    assert message in text or message.replace("at_us? ", "at_s? ") in text, text
    assert "\n" not in text


def test_a_target_the_fabric_does_not_have_is_told():
    with pytest.raises(
        ConfigError, match=r'faults: faults\[0\]: target = "nic:9": no such NIC "9"; valid: 0 to 3'
    ):
        actions({"kind": "nic_down", "target": "nic:9", "at_us": 0})
    with pytest.raises(ConfigError, match='"c": no such site; known sites: a, b'):
        actions({"kind": "partition", "sites": ["a", "c"], "at_us": 0}, topology=SITES)
    with pytest.raises(ConfigError, match="choose = 99: the target has 2 cables"):
        actions({"kind": "nic_down", "target": "nic:0", "choose": 99, "at_us": 0})


def test_actions_are_in_the_order_of_time_and_change_something():
    random = np.random.default_rng(3)
    tables = [
        {
            "kind": "nic_down",
            "target": f"nic:{random.integers(4)}",
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
