"""The scenarios of examples/scenarios run, and show what they say they show."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from farstep import sim

FOLDER = Path(__file__).parents[2] / "examples" / "scenarios"
NAMES = sorted(path.name for path in FOLDER.glob("*.toml"))


def run(name: str, **overrides) -> sim.SimResult:
    return sim.simulate(sim.load_scenario(FOLDER / name, overrides))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", ["packet", "flow"])
def test_every_scenario_comes_to_its_end_in_seconds(name, level):
    began_s = time.process_time()  # whatever else the machine does meanwhile
    result = run(name, **{"run.level": level})
    assert result.is_complete
    assert time.process_time() - began_s < 30
    assert result.meta["ignored"] == [] or level == "flow" or name == "t1-reboot.toml"


def test_the_list_names_every_scenario():
    listed = re.findall(r"^\| `([a-z0-9-]+\.toml)`", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES


def test_sprayed_flows_do_not_collide():
    result = run("flow-collisions-2.toml")
    assert result.flow_rates_gbps().min() > 0.9 * 400


def test_ten_flows_share_a_path():
    result = run("flow-collisions-10.toml")
    bound_ns = 10 * 1_000_000 * 8 / (400 * result.meta["payload_share"])
    assert bound_ns < result.flow_time.p100_ns < 1.3 * bound_ns


def test_an_incast_leaves_its_victim_alone():
    result = run("incast-victim.toml")
    assert result.jain(phase="incast") > 0.97
    assert result.victim_ratio > 0.85


def test_a_flapping_link_costs_packets_and_no_time():
    table = sim.load_scenario(FOLDER / "link-flap.toml").table()
    healthy = sim.simulate(sim.parse_scenario({**table, "faults": []}))
    result = run("link-flap.toml")
    assert 0 < int(result.dropped.sum()) < 1_000
    assert result.step_time.p50_ns < 1.05 * healthy.step_time.p50_ns


def test_a_rebooting_switch_is_left_out_at_once():
    result = run("t1-reboot.toml")
    lost_steps = (result.step_times_ns() > 2 * result.step_time.p50_ns).sum()
    assert lost_steps <= 2
    assert int(result.dropped.sum()) > 0


def test_a_transceiver_takes_a_plane_from_four_nics():
    result = run("transceiver-glitch.toml")
    down = [fault for fault in result.meta["faults"] if fault["kind"] == "down"]
    assert [fault["links"] for fault in down] == [8, 8, 8]  # both directions of four cables
    assert not result.meta["failures"]


def test_dead_links_are_found_in_the_first_steps():
    result = run("startup-dead-links.toml")
    losses = np.bincount(result.tasks.tag, weights=result.dropped, minlength=10)
    assert losses[0] > 0
    assert losses[5:].sum() < 0.1 * losses.sum()


def test_two_sites_take_the_way_and_what_the_ports_take():
    result = run("two-sites.toml")
    gbps = 200 * result.meta["payload_share"]
    ring_ns = 15 / 16 * 16_000_000 * 8 / gbps  # a reduce-scatter, or an all-gather, of 16 ranks
    way_ns = 100 * 4_897.4  # light in fibre
    bound_ns = 2 * (ring_ns + way_ns)
    assert bound_ns < result.step_time.p100_ns < 1.1 * bound_ns


def test_a_training_step_hides_most_of_its_communication():
    result = run("training-step.toml")
    stages, batches, layers = 4, 8, 8
    compute_ns = (batches + stages - 1) * layers * 20_000 * 3  # forward and backward of a full pipeline
    steps = result.step_times_ns()
    assert len(steps) == 4
    assert (steps < 1.25 * compute_ns).all()
    assert steps.max() < 1.05 * np.median(steps)  # a plane less is nothing to wait for


def test_two_jobs_get_along():
    result = run("two-jobs.toml")
    first, second = (np.median(result.step_times_ns(job=name)) for name in ("first", "second"))
    assert 0.8 < first / second < 1.25
