"""Network descriptions: what they mean, and what is said when they are wrong."""

import pytest

from farstep.fabric import ConfigError, EmulatedNetwork, full_mesh


def parse(**table):
    return EmulatedNetwork.parse({"sites": ["a", "b"], **table}, source="net.toml")


def test_a_path_has_one_channel_in_each_direction():
    network = parse(paths=[{"name": "north", "plane": 3, "rate_mbps": 200, "delay_ms": 25}])
    assert [str(channel) for channel in network.channels] == ["north a->b", "north b->a"]
    assert {channel.plane for channel in network.channels} == {3}
    for state in network.states.values():
        assert (state.rate_mbps, state.delay_ms, state.is_down) == (200, 25, False)


def test_amounts_of_queue_may_be_given_as_bytes_or_as_time_at_the_rate():
    in_kb = parse(paths=[{"name": "p", "rate_mbps": 100, "queue_limit_kb": 250, "ecn_threshold_kb": 25}])
    in_ms = parse(paths=[{"name": "p", "rate_mbps": 100, "queue_limit_ms": 20, "ecn_threshold_ms": 2}])
    assert list(in_kb.states.values()) == list(in_ms.states.values())
    state = next(iter(in_ms.states.values()))
    assert (state.queue_limit_bytes, state.ecn_threshold_bytes) == (250_000, 25_000)


def test_a_queue_without_a_limit_holds_50_ms_but_never_less_than_a_few_bursts():
    fast = next(iter(parse(paths=[{"name": "p", "rate_mbps": 200}]).states.values()))
    slow = next(iter(parse(paths=[{"name": "p", "rate_mbps": 1}]).states.values()))
    unlimited = next(iter(parse(paths=[{"name": "p"}]).states.values()))
    assert fast.queue_bytes_max == 1_250_000
    assert slow.queue_bytes_max == 256_000
    assert unlimited.queue_bytes_max is None


def test_full_mesh_joins_every_pair_in_every_plane():
    network = full_mesh(("a", "b", "c"), planes=2, paths_per_plane=3, rate_mbps=10.0)
    assert len(network.paths) == 3 * 2 * 3
    assert network.planes == (0, 1)
    assert len(network.channels) == 2 * len(network.paths)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"paths": [{"name": "p", "rate_mbps": -1}]}, "net.toml: paths[0].rate_mbps = -1: "),
        ({"paths": [{"name": "p", "rate_mbs": 1}]}, "did you mean rate_mbps?"),
        ({"paths": [{"name": "p", "loss_percent": 120}]}, "paths[0].loss_percent = 120"),
        ({"paths": [{"plane": 0}]}, "net.toml: paths[0].name: this key is required"),
        ({"paths": [{"name": "p"}, {"name": "p"}]}, '"p" is used twice'),
        ({"paths": [{"name": "p", "between": ["a", "x"]}]}, 'unknown site "x"; known sites: a, b'),
        ({"paths": [{"name": "p", "between": ["a", "a"]}]}, 'joins "a" to itself'),
        ({"paths": [{"name": "p", "queue_limit_ms": 5}]}, "queue_limit_ms needs rate_mbps"),
        ({"paths": [{"name": "p", "queue_limit_ms": 5, "queue_limit_kb": 5, "rate_mbps": 1}]}, "not both"),
        ({"paths": [{"name": "a->b"}]}, 'paths[0].name = "a->b"'),
        ({"paths": [{"name": "p"}], "sites": ["a", "b", "c"]}, "needs between = [site, site]"),
        ({"paths": [{"name": "p"}], "sites": ["a", "a"]}, 'site "a" is listed twice'),
        ({"paths": [{"name": "p"}], "port_to_path": "random"}, "port_to_path"),
        ({"paths": []}, "net.toml: paths"),
    ],
)
def test_a_mistake_is_told_with_file_key_value_and_what_is_valid(table, told):
    with pytest.raises(ConfigError) as caught:
        parse(**table)
    assert told in str(caught.value)
    assert all(line.startswith("net.toml: ") for line in str(caught.value).splitlines())


def test_mistakes_of_several_paths_are_told_together_one_per_line():
    with pytest.raises(ConfigError) as caught:
        parse(paths=[{"name": "p", "rate_mbps": -1}, {"name": "q", "delay_ms": "soon"}])
    assert len(str(caught.value).splitlines()) == 2


def test_a_description_is_read_from_a_file(tmp_path):
    file = tmp_path / "net.toml"
    file.write_text('sites = ["a", "b"]\n[[paths]]\nname = "p"\n')
    assert EmulatedNetwork.load(file).paths[0].name == "p"
    file.write_text("sites = [")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        EmulatedNetwork.load(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        EmulatedNetwork.load(tmp_path / "missing.toml")
