"""Paths and loads of many flows at once: all flows take their next hop together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.model import Int32Array, Int64Array
from farstep.fabric.topology.routes import LinkShares, RouteTable

HOPS_MAX = 4096
"""Links of the longest path; a ring of 8,000 switches has 4,001."""


class _Ends(NamedTuple):
    """Pairs of ports that flows may use; a row per flow and pair, ordered by flow."""

    flow: Int64Array
    up: Int32Array
    down: Int32Array


def walk_paths(
    routes: RouteTable,
    source: npt.ArrayLike,
    destination: npt.ArrayLike,
    plane: npt.ArrayLike,
    index: npt.ArrayLike,
) -> Int32Array:
    """See `RouteTable.paths`."""
    flows = _flows(routes, source, destination, plane, index)
    rest = flows[3].astype(np.int64)
    if len(rest) and rest.min() < 0:
        raise ConfigError(f"index = {rest.min()}: a path's number is not negative")
    ends = _port_pairs(routes, *flows[:3])
    first = np.searchsorted(ends.flow, np.arange(len(rest)))
    count = np.bincount(ends.flow, minlength=len(rest))
    rest, which = np.divmod(rest, np.maximum(count, 1))
    up, down = ends.up[first + which], ends.down[first + which]
    topology = routes.topology
    node = topology.link_target[up].copy()
    goal = topology.link_source[down]
    hops = [up]
    length = np.ones(len(rest), np.int64)
    stops = [goal]
    if topology.via_switches is not None:
        rest, which = np.divmod(rest, len(topology.via_switches))
        stops.insert(0, topology.via_switches[which])
    columns = _SetLookup(routes)
    steps: list[tuple[Int64Array, Int64Array, Int32Array]] = []
    for stop in stops:
        moving = np.flatnonzero(node != stop)
        while len(moving):
            offset, size = columns.sets(node[moving], stop[moving])
            rest[moving], which = np.divmod(rest[moving], size)
            link = columns.set_links[offset + which]
            steps.append((moving, length[moving].copy(), link))
            length[moving] += 1
            node[moving] = topology.link_target[link]
            moving = moving[node[moving] != stop[moving]]
    path = np.full((len(rest), int(length.max(initial=1)) + 1), -1, np.int32)
    path[:, 0] = hops[0]
    for moving, position, link in steps:
        path[moving, position] = link
    path[np.arange(len(rest)), length] = down
    return path


def spread_flows(
    routes: RouteTable, source: npt.ArrayLike, destination: npt.ArrayLike, plane: npt.ArrayLike
) -> LinkShares:
    """See `RouteTable.link_shares`."""
    flows = _flows(routes, source, destination, plane, 0)
    ends = _port_pairs(routes, *flows[:3])
    topology = routes.topology
    count = np.bincount(ends.flow, minlength=len(flows[0]))
    weight = 1.0 / count[ends.flow]
    loads = [(ends.flow, ends.up, weight), (ends.flow, ends.down, weight)]
    state = (ends.flow, topology.link_target[ends.up], topology.link_source[ends.down], weight)
    lookup = _SetLookup(routes)
    if topology.via_switches is not None:
        flow, node, goal, weight = state
        via = topology.via_switches
        many = len(via)
        at_via = np.tile(via, len(flow))
        loads += _spread(
            lookup, np.repeat(flow, many), np.repeat(node, many), at_via, np.repeat(weight, many) / many
        )
        state = (np.repeat(flow, many), at_via, np.repeat(goal, many), np.repeat(weight, many) / many)
    loads += _spread(lookup, *state)
    flow, link, share = (np.concatenate(column) for column in zip(*loads, strict=True))
    key, inverse = np.unique(flow * topology.num_links + link, return_inverse=True)
    total = np.bincount(inverse, weights=share, minlength=len(key))
    links = (key % topology.num_links).astype(np.int32)
    return LinkShares(key // topology.num_links, links, np.asarray(total, np.float64))


def _spread(
    lookup: _SetLookup,
    flow: Int64Array,
    node: Int32Array,
    goal: Int32Array,
    weight: npt.NDArray[np.float64],
) -> list[tuple[Int64Array, Int32Array, npt.NDArray[np.float64]]]:
    """Spreads from switch to switch; states of a flow that meet again are merged."""
    loads: list[tuple[Int64Array, Int32Array, npt.NDArray[np.float64]]] = []
    num_nodes = lookup.routes.topology.num_nodes
    while True:
        moving = node != goal
        flow, node, goal, weight = flow[moving], node[moving], goal[moving], weight[moving]
        if not len(flow):
            return loads
        offset, size = lookup.sets(node, goal)
        which = np.repeat(np.arange(len(flow)), size)
        within = np.arange(len(which)) - np.repeat(np.cumsum(size) - size, size)
        link = lookup.set_links[offset[which] + within]
        flow, goal, weight = flow[which], goal[which], (weight / size)[which]
        loads.append((flow, link, weight))
        node = lookup.routes.topology.link_target[link]
        key = (flow * num_nodes + node) * num_nodes + goal
        _, example, inverse = np.unique(key, return_index=True, return_inverse=True)
        weight = np.asarray(np.bincount(inverse, weights=weight), np.float64)
        flow, node, goal = flow[example], node[example], goal[example]


class _SetLookup:
    """Looks up the sets of many (switch, destination) pairs of any blocks."""

    def __init__(self, routes: RouteTable) -> None:
        self.routes = routes
        self._starts = np.cumsum([0, *(len(block.set_links) for block in routes.blocks)])
        self.set_links = np.concatenate([block.set_links for block in routes.blocks])

    def sets(self, node: Int32Array, goal: Int32Array) -> tuple[Int64Array, Int64Array]:
        """Returns the first place in `set_links` and the size of each set."""
        routes = self.routes
        offset = np.empty(len(node), np.int64)
        size = np.empty(len(node), np.int64)
        number = routes.node_block[node]
        for which in np.unique(number):
            block = routes.blocks[which]
            here = number == which
            found = block.next_set[routes.node_row[node[here]], routes.node_column[goal[here]]]
            offset[here] = block.set_offset[found] + self._starts[which]
            size[here] = block.set_offset[found + 1] - block.set_offset[found]
        return offset, size


def _flows(routes: RouteTable, *values: npt.ArrayLike) -> list[Int64Array]:
    source, destination, plane, index = (np.atleast_1d(np.asarray(value)) for value in values)
    columns = np.broadcast_arrays(source, destination, plane, index)
    source, destination, plane = columns[:3]
    last = routes.topology.num_nics - 1
    for key, column, high in (
        ("source", source, last),
        ("destination", destination, last),
        ("plane", plane, routes.topology.num_planes - 1),
    ):
        wrong = (column < 0) | (column > high)
        if wrong.any():
            raise ConfigError(f"{key} = {column[wrong][0]}: valid: 0 to {high}")
    if (source == destination).any():
        nic = source[source == destination][0]
        raise ConfigError(f"source = destination = {nic}: a NIC needs no path to itself")
    return [column.astype(np.int64) for column in columns]


def _port_pairs(routes: RouteTable, source: Int64Array, destination: Int64Array, plane: Int64Array) -> _Ends:
    """Lists the pairs of ports of each flow, in the order of `RouteTable.path`."""
    ports = routes.topology.ports
    flow, up = _rows(ports.offset, source)
    keep = ports.plane[up] == plane[flow]
    if routes.is_alive is not None:
        keep &= routes.is_alive[ports.link[up]]
    flow, up = flow[keep], up[keep]
    pair, down = _rows(ports.offset, destination[flow])
    same = ports.plane[down] == plane[flow[pair]]
    has_same = np.zeros(len(flow), np.bool_)
    has_same[pair[same]] = True
    keep = same | ~has_same[pair]
    if routes.is_alive is not None:
        keep &= routes.is_alive[ports.link[down] ^ 1]
    pair, down = pair[keep], down[keep]
    flow, up = flow[pair], up[pair]
    keep = _reaches(routes, ports.switch[up], ports.switch[down])
    flow, up, down = flow[keep], up[keep], down[keep]
    has_path = np.zeros(len(source), np.bool_)
    has_path[flow] = True
    if not has_path.all():
        lost = int(np.flatnonzero(~has_path)[0])
        raise ConfigError(
            f"no path from NIC {source[lost]} to NIC {destination[lost]} in plane {plane[lost]}"
        )
    return _Ends(flow, ports.link[up], ports.link[down] ^ 1)


def _rows(offset: Int64Array, nic: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns (flow, port) of all ports of each flow's NIC."""
    count = offset[nic + 1] - offset[nic]
    flow = np.repeat(np.arange(len(nic)), count)
    within = np.arange(len(flow)) - np.repeat(np.cumsum(count) - count, count)
    return flow, offset[nic][flow] + within


def _reaches(routes: RouteTable, start: Int32Array, goal: Int32Array) -> npt.NDArray[np.bool_]:
    number = routes.node_block[start]
    reached = np.asarray(start == goal, np.bool_)
    for which in np.unique(number):
        here = np.flatnonzero((number == which) & (routes.node_block[goal] == which) & (start != goal))
        rows, columns = routes.node_row[start[here]], routes.node_column[goal[here]]
        reached[here] = routes.blocks[which].next_set[rows, columns] >= 0
    return reached
