"""What a rank sends over each path, from the counters of its connections."""

from dataclasses import dataclass, field

import pytest

from farstep.engine import EngineError, EvState, PathEvent
from farstep.fabric.sites import EmulatedPath
from farstep.observe.events import PathSample, PathStateChange
from farstep.train.config import NetworkConfig, RunConfig, SiteConfig
from farstep.train.path_meter import PathMeter, path_name

CONFIG = RunConfig()


@dataclass
class Plane:
    plane: int
    tx_bytes: int = 0
    lost: int = 0
    rtt_ns: int = 4_000_000
    state: EvState = EvState.GOOD


@dataclass
class FakeConnection:
    peer_site: str
    planes: list[Plane] = field(default_factory=lambda: [Plane(0), Plane(1)])
    is_closed: bool = False

    def stats(self) -> "FakeConnection":
        if self.is_closed:
            raise EngineError("it is closed")
        return self


def test_a_path_has_the_name_the_emulator_gives_it_seen_from_either_side():
    assert path_name(CONFIG, "east", "west", 1) == path_name(CONFIG, "west", "east", 1) == "east-west:1"
    network = CONFIG.emulated_network()
    assert network is not None
    assert "east-west:1" in [path.name for path in network.paths]


def test_traffic_inside_a_site_is_no_path_unless_there_is_no_other():
    assert path_name(CONFIG, "east", "east", 1) is None
    assert path_name(RunConfig(sites=(SiteConfig(name="home"),)), "home", "home", 1) == "home:1"


def test_paths_with_names_of_their_own_keep_them_unless_they_share_a_plane():
    paths = (EmulatedPath(name="north", plane=0), EmulatedPath(name="south", plane=1))
    config = RunConfig(paths=paths)
    assert path_name(config, "west", "east", 1) == "south"
    shared = RunConfig(paths=(*paths, EmulatedPath(name="middle", plane=1)))
    assert path_name(shared, "west", "east", 0) == "north"
    assert path_name(shared, "west", "east", 1) == "east-west:1"
    ignored = RunConfig(paths=paths, network=NetworkConfig(emulate=False))
    assert path_name(ignored, "west", "east", 1) == "east-west:1"


def test_samples_are_rates_since_the_sample_before_over_all_peers_of_other_sites():
    meter = PathMeter(CONFIG, "east")
    near, far, further = FakeConnection("east"), FakeConnection("west"), FakeConnection("west")
    meter.sample([near, far, further])
    near.planes[1].tx_bytes = 10**9
    far.planes[1].tx_bytes, far.planes[1].lost = 3000, 2
    further.planes[1].tx_bytes, further.planes[1].lost = 1000, 1
    before_ns = meter._before_ns
    samples = {sample["path"]: sample for sample in meter.sample([near, far, further])}
    elapsed_s = (meter._before_ns - before_ns) / 1e9
    assert set(samples) == {"east-west:0", "east-west:1"}
    assert samples["east-west:1"]["tx_bytes_per_s"] == pytest.approx(4000 / elapsed_s)
    assert samples["east-west:1"]["lost"] == samples["east-west:1"]["retransmitted"] == 3
    assert samples["east-west:0"]["tx_bytes_per_s"] == 0
    for sample in samples.values():
        PathSample.model_validate(sample)


def test_a_path_is_bad_when_no_connection_finds_it_good():
    meter = PathMeter(CONFIG, "east")
    far, further = FakeConnection("west"), FakeConnection("west")
    far.planes[0].state = EvState.ASSUMED_BAD
    states = {sample["path"]: sample["state"] for sample in meter.sample([far, further])}
    assert states == {"east-west:0": "GOOD", "east-west:1": "GOOD"}
    further.planes[0].state = EvState.ASSUMED_BAD
    states = {sample["path"]: sample["state"] for sample in meter.sample([far, further])}
    assert states == {"east-west:0": "ASSUMED_BAD", "east-west:1": "GOOD"}


def test_a_connection_that_was_closed_or_not_opened_is_left_out():
    meter = PathMeter(CONFIG, "east")
    assert meter.sample([FakeConnection("west", is_closed=True), FakeConnection("")]) == []


def test_changes_of_entropy_values_carry_the_state_before():
    meter = PathMeter(CONFIG, "west")
    events = [
        PathEvent("rank0", 10, 5, 1, EvState.ASSUMED_BAD, 0, "east"),
        PathEvent("rank2", 11, 5, 1, EvState.ASSUMED_BAD, 0, "west"),  # of the same site
        PathEvent("rank0", 12, 6, 1, EvState.GOOD, 0, "east"),  # no change
        PathEvent("rank0", 20, 5, 1, EvState.GOOD, 0, "east"),
    ]
    changes = meter.changes(events)
    assert [(at_ns, change["old"], change["new"]) for at_ns, change in changes] == [
        (10, "GOOD", "ASSUMED_BAD"),
        (20, "ASSUMED_BAD", "GOOD"),
    ]
    for _, change in changes:
        assert PathStateChange.model_validate(change).path == "east-west:1"
