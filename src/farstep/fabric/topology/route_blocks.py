"""Cuts a network into parts that route alone, and searches each distinct one once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farstep.fabric.topology.model import BoolArray, Int32Array, Topology
from farstep.fabric.topology.routes import RouteBlock, RouteTable
from farstep.fabric.topology.shortest import NextSets, find_next_sets


@dataclass(frozen=True, eq=False)
class _Part:
    """Switches of one part with their links, in numbers of the part."""

    switches: Int32Array
    links: Int32Array
    source: Int32Array
    target: Int32Array
    cost: npt.NDArray[np.uint8]
    columns: Int32Array
    """Rows of the switches with NICs."""
    num_links: int
    """Links between its switches, dead ones too."""

    def is_alike(self, other: _Part) -> bool:
        """True if the same search would give the same numbers."""
        return (
            len(self.switches) == len(other.switches)
            and np.array_equal(self.columns, other.columns)
            and np.array_equal(self.source, other.source)
            and np.array_equal(self.target, other.target)
            and np.array_equal(self.cost, other.cost)
        )


def build_routes(topology: Topology, *, is_alive: BoolArray | None = None) -> RouteTable:
    """Builds the route table of a topology.

    Args:
        topology: the network.
        is_alive: directed links that exist for routing; None: all.

    Raises:
        ConfigError: the tables would be too large.
    """
    intact = topology.routes() if is_alive is not None else None
    part_of = _part_of_switches(topology) if intact is None else intact.node_block
    node_row = np.full(topology.num_nodes, -1, np.int32)
    node_column = np.full(topology.num_nodes, -1, np.int32)
    blocks: list[RouteBlock] = []
    searched: list[tuple[_Part, NextSets]] = []
    for part in _parts(topology, part_of, is_alive, node_row, node_column):
        if intact is not None and len(part.links) == part.num_links:
            blocks.append(intact.blocks[len(blocks)])
            continue
        found = next((sets for other, sets in searched if part.is_alike(other)), None)
        if found is None:
            found = find_next_sets(len(part.switches), part.source, part.target, part.cost, part.columns)
            searched.append((part, found))
        attachments = part.switches[part.columns]
        ports = topology.ports
        is_here = part_of[ports.switch] == len(blocks)
        blocks.append(
            RouteBlock(
                planes=tuple(int(plane) for plane in np.unique(ports.plane[is_here])),
                switches=part.switches,
                attachments=attachments,
                next_set=found.next_set,
                set_offset=found.set_offset,
                set_links=part.links[found.set_links],
            )
        )
    return RouteTable(topology, tuple(blocks), part_of, node_row, node_column, is_alive)


def _parts(
    topology: Topology,
    part_of: npt.NDArray[np.int16],
    is_alive: BoolArray | None,
    node_row: Int32Array,
    node_column: Int32Array,
) -> list[_Part]:
    """Lists the parts and fills in each switch's row and column."""
    between = (topology.link_source >= topology.num_nics) & (topology.link_target >= topology.num_nics)
    num_links = np.bincount(part_of[topology.link_source[between]], minlength=int(part_of.max()) + 1)
    if is_alive is not None:
        between &= is_alive
    links = np.flatnonzero(between).astype(np.int32)
    link_part = part_of[topology.link_source[links]]
    parts = []
    for number in range(int(part_of.max()) + 1):
        switches = np.flatnonzero(part_of == number).astype(np.int32)
        node_row[switches] = np.arange(len(switches))
        has_nics = np.zeros(topology.num_nodes, np.bool_)
        has_nics[topology.ports.switch] = True
        columns = np.flatnonzero(has_nics[switches]).astype(np.int32)
        node_column[switches[columns]] = np.arange(len(columns))
        mine = links[link_part == number]
        parts.append(
            _Part(
                switches,
                mine,
                node_row[topology.link_source[mine]],
                node_row[topology.link_target[mine]],
                topology.link_cost[mine],
                columns,
                int(num_links[number]),
            )
        )
    return parts


def _part_of_switches(topology: Topology) -> npt.NDArray[np.int16]:
    """Numbers the groups of planes that switches or cables join; -1 for NICs."""
    planes, plane_of = np.unique(topology.node_plane[topology.num_nics :], return_inverse=True)
    root = np.arange(len(planes))
    is_switch_link = (topology.link_source >= topology.num_nics) & (topology.link_target >= topology.num_nics)
    ends = np.flatnonzero(is_switch_link[0::2]) * 2
    near = plane_of[topology.link_source[ends] - topology.num_nics]
    far = plane_of[topology.link_target[ends] - topology.num_nics]
    joined = np.unique(near[near != far].astype(np.int64) * len(planes) + far[near != far])
    for pair in joined:
        one, other = (root[pair // len(planes)], root[pair % len(planes)])
        root[root == max(one, other)] = min(one, other)
    _, number = np.unique(root, return_inverse=True)
    part = np.full(topology.num_nodes, -1, np.int16)
    part[topology.num_nics :] = number[plane_of]
    return part
