"""Arguments that make no network are refused before anything is built, with the value and what is valid."""

import numpy as np
import pytest

from farstep.fabric import ConfigError, build_topology, fat_tree
from farstep.fabric.topology import TOPOLOGY_KINDS, Topology, TopologyDraft

SITES = {"a": {"kind": "fat-tree", "nics": 16}, "b": {"kind": "fat-tree", "nics": 16}}


@pytest.mark.parametrize(
    ("kind", "parameters", "told"),
    [
        ("clso", {}, 'kind = "clso": no such network; did you mean clos? valid: clos, fat-tree'),
        (
            "clos",
            {"nics": 128, "plane": 2},
            'plane: a network of kind "clos" has no such key; did you mean planes?',
        ),
        ("clos", {}, "nics = None: give nics or radix"),
        ("clos", {"nics": 1}, "nics = 1: valid: a whole number from 2 to 2000000"),
        ("clos", {"nics": 128.0}, "nics = 128.0: valid: a whole number"),
        ("clos", {"nics": True}, "nics = True: valid: a whole number"),
        ("clos", {"nics": 262_144, "radix": 512}, "valid: up to 131072 NICs"),
        ("clos", {"nics": 100, "radix": 16}, "nics = 100: must be a multiple of NICs per T0 = 8, such as 96"),
        ("clos", {"nics": 128, "planes": 0}, "planes = 0: valid: a whole number from 1 to 256"),
        ("clos", {"nics": 128, "port_gbps": 0}, "port_gbps = 0: valid: a number above 0"),
        ("clos", {"nics": 128, "port_gbps": float("nan")}, "port_gbps = nan: valid: a number above 0"),
        ("clos", {"nics": 128, "link_latency_ns": -1}, "link_latency_ns = -1: valid: a number from 0"),
        ("clos", {"nics": 128, "switch_latency_ns": "1us"}, 'switch_latency_ns = "1us": valid: a number'),
        (
            "clos",
            {"radix": 64, "oversubscription": 1.7},
            "oversubscription = 1.7: a T0 of radix = 64 cannot have",
        ),
        ("fat-tree", {"radix": 7}, "radix = 7: valid: an even number"),
        ("fat-tree", {"nics": 17}, "nics = 17: no even radix gives full pods"),
        ("fat-tree", {"nics": 128, "radix": 8, "tiers": 2}, "2 tiers of radix = 8 hold up to 32"),
        ("fat-tree", {"nics": 128, "tiers": 4}, "tiers = 4: valid: a whole number from 2 to 3"),
        (
            "fat-tree",
            {"nics": 128, "oversubscription": 3},
            "oversubscription = 3: 4 ports cannot be divided by it",
        ),
        (
            "leaf-spine",
            {"leaves": 4, "spines": 2},
            'nics_per_leaf: this key is required for a network of kind "leaf-',
        ),
        (
            "rail-optimised",
            {"nics": 100},
            "must be a multiple of NICs per unit (8 rails of 32 servers) = 256",
        ),
        ("rail-optimised", {"nics": 4096, "radix": 64}, "2 tiers of radix = 64 hold up to 2048"),
        ("dual-tor", {"segments": 0}, "segments = 0: valid: a whole number from 1"),
        ("dual-tor", {"pods": 200, "core_radix": 128}, "core_radix = 128: valid: a whole number from 200"),
        ("torus", {"shape": [4, 0]}, "shape[1] = 0: valid: a whole number from 1"),
        ("torus", {"shape": "4x4"}, 'shape = "4x4": valid: one to three numbers'),
        ("torus", {"shape": [1]}, "shape = [1]: makes 1 chips"),
        ("torus", {"shape": [4, 4], "wrap": [True]}, "wrap = [True]: valid: true, false, or 2 of them"),
        (
            "cube-torus",
            {"cubes": 2, "connections": [["w", 0, 1]]},
            "connections[0] = ['w', 0, 1]: valid: [axis,",
        ),
        (
            "cube-torus",
            {"cubes": 2, "connections": [["x", 0, 2]]},
            "connections[0].minus = 2: valid: a whole number",
        ),
        (
            "cube-torus",
            {"cubes": 2, "connections": [["x", 0, 1], ["x", 0, 0]]},
            "connections[1]: the plus x face of cube 0 is joined twice",
        ),
        (
            "dragonfly",
            {"routers_per_group": 2, "nics_per_router": 1, "global_links": 1, "groups": 4},
            "groups = 4: valid: a whole number from 2 to 3 (a * h + 1)",
        ),
        (
            "dragonfly",
            {"routers_per_group": 2, "nics_per_router": 1, "global_links": 1, "routing": "ugal"},
            'routing = "ugal": valid: "minimal", "valiant"',
        ),
        ("multi-site", {"sites": SITES}, 'wan: this key is required for a network of kind "multi-site"'),
        ("multi-site", {"sites": [], "wan": []}, "sites = []: valid: a table per site"),
        ("multi-site", {"sites": {"a": SITES["a"]}, "wan": []}, "sites has 1 entries; valid: two or more"),
        ("multi-site", {"sites": {"a": {"nics": 3}}, "wan": []}, "sites.a: valid: a table with a kind"),
        (
            "multi-site",
            {"sites": {"a": {"kind": "clos"}}, "wan": []},
            "sites.a: nics = None: give nics or radix",
        ),
        ("multi-site", {"sites": SITES, "wan": [{"between": ["a", "c"], "fibre_km": 1}]}, 'no such site "c"'),
        (
            "multi-site",
            {"sites": SITES, "wan": [{"between": ["a", "b"]}]},
            "wan[0]: give fibre_km or delay_ms",
        ),
        (
            "multi-site",
            {"sites": SITES, "wan": [{"between": ["a", "b"], "fibre_km": -1}]},
            "wan[0]: fibre_km = -1: ",
        ),
        (
            "multi-site",
            {"sites": SITES, "wan": [{"between": ["a", "b"], "fibre_km": 1, "lines": 2}]},
            'no key "lines" here; did you mean links?',
        ),
        (
            "multi-site",
            {"sites": SITES, "wan": [{"between": ["a", "a"], "fibre_km": 1}]},
            "two different sites",
        ),
        (
            "multi-site",
            {
                "sites": {"a": {"kind": "clos", "nics": 8}, "b": SITES["b"]},
                "wan": [{"between": ["a", "b"], "fibre_km": 1}],
            },
            "sites: numbers of planes differ",
        ),
        ("preset", {"name": "mrc"}, 'name = "mrc": no such preset; valid: mrc-131072'),
        (
            "file",
            {"path": "network.yaml"},
            "network.yaml: is no file of a network; valid endings: .toml, .json, .topo",
        ),
        ("file", {"path": "missing.toml"}, "missing.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_argument_is_told_with_what_is_valid(kind, parameters, told):
    with pytest.raises(ConfigError) as caught:
        build_topology(kind, **parameters)
    assert told in str(caught.value)


def test_planes_without_a_wan_link_are_told():
    sites = {"a": {"kind": "clos", "nics": 8}, "b": {"kind": "clos", "nics": 8}}
    with pytest.raises(
        ConfigError, match="leave planes without any; valid: 8 or more for 8 planes, or join_planes"
    ):
        build_topology("multi-site", sites=sites, wan=[{"between": ["a", "b"], "fibre_km": 1, "links": 4}])


def test_every_kind_is_built_by_name():
    built = {
        "clos": {"nics": 32},
        "fat-tree": {"nics": 16},
        "leaf-spine": {"leaves": 2, "spines": 2, "nics_per_leaf": 2},
        "rail-optimised": {"nics": 64, "radix": 16},
        "dual-tor": {"segments": 1, "hosts_per_segment": 2, "uplinks": 2},
        "torus": {"shape": [2, 3]},
        "cube-torus": {"cubes": 1, "connections": []},
        "dragonfly": {"routers_per_group": 2, "nics_per_router": 1, "global_links": 1},
        "multi-site": {"sites": SITES, "wan": [{"between": ["a", "b"], "fibre_km": 1}]},
        "graph": {"switches": [{"name": "s"}], "nics": [{"switches": ["s"], "count": 2}]},
        "preset": {"name": "tpu-v5e"},
    }
    assert {*built, "file"} == set(TOPOLOGY_KINDS)
    for kind, parameters in built.items():
        network = build_topology(kind, **parameters)
        assert network.kind in (kind, "torus")


@pytest.mark.parametrize(
    ("flow", "told"),
    [
        ((0, 128, 0), "destination = 128: no such NIC; valid: 0 to 127"),
        ((-1, 1, 0), "source = -1: no such NIC"),
        ((3, 3, 0), "source = destination = 3: a NIC needs no path to itself"),
        ((0, 1, 1), "plane = 1: no such plane; valid: 0 to 0"),
    ],
)
def test_a_path_that_cannot_be_is_told(flow, told):
    routes = fat_tree(128).routes()
    for ask in (routes.num_paths, lambda *flow: routes.path(*flow, 0)):
        with pytest.raises(ConfigError) as caught:
            ask(*flow)
        assert told in str(caught.value)
    with pytest.raises(ConfigError):
        routes.paths(*flow, 0)


def test_a_negative_number_is_no_path():
    routes = fat_tree(16).routes()
    for ask in (routes.path, routes.paths):
        with pytest.raises(ConfigError, match="index = -1: a path's number is not negative"):
            ask(0, 1, 0, -1)


def test_columns_are_never_written_to_and_have_to_fit():
    network = fat_tree(16)
    with pytest.raises(ValueError, match="read-only"):
        network.link_rate_gbps[0] = 1.0
    columns = {name: getattr(network, name) for name in Topology.__dataclass_fields__}
    with pytest.raises(ConfigError, match=r"topology.link_plane has shape \(3,\); valid: \(96,\)"):
        Topology(**{**columns, "link_plane": np.zeros(3, np.int16)})
    with pytest.raises(ConfigError, match="two directions of cable i"):
        Topology(**{**columns, "link_target": np.roll(network.link_target, 1)})
    with pytest.raises(ConfigError, match="rates are above 0"):
        Topology(**{**columns, "link_rate_gbps": np.zeros(96)})
    with pytest.raises(ConfigError, match=r"topology.num_nics = 0; valid: 1 to"):
        Topology(**{**columns, "num_nics": 0})


def test_two_nics_are_not_joined_directly():
    draft = TopologyDraft(2)
    draft.add_cables([0], [1], rate_gbps=1.0, latency_ns=0.0)
    with pytest.raises(ConfigError, match="joins two NICs; put a switch between them"):
        draft.build("pair", kind="graph")


def test_a_network_has_a_cable():
    with pytest.raises(ConfigError, match='topology "none" has no cable'):
        TopologyDraft(2).build("none", kind="graph")


def test_routes_that_would_not_fit_in_memory_are_refused(monkeypatch):
    monkeypatch.setattr("farstep.fabric.topology.shortest.TABLE_BYTES_MAX", 10_000)
    with pytest.raises(ConfigError, match=r"routes between 80 switches and 32 switches with NICs need"):
        fat_tree(128).routes()


def test_a_slip_of_a_digit_makes_no_network_of_millions():
    with pytest.raises(ConfigError, match="groups = 1048577: makes"):
        build_topology("dragonfly", routers_per_group=1024, nics_per_router=1024, global_links=1024)
    with pytest.raises(ConfigError, match=r"topology has \d+ (nodes|cables) or more; valid: up to"):
        build_topology("clos", radix=4096, planes=256)


def test_a_nic_has_its_links_in_order_of_planes():
    network = build_topology("clos", nics=32, planes=3)
    assert list(network.link_plane[network.nic_links(5)]) == [0, 1, 2]
    with pytest.raises(ConfigError, match="nic = 32: no such NIC; valid: 0 to 31"):
        network.nic_links(32)
