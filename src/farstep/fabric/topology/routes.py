"""Routes as choices: at each hop a set of links, and a path is a number whose digits choose among them.

A route table covers the switches that can reach each other (a plane, or planes that a switch joins). Planes built
alike share one table. A path is written as one number: its digits, in the mixed radix of the set sizes hop by hop,
least significant first, say which link is taken. So an entropy value is a path, and no path is ever stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.model import BoolArray, Int32Array, Int64Array, Topology
from farstep.fabric.topology.shortest import HERE, UNREACHABLE

__all__ = ["HERE", "UNREACHABLE", "LinkShares", "RouteBlock", "RouteTable"]


@dataclass(frozen=True, eq=False)
class RouteBlock:
    """Route table of the switches of one plane, or of planes that are joined."""

    planes: tuple[int, ...]
    """Planes whose NIC ports end here."""
    switches: Int32Array
    """Node of each row."""
    attachments: Int32Array
    """Node of each column: the switches with NICs."""
    next_set: Int32Array
    """`int32[rows, columns]`: set of links on shortest paths, `UNREACHABLE` or `HERE`; may be shared."""
    set_offset: Int64Array
    """First link of each set, `int64[sets + 1]`; may be shared."""
    set_links: Int32Array
    """Links of all sets, in ascending order within a set."""

    @property
    def num_sets(self) -> int:
        """Sets of this block."""
        return len(self.set_offset) - 1


class LinkShares(NamedTuple):
    """Which part of each flow each link carries; one row per flow and link."""

    flow: Int64Array
    link: Int32Array
    share: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RouteTable:
    """All shortest paths between NICs; with `via_switches` in the topology, all paths over one of those.

    A flow leaves its NIC by a port of a given plane and arrives by a port of the same plane, or of any port of the
    destination where planes are joined and it has none of that plane.
    """

    topology: Topology
    blocks: tuple[RouteBlock, ...]
    node_block: npt.NDArray[np.int16]
    """Block of each switch; -1 for a NIC."""
    node_row: Int32Array
    """Row of each switch in its block; -1 for a NIC."""
    node_column: Int32Array
    """Column of each switch in its block; -1 if no NIC is attached."""
    is_alive: BoolArray | None = None
    """Links that were routed over; None: all."""

    # -- one flow -----------------------------------------------------------------------------------------

    def num_paths(self, source: int, destination: int, plane: int) -> int:
        """Returns how many numbers a path from NIC to NIC may have: the largest product of set sizes met.

        Where all paths meet sets of equal sizes, as in a Clos network or a fat tree, this is the number of paths,
        and each has one number. Elsewhere (in a torus) some paths have several.

        Returns:
            0 if there is no path in that plane.

        Raises:
            ConfigError: there is no such NIC or plane, or both NICs are the same.
        """
        choices = self._port_pairs(source, destination, plane)
        best = max((self._radix(up, down) for up, down in choices), default=0)
        return best * len(choices)

    def path(self, source: int, destination: int, plane: int, index: int) -> list[int]:
        """Returns the directed links of a path, from the NIC's uplink to the downlink into the destination.

        Args:
            source: NIC.
            destination: NIC.
            plane: plane of the source's port.
            index: number of the path; from `num_paths` on, paths repeat.

        Raises:
            ConfigError: there is no such path.
        """
        if index < 0:
            raise ConfigError(f"index = {index}: a path's number is not negative")
        choices = self._port_pairs(source, destination, plane)
        if not choices:
            raise ConfigError(f"no path from NIC {source} to NIC {destination} in plane {plane}")
        rest, which = divmod(index, len(choices))
        up, down = choices[which]
        node = int(self.topology.link_target[up])
        goal = int(self.topology.link_source[down])
        path = [up]
        stops = [goal]
        if self.topology.via_switches is not None:
            rest, which = divmod(rest, len(self.topology.via_switches))
            stops.insert(0, int(self.topology.via_switches[which]))
        for stop in stops:
            while node != stop:
                links = self.next_links(node, stop)
                rest, which = divmod(rest, len(links))
                path.append(int(links[which]))
                node = int(self.topology.link_target[path[-1]])
        path.append(down)
        return path

    def next_links(self, switch: int, attachment: int) -> Int32Array:
        """Returns the links that begin a shortest path from a switch to a switch with NICs; none if none does."""
        block = self.blocks[self.node_block[switch]]
        if self.node_block[attachment] != self.node_block[switch] or self.node_column[attachment] < 0:
            return np.zeros(0, np.int32)
        number = block.next_set[self.node_row[switch], self.node_column[attachment]]
        first, last = (block.set_offset[number], block.set_offset[number + 1]) if number >= 0 else (0, 0)
        return np.asarray(block.set_links[first:last], np.int32)

    def _port_pairs(self, source: int, destination: int, plane: int) -> list[tuple[int, int]]:
        """Returns (uplink, downlink) of every pair of ports a path may use."""
        self._check(source, destination, plane)
        ports = self.topology.ports
        ups = range(ports.offset[source], ports.offset[source + 1])
        downs = range(ports.offset[destination], ports.offset[destination + 1])
        pairs = []
        for up in ups:
            if ports.plane[up] != plane or not self._lives(ports.link[up]):
                continue
            same = [down for down in downs if ports.plane[down] == plane] or downs
            for down in same:
                start, goal = int(ports.switch[up]), int(ports.switch[down])
                if self._lives(ports.link[down] ^ 1) and (start == goal or len(self.next_links(start, goal))):
                    pairs.append((int(ports.link[up]), int(ports.link[down]) ^ 1))
        return pairs

    def _lives(self, link: int) -> bool:
        return self.is_alive is None or bool(self.is_alive[link])

    def _radix(self, up: int, down: int) -> int:
        start = int(self.topology.link_target[up])
        goal = int(self.topology.link_source[down])
        via = self.topology.via_switches
        if via is None:
            return self._largest_product(start, goal)
        return len(via) * max(
            self._largest_product(start, int(stop)) * self._largest_product(int(stop), goal) for stop in via
        )

    def _largest_product(self, start: int, goal: int) -> int:
        best = {start: 1}
        product = 1
        while best:
            product = max(best.values())
            ahead: dict[int, int] = {}
            for node, value in best.items():
                links = self.next_links(node, goal)
                for link in links:
                    target = int(self.topology.link_target[link])
                    ahead[target] = max(ahead.get(target, 0), value * len(links))
            best = ahead
        return product

    # -- many flows ---------------------------------------------------------------------------------------

    def paths(
        self, source: npt.ArrayLike, destination: npt.ArrayLike, plane: npt.ArrayLike, index: npt.ArrayLike
    ) -> Int32Array:
        """Returns the paths of many flows at once, as `path` gives each.

        Args:
            source: `int[n]`, NICs; like the others, one number stands for all.
            destination: `int[n]`, NICs.
            plane: `int[n]`, planes.
            index: `int[n]`, numbers of paths.

        Returns:
            `int32[n, hops]`: links in order; shorter paths are filled up with -1.

        Raises:
            ConfigError: a flow has no path.
        """
        from farstep.fabric.topology.walks import walk_paths

        return walk_paths(self, source, destination, plane, index)

    def link_shares(
        self, source: npt.ArrayLike, destination: npt.ArrayLike, plane: npt.ArrayLike
    ) -> LinkShares:
        """Returns how flows spread evenly over their sets, hop by hop, load the links.

        Args:
            source: `int[n]`, NICs.
            destination: `int[n]`, NICs.
            plane: `int[n]`, planes.

        Raises:
            ConfigError: a flow has no path.
        """
        from farstep.fabric.topology.walks import spread_flows

        return spread_flows(self, source, destination, plane)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what a compiled engine reads of routes; see `farstep.fabric.topology.columns.route_columns`."""
        from farstep.fabric.topology.columns import route_columns

        return route_columns(self)

    def _check(self, source: int, destination: int, plane: int) -> None:
        last = self.topology.num_nics - 1
        for key, nic in (("source", source), ("destination", destination)):
            if not 0 <= nic <= last:
                raise ConfigError(f"{key} = {nic}: no such NIC; valid: 0 to {last}")
        if source == destination:
            raise ConfigError(f"source = destination = {source}: a NIC needs no path to itself")
        if not 0 <= plane < self.topology.num_planes:
            raise ConfigError(f"plane = {plane}: no such plane; valid: 0 to {self.topology.num_planes - 1}")
