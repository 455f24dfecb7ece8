"""The packet level at the edges of what a scenario may say: it answers, or refuses in a line, and ends no process."""

import time

import pytest

from farstep import sim
from farstep.fabric.errors import ConfigError


def clos(**changes):
    return sim.fabric("clos", **{"nics": 16, "planes": 2, "radix": 8, **changes})


def finish(fabric, **transport):
    knobs = sim.Transport(name="mrc", **transport)
    return sim.simulate(fabric, sim.permutation(size_bytes=20_000), transport=knobs)


@pytest.mark.parametrize("planes", [1, 11, 16, 32])
def test_default_entropy_values_fit_any_number_of_planes(planes):
    assert finish(clos(planes=planes)).is_complete


def test_entropy_values_asked_for_are_kept_and_backups_give_way():
    assert finish(clos(), evs=512).is_complete
    assert finish(clos(planes=16), evs=64).is_complete


@pytest.mark.parametrize("asked", [{"evs": 513}, {"backup_evs": 512}, {"evs": 300, "backup_evs": 300}])
def test_more_entropy_values_than_a_connection_has_room_for_are_refused(asked):
    with pytest.raises(ConfigError, match=r"evs \+ backup_evs = .* in each plane; valid: up to 512 together"):
        finish(clos(), **asked)


@pytest.mark.parametrize("name", ["mrc", "roce", "uet-reps", "uet-rccc", "ndp", "tcp", "adaptive-routing"])
def test_links_may_take_no_time(name):
    fabric = clos(link_latency_ns=0, switch_latency_ns=0)
    assert sim.simulate(fabric, sim.permutation(size_bytes=100_000), transport=name).is_complete


def test_a_setting_beyond_its_type_is_named():
    with pytest.raises(ConfigError, match=f"sack_threshold_bytes = {2**40}: is of another type"):
        finish(clos(), sack_bytes=2**40)


def test_ports_may_be_as_slow_as_they_like():
    assert clos(port_gbps=1e-9).node_cage_ports.max() == 2**15 - 1


def test_a_busy_network_looks_at_the_clock_as_well():
    fabric = clos(nics=512, planes=4, radix=64)
    began_s = time.monotonic()
    with pytest.raises(sim.SimulationStalled, match="ended after 0"):
        sim.simulate(fabric, sim.permutation(size_bytes=500_000_000), max_wall_s=0.5)
    assert time.monotonic() - began_s < 5
