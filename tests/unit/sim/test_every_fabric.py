"""Every network that can be built can be written in a scenario file, and carries traffic at both levels."""

import tomllib

import numpy as np
import pytest

from farstep import sim
from farstep.fabric.topology import from_networkx
from farstep.fabric.topology.build import TOPOLOGY_KINDS

FABRICS = {
    "clos": 'kind = "clos"\nnics = 32\nplanes = 2\nradix = 8',
    "fat-tree": 'kind = "fat-tree"\nnics = 16',
    "leaf-spine": 'kind = "leaf-spine"\nleaves = 2\nspines = 2\nnics_per_leaf = 2',
    "rail-optimised": 'kind = "rail-optimised"\nnics = 64\nradix = 16',
    "dual-tor": 'kind = "dual-tor"\nsegments = 1\nhosts_per_segment = 2\nuplinks = 2',
    "torus": 'kind = "torus"\nshape = [4, 4, 2]',
    "cube-torus": 'kind = "cube-torus"\ncubes = 1\nconnections = []',
    "dragonfly": 'kind = "dragonfly"\nrouters_per_group = 2\nnics_per_router = 1\nglobal_links = 1',
    "multi-site": (
        'kind = "multi-site"\nsites = { a = { kind = "leaf-spine", leaves = 2, spines = 2, nics_per_leaf = 2 }, '
        'b = { kind = "leaf-spine", leaves = 1, spines = 1, nics_per_leaf = 2 } }\n'
        'wan = [{ between = ["a", "b"], fibre_km = 10 }]'
    ),
    "graph": (
        'kind = "graph"\nswitches = [{ name = "s" }, { name = "t" }]\n'
        'nics = [{ switches = ["s"], count = 2 }, { switches = ["t"], count = 2 }]\n'
        'links = [{ between = ["s", "t"], count = 2 }]'
    ),
    "preset": 'kind = "preset"\nname = "tpu-v5e"',
    "file": 'kind = "file"\npath = "network.toml"',
}

NETWORK = (
    'switches = [{ name = "s" }, { name = "t" }]\n'
    'nics = [{ switches = ["s"], count = 2 }, { switches = ["t"], count = 2 }]\n'
    'links = [{ between = ["s", "t"] }]'
)


def test_no_kind_is_missing():
    assert set(FABRICS) == set(TOPOLOGY_KINDS)


@pytest.mark.parametrize("level", ["packet", "flow"])
@pytest.mark.parametrize("kind", FABRICS)
def test_a_scenario_file_can_have_it(kind, level, tmp_path):
    (tmp_path / "network.toml").write_text(NETWORK)
    text = f'[fabric]\n{FABRICS[kind]}\n[workload]\nkind = "permutation"\nsize_bytes = 20_000\nranks = 4\n'
    tomllib.loads(text)
    (tmp_path / "s.toml").write_text(text)
    result = sim.simulate(sim.load_scenario(tmp_path / "s.toml", {"run.level": level}))
    assert result.is_complete
    assert result.flow_time.p100_ns < 1e6


def test_a_mistake_in_a_network_of_its_own_is_told_with_its_file(tmp_path):
    (tmp_path / "network.toml").write_text("switch = 1")
    scenario = sim.parse_scenario(
        {"fabric": {"kind": "file", "path": "network.toml"}, "workload": {"kind": "permutation"}},
        source="s.toml",
        folder=tmp_path,
    )
    with pytest.raises(sim.ConfigError, match=r"^s\.toml: fabric: .*network\.toml: no key"):
        _ = scenario.topology


def test_a_graph_of_networkx_carries_traffic():
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_node("s", kind="switch")
    for index in range(4):
        graph.add_node(f"h{index}", kind="nic")
        graph.add_edge("s", f"h{index}")
    fabric = from_networkx(graph)
    result = sim.simulate(fabric, sim.permutation(size_bytes=20_000))
    assert result.is_complete
    assert np.unique(result.tasks.source).tolist() == [0, 1, 2, 3]
