"""Networks from files and from networkx."""

import json

import numpy as np
import pytest

from farstep.fabric import ConfigError, build_topology, clos, fat_tree, from_networkx, load_topology
from farstep.fabric.topology import FIBRE_NS_PER_KM, describe, parse_graph, parse_htsim_topology, to_networkx

TWO_ROOMS = """
name = "two rooms"

[[switches]]
name = "north"
site = "a"
latency_ns = 300

[[switches]]
name = "south"
site = "b"

[[nics]]
switches = ["north"]
count = 3
rate_gbps = 200
latency_ns = 50

[[nics]]
switches = ["south"]

[[links]]
between = ["north", "south"]
fibre_km = 10
count = 2
rate_gbps = 400
"""

FAT_TREE_128 = """
# 128 hosts
Nodes 128
Tiers 3
Podsize 16

Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000

Tier 1
Downlink_speed_Gbps 200
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 500
Switch_Latency_ns 70
Bundle 1

Tier 2
Downlink_speed_Gbps 400
Radix_Down 8
Downlink_Latency_ns 250
Bundle 1
"""


def test_a_toml_file_says_switches_nics_and_links(tmp_path):
    path = tmp_path / "rooms.toml"
    path.write_text(TWO_ROOMS, encoding="utf-8")
    network = load_topology(path)
    assert (network.name, network.num_nics, network.num_switches) == ("two rooms", 4, 2)
    assert network.site_names == ("a", "b")
    assert list(network.node_site) == [0, 0, 0, 1, 0, 1]
    wan = network.resolve("link:north->south")
    assert list(network.link_rate_gbps[wan]) == [400, 400]
    assert network.link_latency_ns[wan] == pytest.approx(10 * FIBRE_NS_PER_KM)
    assert network.switch_latency_ns[network.labels["north"]] == 300
    assert network.routes().num_paths(0, 3, 0) == 2
    assert network.summary().wan_gbps == {("a", "b"): 800}
    assert "a - b" in str(network.summary())


def test_a_json_file_says_the_same(tmp_path):
    path = tmp_path / "tree.json"
    tree = fat_tree(16, planes=2)
    path.write_text(json.dumps(describe(tree)), encoding="utf-8")
    again = build_topology("file", path=str(path))
    for column in ("node_tier", "node_plane", "node_group"):
        assert np.array_equal(getattr(again, column)[16:], getattr(tree, column)[16:])
    assert again.num_planes == 2
    assert again.routes().num_paths(0, 15, 1) == tree.routes().num_paths(0, 15, 1)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.toml", "[[switches]]", "a.toml: switches[0].name: this key is required"),
        ("a.toml", "[[switches]\n", "a.toml: is not valid TOML"),
        ("a.json", "[1]", "a.json: is a JSON list; valid: an object"),
        ("a.json", "{", "a.json: is not valid JSON"),
        ("a.topo", "Nodes x", "a.topo: line 1: Nodes = x: valid: a number"),
        (
            "a.topo",
            "Nodes 4\nSpeed 3",
            "a.topo: line 2: no key Speed here; valid keys: nodes, tiers, podsize",
        ),
        ("a.topo", "Nodes", 'a.topo: line 1: "Nodes": valid: a key and a number'),
        ("a.topo", "Nodes 4\nTiers 2", "a.topo: podsize: this key is required"),
        ("a.topo", "Tier 3", "a.topo: line 1: tier 3: valid: 0, 1 and 2, each once"),
        (
            "a.topo",
            FAT_TREE_128.replace("Podsize 16", "Podsize 24"),
            "a.topo: nodes = 128: valid: a multiple of podsize = 24",
        ),
        (
            "a.topo",
            FAT_TREE_128.replace("Radix_Down 8", "Radix_Down 5"),
            "a.topo: links to tier 2 = 128: valid: a multiple of tier 2 radix_down = 5",
        ),
        (
            "a.topo",
            FAT_TREE_128.replace("Bundle 1", "Bundle 2"),
            "a.topo: tier 1 radix_down = 4: 4 tier 0 switches a pod with bundles of 2 need 8",
        ),
        (
            "a.topo",
            FAT_TREE_128.replace("Downlink_speed_Gbps 200", ""),
            "a.topo: tier 1 downlink_speed_gbps: this key is required",
        ),
    ],
)
def test_a_file_that_says_no_network_is_told(tmp_path, monkeypatch, name, text, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_topology(name)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"switches": [{"name": "s"}, {"name": "s"}]}, 'switches: the name "s" is used twice'),
        ({"nics": [{"switches": ["x"]}]}, 'nics[0].switches: no such switch "x"; known switches: s, t'),
        ({"links": [{"between": ["s", "x"]}]}, 'links[0].between: no such switch "x"'),
        ({"links": [{"between": ["s", "s"]}]}, "links[0].between: a link joins two different switches"),
        (
            {"switches": [{"name": "s"}, {"name": "t", "plane": 1}]},
            "links[0]: joins planes 0 and 1; valid: give its",
        ),
        ({"links": [{"between": ["s", "t"], "rate": 3}]}, 'no key "rate" here; did you mean rate_gbps?'),
        ({"links": [{"between": ["s", "t"], "rate_gbps": 0}]}, "links[0].rate_gbps = 0: "),
    ],
)
def test_a_graph_that_does_not_hold_together_is_told(change, told):
    table = {
        "switches": [{"name": "s"}, {"name": "t"}],
        "nics": [{"switches": ["s"], "count": 2}],
        "links": [{"between": ["s", "t"]}],
    }
    with pytest.raises(ConfigError) as caught:
        parse_graph({**table, **change}, source="net.toml")
    assert str(caught.value).startswith("net.toml: ")
    assert told in str(caught.value)


