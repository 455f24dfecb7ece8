"""Fault scripts: every kind can be said, and mistakes are told usefully."""

import pytest

from farstep.fabric import FAULT_KINDS, ConfigError, FaultScript, full_mesh, parse_fault

ONE_OF_EACH = {
    "path_down": {"path": "a-b:0"},
    "plane_down": {"plane": 1, "site": "a"},
    "site_down": {"site": "b"},
    "partition": {"sites": ["a", "b"]},
    "link_down": {"link": "t0/p0/0-t1/p0/*"},
    "switch_down": {"switch": "t1/p0/0", "silent": False},
    "nic_down": {"nic": 3},
    "port_down": {"port": "3/0"},
    "transceiver_down": {"transceiver": "t0/p0/0/0", "plane": 0},
    "flap": {"plane": 0, "period_s": 2.0},
    "loss": {"path": "a-b:*", "loss_percent": 1},
    "burst_loss": {"path": "a-b:0", "loss_percent": 1, "burst_packets": 20},
    "rate": {"plane": 0, "rate_percent": 50},
    "delay": {"sites": ["a", "b"], "extra_delay_ms": 7, "direction": "a->b"},
    "jitter": {"site": "a", "jitter_ms": 3, "direction": "*->a"},
    "reorder": {"path": "a-b:0", "reorder_percent": 2, "reorder_delay_ms": 4},
    "duplicate": {"path": "a-b:0", "duplicate_percent": 2},
    "corrupt": {"path": "a-b:0", "corrupt_percent": 2},
    "ecn": {"path": "a-b:0", "ecn_threshold_kb": 20},
    "queue": {"path": "a-b:0", "queue_limit_ms": 5},
    "restore": {"path": "a-b:0"},
}


def script(*entries, source="faults.toml"):
    return FaultScript.parse({"faults": list(entries)}, source=source)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_can_be_written_checked_and_written_again(kind):
    entry = {"kind": kind, "at_step": 4, **ONE_OF_EACH[kind]}
    parsed = script(entry)
    if parsed.faults[0].target.element is None:
        parsed.check_targets(full_mesh(("a", "b"), planes=2, rate_mbps=100.0).channels)
    again = FaultScript.model_validate_json(parsed.model_dump_json(exclude_none=True))
    assert again == parsed


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"kind": "path_gone", "at_s": 1}, 'faults[0].kind = "path_gone": not known; valid: path_down, '),
        ({"at_s": 1}, "faults[0].kind: this key is required; valid: "),
        ({"kind": "loss", "path": "p", "loss_percent": 1}, "faults[0] (loss) needs at_s or at_step"),
        (
            {"kind": "loss", "path": "p", "loss_percent": 1, "at_s": 1, "at_step": 1},
            "at_s or at_step, not both",
        ),
        ({"kind": "loss", "path": "p", "at_s": 1}, "faults[0].loss_percent: this key is required"),
        ({"kind": "loss", "path": "p", "at_s": 1, "loss_percent": 101}, "faults[0].loss_percent = 101: "),
        ({"kind": "loss", "at_s": 1, "loss_percent": 1}, "loss needs a target: path, plane, site, sites"),
        ({"kind": "loss", "path": "p", "at_s": 1, "loss_precent": 1}, "did you mean loss_percent?"),
        ({"kind": "path_down", "plane": 1, "at_s": 1}, "path_down takes no plane; its target: path"),
        ({"kind": "plane_down", "site": "a", "at_s": 1}, "plane_down needs plane"),
        ({"kind": "path_down", "path": "p", "at_s": -1}, "faults[0].at_s = -1: "),
        ({"kind": "path_down", "path": "p", "at_s": float("nan")}, "faults[0].at_s = nan: "),
        ({"kind": "delay", "path": "p", "at_s": 1, "delay_ms": float("inf")}, "faults[0].delay_ms = inf: "),
        ({"kind": "path_down", "path": "p", "at_s": 1, "duration_s": 0}, "faults[0].duration_s = 0: "),
        (
            {"kind": "path_down", "path": "p", "at_s": 1, "duration_s": 1, "duration_steps": 1},
            "duration_s or duration_steps, not both",
        ),
        ({"kind": "partition", "sites": ["a", "a"], "at_s": 1}, "name two different sites"),
        ({"kind": "path_down", "path": "p", "at_s": 1, "direction": "a"}, 'write "SITE->SITE"'),
        ({"kind": "rate", "path": "p", "at_s": 1}, "rate needs rate_mbps or rate_percent"),
        ({"kind": "delay", "path": "p", "at_s": 1, "delay_ms": 1, "extra_delay_ms": 1}, "not both"),
        ({"kind": "queue", "path": "p", "at_s": 1}, "give queue_limit_kb or queue_limit_ms"),
        ({"kind": "flap", "path": "p", "at_s": 1}, "flap needs period_s or period_steps"),
        (
            {"kind": "flap", "path": "p", "at_s": 1, "period_s": 1, "down_s": 1},
            "down_s = 1.0 must be less than",
        ),
        ({"kind": "restore", "fault": "cut", "at_s": 1}, "no such fault; named faults: none"),
        ({"kind": "restore", "at_s": 1}, "restore needs a target"),
        ({"kind": "loss", "path": "p", "plane": 1, "loss_percent": 1, "at_s": 1}, "give path or plane"),
        (
            {"kind": "link_down", "switch": "t0/p0/0", "at_s": 1},
            "link_down takes no switch; its target: link",
        ),
        ({"kind": "nic_down", "at_s": 1}, "nic_down needs nic"),
        (
            {"kind": "flap", "nic": 1, "site": "a", "period_s": 1, "at_s": 1},
            "nic already says where: give nic",
        ),
        ({"kind": "flap", "nic": 1, "port": "1/0", "period_s": 1, "at_s": 1}, "give nic or port"),
        ({"kind": "nic_down", "nic": [1], "at_s": 1}, "faults[0].nic = [1]: must be text"),
    ],
)
def test_a_mistake_is_told_in_one_line_with_what_is_valid(entry, told):
    with pytest.raises(ConfigError) as caught:
        script(entry)
    assert told in str(caught.value)
    assert str(caught.value).startswith("faults.toml: ")
    assert "\n" not in str(caught.value)


