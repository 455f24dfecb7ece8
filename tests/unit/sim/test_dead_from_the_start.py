"""A plane that is dead before the first packet costs its share of the bandwidth and no more."""

import pytest

from farstep import sim

PLANES = 8


def slowdown(size_bytes: int, fault: dict[str, object]) -> float:
    """Median flow time without the fault over that with it: the share of goodput that is left."""
    fabric = sim.fabric("clos", nics=16, planes=PLANES, radix=8)
    healthy, hurt = (
        sim.simulate(fabric, sim.permutation(size_bytes=size_bytes), faults=faults).metrics()[
            "flow_time_p50_ns"
        ]
        for faults in ([], [fault])
    )
    return healthy / hurt


@pytest.mark.parametrize(
    "fault",
    [{"kind": "plane_down", "plane": 0}, {"kind": "port_down", "port": "*/0"}],
    ids=["plane", "ports"],
)
def test_a_connection_that_begins_leaves_out_ports_known_to_be_down(fault: dict[str, object]) -> None:
    left = slowdown(8_000_000, {**fault, "at_us": 0, "silent": False})
    assert left == pytest.approx((PLANES - 1) / PLANES, abs=0.03)


def test_a_plane_that_never_answers_is_left_after_the_first_timeout() -> None:
    left = slowdown(60_000_000, {"kind": "plane_down", "plane": 0, "at_us": 0})
    assert left > 0.75  # it was 0.48, for 250 ms, when nothing told a dead plane from a long one
