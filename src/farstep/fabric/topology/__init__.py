"""Topologies: networks as columns, builders for the shapes in use, routes as choices, and what they count up to.

What reads descriptions, and pydantic with it, loads when it is first asked for: half the memory of a small simulation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farstep.fabric.topology.clos import clos, leaf_spine
from farstep.fabric.topology.draft import TopologyDraft
from farstep.fabric.topology.dragonfly import dragonfly
from farstep.fabric.topology.elements import ELEMENT_KINDS, cage_numbers, resolve_links, resolve_nodes
from farstep.fabric.topology.fat_tree import fat_tree
from farstep.fabric.topology.model import NodeKind, PortTable, Topology
from farstep.fabric.topology.rail import dual_tor, rail_optimised
from farstep.fabric.topology.routes import HERE, UNREACHABLE, LinkShares, RouteBlock, RouteTable
from farstep.fabric.topology.summary import BlastRadius, LinkCount, PathClass, TopologySummary
from farstep.fabric.topology.torus import OcsConnection, cube_torus, torus, torus_connections

if TYPE_CHECKING:
    from farstep.fabric.topology.build import PRESETS, TOPOLOGY_KINDS, build_topology, preset
    from farstep.fabric.topology.files import describe, load_topology, parse_htsim_topology
    from farstep.fabric.topology.graphs import (
        GraphDescription,
        build_graph,
        from_networkx,
        parse_graph,
        to_networkx,
    )
    from farstep.fabric.topology.joined_sites import FIBRE_NS_PER_KM, WanLink, multi_site
    from farstep.fabric.topology.link_faults import SIMULATED_KINDS, LinkChange, LinkTimeline, target_links

_PLACES = {
    "FIBRE_NS_PER_KM": "joined_sites",
    "GraphDescription": "graphs",
    "LinkChange": "link_faults",
    "LinkTimeline": "link_faults",
    "PRESETS": "build",
    "SIMULATED_KINDS": "link_faults",
    "TOPOLOGY_KINDS": "build",
    "WanLink": "joined_sites",
    "build_graph": "graphs",
    "build_topology": "build",
    "describe": "files",
    "from_networkx": "graphs",
    "load_topology": "files",
    "multi_site": "joined_sites",
    "parse_graph": "graphs",
    "parse_htsim_topology": "files",
    "preset": "build",
    "target_links": "link_faults",
    "to_networkx": "graphs",
}
"""Module of what is loaded late."""

__all__ = [
    "ELEMENT_KINDS",
    "FIBRE_NS_PER_KM",
    "HERE",
    "PRESETS",
    "SIMULATED_KINDS",
    "TOPOLOGY_KINDS",
    "UNREACHABLE",
    "BlastRadius",
    "GraphDescription",
    "LinkChange",
    "LinkCount",
    "LinkShares",
    "LinkTimeline",
    "NodeKind",
    "OcsConnection",
    "PathClass",
    "PortTable",
    "RouteBlock",
    "RouteTable",
    "Topology",
    "TopologyDraft",
    "TopologySummary",
    "WanLink",
    "build_graph",
    "build_topology",
    "cage_numbers",
    "clos",
    "cube_torus",
    "describe",
    "dragonfly",
    "dual_tor",
    "fat_tree",
    "from_networkx",
    "leaf_spine",
    "load_topology",
    "multi_site",
    "parse_graph",
    "parse_htsim_topology",
    "preset",
    "rail_optimised",
    "resolve_links",
    "resolve_nodes",
    "target_links",
    "to_networkx",
    "torus",
    "torus_connections",
]


def __getattr__(name: str) -> Any:
    """Loads what reads descriptions when it is first asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists what is loaded late too."""
    return sorted({*globals(), *__all__})
