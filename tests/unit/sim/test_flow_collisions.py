import numpy as np
import pytest

from farstep.fabric.topology import fat_tree
from farstep.sim.flow import FlowSimulator, settings_for
from farstep.sim.flow.collisions import Hops, Noise, queueing_ns, reflected_queue, turned_away
from farstep.sim.workloads.patterns import permutation


def walked_queue(time, load, sources, runs=4000, seed=0):
    """Queue of a slotted server after some slots: packets of `sources` arrive with equal chances, one is served."""
    rng = np.random.default_rng(seed)
    queue = np.zeros(runs)
    for _ in range(time):
        queue = np.maximum(queue + rng.binomial(sources, load / sources, runs) - 1, 0)
    return queue


@pytest.mark.parametrize("load", [1.0, 0.95, 0.8])
def test_the_queue_is_that_of_a_slotted_server(load):
    time, sources = 500, 8
    queue = walked_queue(time, load, sources)
    variance = load**2 * (1 - 1 / sources)
    mean, spread = reflected_queue(*(np.array([value]) for value in (time, variance, 1 - load)))
    assert mean[0] == pytest.approx(queue.mean(), rel=0.12, abs=0.1)
    # With little load single packets matter, which a Brownian motion has not.
    assert spread[0] == pytest.approx(queue.std(), rel=0.2 if load > 0.9 else 0.35)


def test_a_full_link_has_a_queue_that_grows_with_the_root_of_time():
    mean, _ = reflected_queue(np.array([100.0, 400.0]), np.ones(2), np.zeros(2))
    assert mean == pytest.approx([10 * np.sqrt(2 / np.pi), 20 * np.sqrt(2 / np.pi)])


def test_a_link_with_room_settles():
    mean, spread = reflected_queue(np.array([1e6]), np.array([0.5]), np.array([0.25]))
    assert mean == pytest.approx([1.0])
    assert spread == pytest.approx([1.0])


@pytest.mark.parametrize("load", [1.0, 0.97])
def test_a_bounded_queue_turns_away_what_a_slotted_server_does(load):
    time, sources, room = 6000, 8, 40
    rng = np.random.default_rng(1)
    queue, refused = np.zeros(400), np.zeros(400)
    for _ in range(time):
        queue = np.maximum(queue + rng.binomial(sources, load / sources, 400) - 1, 0)
        refused += np.maximum(queue - room, 0)
        queue = np.minimum(queue, room)
    found = turned_away(*(np.array([value]) for value in (time, load**2 * (1 - 1 / sources), 1 - load)), room)
    assert found[0] == pytest.approx(refused.mean(), rel=0.25)


def test_a_short_flow_finds_no_queue_full():
    assert turned_away(np.array([490.0]), np.array([0.75]), np.zeros(1), 43.0) == 0.0


def hops_of(**changes):
    columns = {
        "flow": np.array([0, 0]),
        "share": np.ones(2),
        "load": np.ones(2),
        "users": np.full(2, 4.0),
        "width": np.array([4, 4]),
        "packet_ns": np.full(2, 332.0),
        "deviation": None,
    }
    return Hops(**{**columns, **changes})


def lost(hops, deviation=None):
    return queueing_ns(hops, np.array([162_000.0]), queue_packets=43.0, deviation=deviation)[0]


def test_a_flow_does_not_collide_with_itself():
    assert lost(hops_of(users=np.ones(2))) == 0.0


def test_without_hops_that_spread_there_is_nothing_to_lose():
    empty = {name: np.zeros(0) for name in ("share", "load", "users", "packet_ns")}
    nothing = Hops(flow=np.zeros(0, np.int64), width=np.zeros(0, np.int64), deviation=None, **empty)
    assert lost(nothing) == 0.0


def test_more_load_more_hops_and_more_paths_cost_more():
    usual = lost(hops_of())
    assert lost(hops_of(load=np.full(2, 0.8))) < 0.5 * usual
    assert lost(hops_of(load=np.array([1.0, 0.8]))) < usual
    assert lost(hops_of(width=np.array([16, 16]))) > usual


def test_planes_share_the_packets():
    """Half of the packets on either of two planes: each hop counts half, but more paths are to be waited for."""
    one = lost(
        hops_of(
            flow=np.array([0]),
            **{k: getattr(hops_of(), k)[:1] for k in ("share", "load", "users", "width", "packet_ns")},
        )
    )
    two = lost(hops_of(share=np.full(2, 0.5)))
    assert one < two < 1.5 * one


def test_deviations_average_out():
    means, names = [], np.arange(2000)
    noise = Noise(7)
    for place, flow in zip(noise.at(names, 1), noise.at(names, 2), strict=True):
        means.append(lost(hops_of(deviation=np.full(2, place)), np.array([flow])))
    assert np.mean(means) == pytest.approx(lost(hops_of()), rel=0.03)
    assert np.std(means) > 0.1 * np.mean(means)


def test_deviates_are_normal_and_repeatable():
    drawn = Noise(3).at(np.arange(20_000), 1)
    assert drawn.mean() == pytest.approx(0.0, abs=0.03)
    assert drawn.std() == pytest.approx(1.0, abs=0.03)
    assert (drawn == Noise(3).at(np.arange(20_000), 1)).all()
    assert (drawn != Noise(4).at(np.arange(20_000), 1)).all()
    assert abs(np.corrcoef(drawn, Noise(3).at(np.arange(20_000), 2))[0, 1]) < 0.03


HTSIM_PACKETS = {"payload_bytes": 4086, "overhead_bytes": 64, "ack_bytes": 64, "completion": "sender"}


@pytest.mark.parametrize(
    ("nics", "radix", "transport", "median_us", "p99_us"),
    [
        (128, 8, "uet-oblivious", 200.2, 217.7),
        (128, 8, "uet-reps", 196.5, 216.6),
        (128, 8, "uet-bitmap", 191.3, 203.1),
        (1024, 16, "uet-oblivious", 205.5, 224.6),
        (1024, 16, "uet-reps", 201.0, 213.3),
        (8192, 32, "uet-reps", 205.9, 214.9),
    ],
)
def test_permutations_of_2_megabytes_take_as_long_as_in_packets(nics, radix, transport, median_us, p99_us):
    """Measured with htsim's UEC model at the same sizes, one seed each; the factors are set on the first three."""
    simulator = FlowSimulator(fat_tree(nics, radix=radix), settings_for(transport, HTSIM_PACKETS))
    times = simulator.run(permutation(nics, 2_000_000, seed=1), seed=13).flow_times_ns() / 1e3
    assert np.median(times) == pytest.approx(median_us, rel=0.03)
    assert np.percentile(times, 99) == pytest.approx(p99_us, rel=0.07)
