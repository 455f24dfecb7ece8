"""What is wrong with a fault of a scenario is told in the keys, values and units it was written with."""

import re

import pytest

from farstep import sim
from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology import SIMULATED_KINDS

LINK = "t0/p0/0-t1/p0/0"
LISTED = ", ".join(SIMULATED_KINDS)


@pytest.fixture(scope="module")
def fabric():
    return sim.fabric("clos", nics=16, planes=2, radix=8)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            {"kind": "flap", "at_us": 1, "period_us": 0.1},
            ".period_us = 0.1: must be greater than or equal to 1",
        ),
        (
            {"kind": "flap", "at_us": 1, "period_ms": 1e-4},
            ".period_ms = 0.0001: must be greater than or equal to 0.001",
        ),
        (
            {"kind": "flap", "at_us": 1, "period_us": 10, "down_us": 20},
            ": down_us = 20 must be less than period_us = 10",
        ),
        ({"kind": "flap", "at_us": 1}, ": flap needs period_s, period_ms or period_us"),
        ({"kind": "link_down"}, " (link_down) needs at_s, at_ms or at_us"),
        ({"kind": "link_down", "at_us": 1e30}, ".at_us = 1e+30: must be less than or equal to 3.1536e+13"),
        ({"kind": "link_down", "at_us": float("nan")}, ".at_us = nan: must be a number, at least 0"),
        ({"kind": "link_down", "at_us": 1, "duration_us": 0}, ".duration_us = 0: must be greater than 0"),
        (
            {"kind": "link_down", "at_us": 1, "duration_steps": 1},
            ".duration_steps: counts steps of a training run; give duration_s, duration_ms or duration_us here",
        ),
        (
            {"kind": "link_down", "at_us": 1, "duratoin_us": 1},
            ': no key "duratoin_us" here; did you mean duration_us?',
        ),
        ({"at_us": 1}, f".kind: this key is required; valid: {LISTED}"),
        ({"kind": "link_dwn", "at_us": 1}, f'.kind = "link_dwn": not known; valid: {LISTED}'),
        ({"kind": "loss", "at_us": 1, "loss_percent": "lots"}, '.loss_percent = "lots": must be a number'),
        ({"kind": "rate", "at_us": 1, "rate_percent": 200}, ".rate_percent = 200: must be at most 100"),
    ],
)
def test_a_fault_is_told_as_it_was_written(fabric, fault, told):
    with pytest.raises(ConfigError) as caught:
        sim.simulate(fabric, sim.permutation(), faults=[{"link": LINK, **fault}])
    assert str(caught.value).startswith(f"faults: faults[0]{told}")


def test_a_nic_is_a_number_and_no_truth(fabric):
    with pytest.raises(ConfigError, match=r"nic = 99: no such NIC"):
        sim.simulate(fabric, sim.permutation(), faults=[{"kind": "nic_down", "nic": 99, "at_us": 1}])
    with pytest.raises(ConfigError, match=r"nic = True: must be text"):
        sim.simulate(fabric, sim.permutation(), faults=[{"kind": "nic_down", "nic": True, "at_us": 1}])


@pytest.mark.parametrize(
    "value", ["two\nlines", "x" * 500, "tab\tand\rreturn", "\x1b[31mred", "\u2028" * 3, ["a\nb"] * 90]
)
def test_a_value_is_quoted_on_one_short_line(value):
    text = quoted(value)
    assert len(text) <= 60
    assert text.isprintable()


def test_no_value_breaks_a_message_in_two(fabric):
    for key, value in {"kind": "a\nb", "link": "a\nb", "nam\ne": "x"}.items():
        with pytest.raises(ConfigError) as caught:
            sim.simulate(
                fabric,
                sim.permutation(),
                faults=[{"kind": "link_down", "link": LINK, "at_us": 1, key: value}],
            )
        assert "\n" not in str(caught.value)
    for broken in ({"transport": "a\nb"}, {"level": "a\nb"}, {"switch": {"a\nb": 1}}):
        with pytest.raises(ConfigError) as caught:
            sim.simulate(fabric, sim.permutation(), **broken)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        sim.fabric("clos\nnet")
    assert "\n" not in str(caught.value)


def test_names_in_tables_are_targets_of_faults(fabric):
    result = sim.simulate(fabric, sim.permutation(size_bytes=50_000))
    shown = re.search(r"worst link: (\S+)", result.summary())
    assert shown is not None
    cut = [{"kind": "link_down", "link": shown[1], "at_us": 1}]
    sim.simulate(fabric, sim.permutation(size_bytes=1_000), faults=cut)
    assert fabric.resolve(f"link:{shown[1]}").tolist() == [result.worst_link]


def test_cables_that_are_drawn_are_named(fabric):
    drawn = [{"kind": "link_down", "link": "t0/*-t1/*", "choose": 3, "at_us": 1, "duration_us": 2}]
    result = sim.simulate(fabric, sim.permutation(size_bytes=50_000), faults=drawn)
    told = {entry["text"] for entry in result.meta["faults"] if entry["kind"] == "down"}
    assert len(told) == 3
    for text in told:
        link = re.fullmatch(r"link_down link=(\S+): down", text)
        assert link is not None, text
        assert len(fabric.resolve(f"link:{link[1]}")) == 2
