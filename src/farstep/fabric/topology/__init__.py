"""Topologies: networks as columns, builders for the shapes in use, routes as choices, and what they count up to."""

from farstep.fabric.topology.clos import clos, leaf_spine
from farstep.fabric.topology.fat_tree import fat_tree
from farstep.fabric.topology.model import NodeKind, PortTable, Topology
from farstep.fabric.topology.routes import HERE, UNREACHABLE, LinkShares, RouteBlock, RouteTable

__all__ = [
    "HERE",
    "UNREACHABLE",
    "LinkShares",
    "NodeKind",
    "PortTable",
    "RouteBlock",
    "RouteTable",
    "Topology",
    "clos",
    "fat_tree",
    "leaf_spine",
]