def test_a_name_is_given_once():
    entry = {"kind": "path_down", "path": "p", "at_s": 1, "name": "cut"}
    with pytest.raises(ConfigError, match=r'faults\[1\].name = "cut" is used twice'):
        script(entry, entry)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"kind": "path_down", "path": "north"}, 'path = "north": no such path; known paths: a-b:0, a-b:1'),
        ({"kind": "plane_down", "plane": 7}, "plane = 7: no such plane; known planes: 0, 1"),
        ({"kind": "site_down", "site": "z"}, 'site = "z": no such site; known sites: a, b'),
        ({"kind": "partition", "sites": ["a", "z"]}, 'sites = "z": no such site'),
        ({"kind": "plane_down", "plane": 0, "direction": "z->a"}, 'direction = "z": no such site'),
        ({"kind": "path_down", "path": "a-b:0", "direction": "a->a"}, "no path matches all of this together"),
    ],
)
def test_an_unknown_target_is_told_with_the_known_ones(entry, told):
    channels = full_mesh(("a", "b"), planes=2).channels
    with pytest.raises(ConfigError) as caught:
        script({**entry, "at_s": 1}).check_targets(channels, source="faults.toml")
    assert str(caught.value).startswith("faults.toml: faults[0].")
    assert told in str(caught.value)


def test_targets_mean_the_channels_they_name():
    channels = full_mesh(("a", "b", "c"), planes=2).channels

    def meant(**target):
        fault = parse_fault({"kind": "loss", "loss_percent": 1, **target})
        return {str(channel) for channel in fault.target.resolve(channels)}

    assert meant(path="a-b:1") == {"a-b:1 a->b", "a-b:1 b->a"}
    assert meant(path="a-b:1", direction="b->*") == {"a-b:1 b->a"}
    assert meant(path="a-?:0") == {"a-b:0 a->b", "a-b:0 b->a", "a-c:0 a->c", "a-c:0 c->a"}
    assert meant(sites=("a", "c"), plane=1) == {"a-c:1 a->c", "a-c:1 c->a"}
    assert len(meant(site="a")) == 2 * 2 * 2
    assert meant(site="c", plane=0, direction="c->*") == {"a-c:0 c->a", "b-c:0 c->b"}
    assert len(meant(plane=0)) == 6


def test_a_script_is_read_from_a_file(tmp_path):
    file = tmp_path / "faults.toml"
    file.write_text('[[faults]]\nkind = "path_down"\npath = "p"\nat_step = 3\n')
    assert FaultScript.load(file).faults[0].at_step == 3
    file.write_text('[[faults]]\nkind = "path_down"\npath = "p"\n')
    with pytest.raises(ConfigError, match="needs at_s or at_step"):
        FaultScript.load(file)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        FaultScript.parse_toml("[[faults]")


def test_the_value_of_a_fault_is_its_size_in_the_unit_of_its_key():
    assert parse_fault({"kind": "delay", "path": "p", "extra_delay_ms": 7}).value == 7.0
    assert parse_fault({"kind": "path_down", "path": "p"}).value is None


def test_an_emulated_network_refuses_elements_it_does_not_have_and_says_what_it_has():
    listed = script(
        {"kind": "switch_down", "switch": "t1/p0/5", "at_s": 1}, {"kind": "nic_down", "nic": 3, "at_s": 1}
    )
    with pytest.raises(ConfigError) as caught:
        listed.check_targets(full_mesh(("a", "b")).channels, source="faults.toml")
    lines = str(caught.value).splitlines()
    assert lines[0] == (
        'faults.toml: faults[0].switch = "t1/p0/5": an emulated network has no such elements; valid here: path, plane,'
        " site, sites (a simulated network has link, switch, nic, port, transceiver)"
    )
    assert lines[1].startswith('faults.toml: faults[1].nic = "3": an emulated network has no such elements')