def test_an_htsim_file_is_the_fat_tree_it_describes():
    network = parse_htsim_topology(FAT_TREE_128, source="ft128.topo")
    built = fat_tree(128, uplink_gbps=200.0, core_gbps=400.0)
    assert network.name == "ft128"
    for column in ("link_source", "link_target", "link_rate_gbps", "node_tier", "node_group"):
        assert np.array_equal(getattr(network, column), getattr(built, column))
    assert set(network.link_latency_ns[network.resolve("link:nic/*-t0/p0/*")]) == {1000}
    assert set(network.link_latency_ns[network.resolve("link:t1/p0/*-t2/p0/*")]) == {250}
    assert set(network.switch_latency_ns[network.node_tier == 1]) == {70}


def test_an_htsim_file_may_give_oversubscription_instead_of_uplinks():
    text = FAT_TREE_128.replace(
        "Radix_Up 4\nDownlink_Latency_ns 1000", "Oversubscribed 4\nDownlink_Latency_ns 1000"
    )
    text = text.replace("Radix_Up 4", "Radix_Up 16")
    network = parse_htsim_topology(text)
    assert network.routes().num_paths(0, 3 + 4, 0) == 1
    assert network.routes().num_paths(0, 127, 0) == 16


def test_a_networkx_graph_becomes_a_network_and_the_other_way_round():
    networkx = pytest.importorskip("networkx")
    graph = networkx.MultiGraph()
    graph.add_node("one", kind="nic")
    graph.add_node("two", kind="nic", site="far")
    graph.add_node("here", kind="switch")
    graph.add_node("there", kind="switch", site="far", latency_ns=5.0)
    graph.add_edge("one", "here", rate_gbps=25.0)
    graph.add_edge("there", "two")
    graph.add_edge("here", "there", rate_gbps=50.0, fibre_km=1.0)
    graph.add_edge("here", "there", rate_gbps=50.0)
    network = from_networkx(graph, name="pair")
    assert (network.num_nics, network.num_switches, network.num_cables) == (2, 2, 4)
    assert network.routes().num_paths(0, 1, 0) == 2
    assert network.node_name(1) == "two"
    assert len(network.resolve("link:one-here")) == 2
    tree = clos(32, planes=2)
    back = to_networkx(tree)
    assert back.number_of_edges() == tree.num_cables
    again = from_networkx(networkx.relabel_nodes(back, str))
    assert again.routes().num_paths(0, 31, 1) == tree.routes().num_paths(0, 31, 1)
    lengths = networkx.single_source_shortest_path_length(back, 0)
    assert lengths[31] == len(tree.routes().path(0, 31, 1, 0))


def test_a_networkx_graph_that_is_no_network_is_told():
    networkx = pytest.importorskip("networkx")
    with pytest.raises(ConfigError, match="the graph is directed; valid: an undirected graph"):
        from_networkx(networkx.DiGraph())
    graph = networkx.Graph([("a", "b")])
    with pytest.raises(ConfigError, match='node "a": kind = None; valid: "nic", "switch"'):
        from_networkx(graph)
    networkx.set_node_attributes(graph, "nic", "kind")
    with pytest.raises(ConfigError, match='nodes "a" and "b" are both NICs'):
        from_networkx(graph)
    graph.remove_edge("a", "b")
    with pytest.raises(ConfigError, match='NIC "a" is joined to nothing'):
        from_networkx(graph)
