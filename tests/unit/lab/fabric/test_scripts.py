"""Fault scripts for labs are read as the simulator reads them."""

import re
from pathlib import Path

import pytest

from farstep.cli.lab_commands import load_faults
from farstep.fabric import ConfigError, Topology, leaf_spine


@pytest.fixture
def topology() -> Topology:
    return leaf_spine(leaves=2, spines=2, nics_per_leaf=2, planes=2)


def load(
    tmp_path: Path, topology: Topology, text: str, until_ns: int | None = None
) -> list[tuple[int, str, int]]:
    path = tmp_path / "script.toml"
    path.write_text(text)
    return [
        (change.time_ns, change.kind, len(change.links)) for change in load_faults(path, topology, until_ns)
    ]


def test_times_in_any_unit_and_drawn_cables(tmp_path: Path, topology: Topology) -> None:
    text = """
[[faults]]
kind = "link_down"
link = "t0/*/*-t1/*/*"
choose = 2
at_ms = 2
duration_us = 500

[[faults]]
kind = "loss"
nic = 1
loss_percent = 5
at_s = 0.001
"""
    assert load(tmp_path, topology, text) == [
        (1_000_000, "loss", 4),
        *[(2_000_000, "down", 2)] * 2,
        *[(2_500_000, "up", 2)] * 2,
    ]


def test_the_end_of_a_run_ends_an_endless_flap(tmp_path: Path, topology: Topology) -> None:
    flap = '[[faults]]\nkind = "flap"\nnic = 1\nperiod_s = 0.01\nat_s = 0.0\n'
    with pytest.raises(ConfigError, match="a flap needs duration_s"):
        load(tmp_path, topology, flap)
    assert len(load(tmp_path, topology, flap, until_ns=29_000_000)) == 6
    assert len(load(tmp_path, topology, f"{flap}[run]\nuntil_us = 9000.0\n")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "script.toml: faults: one or more are required, each written as [[faults]]"),
        ("faults = 3\n", "script.toml: faults: one or more are required"),
        ("[[fault]]\n", 'script.toml: no key "fault" here; did you mean faults?'),
        (
            '[[faults]]\nkind = "jitter"\njitter_ms = 2\nat_s = 1\nnic = 1\n',
            'script.toml: faults[0].kind = "jitter"',
        ),
        ('[[faults]]\nkind = "nic_down"\nnic = 9\nat_s = 1\n', "script.toml: faults[0].nic = 9: no such NIC"),
        (
            '[[faults]]\nkind = "nic_down"\nnic = 1\nat_step = 1\n',
            "script.toml: faults[0].at_step: counts steps",
        ),
        ('[[faults]]\nkind = "nic_down"\nnic = 1\nat_s = 1\n[run]\nseed = "x"\n', "script.toml: run.seed"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, topology: Topology, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(tmp_path, topology, text)
