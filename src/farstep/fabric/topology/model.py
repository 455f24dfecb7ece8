"""A network as columns: nodes, directed links, planes and sites.

Everything a simulator or a planner needs to know about a network is in a handful of arrays; the builders of this
package make them, and nothing but `TopologyDraft` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError
from farstep.fabric.expected import expect
from farstep.fabric.topology.node_names import NodeNames, numbers_of

if TYPE_CHECKING:
    from farstep.fabric.topology.routes import RouteTable
    from farstep.fabric.topology.summary import TopologySummary

Int16Array = npt.NDArray[np.int16]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NIC_TIER = -1
"""Tier of every NIC; switches next to NICs are tier 0."""


class NodeKind(IntEnum):
    """What a node is. Optical circuit switches are no nodes: they decide which links there are."""

    NIC = 0
    SWITCH = 1


@dataclass(frozen=True, eq=False)
class PortTable:
    """Ports of all NICs, ordered by NIC, then plane, then link."""

    offset: Int64Array
    """First port of each NIC, `int64[num_nics + 1]`."""
    nic: Int32Array
    """NIC of each port."""
    link: Int32Array
    """Link out of the NIC; the link into it is `link ^ 1`."""
    plane: Int16Array
    """Plane of each port."""
    switch: Int32Array
    """Node at the other end."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Topology:
    """A network: NICs and switches joined by links, in columns that are never written to.

    Nodes `0 .. num_nics - 1` are NICs, switches follow. There is a row per *directed* link: `2 * i` and
    `2 * i + 1` are the two directions of cable `i`, so the way back of link `l` is `l ^ 1`. Parallel cables are
    simply several rows.

    Raises:
        ConfigError: columns do not fit each other.
    """

    name: str
    num_nics: int
    num_planes: int
    node_kind: npt.NDArray[np.uint8]
    """`NodeKind` of each node."""
    node_tier: npt.NDArray[np.int8]
    """-1 for a NIC, 0 for a switch next to NICs, 1 for the tier above..."""
    node_plane: Int16Array
    """Plane of a switch; 0 for a NIC, -1 for a switch that joins planes."""
    node_site: Int16Array
    """Index into `site_names`."""
    node_group: Int32Array
    """Pod, rail, rack, cube or dragonfly group, as the builder says."""
    link_source: Int32Array
    link_target: Int32Array
    link_rate_gbps: FloatArray
    """10^9 bit/s on the wire in this direction."""
    link_latency_ns: FloatArray
    """Propagation, one way."""
    link_plane: Int16Array
    """Plane; -1 for a link between switches that join planes."""
    link_cost: npt.NDArray[np.uint8]
    """What routing counts for a link, 1 or more; a shortest route is one that costs least."""
    link_is_optical: BoolArray
    """False for copper and for what lies inside a chip: no transceivers."""
    switch_latency_ns: FloatArray
    """Per node: added on every hop out of that switch; 0 for a NIC."""
    node_cage_ports: Int16Array
    """Per node: ports that share one transceiver, counted along its links in order of their ids."""
    site_names: tuple[str, ...] = ("local",)
    kind: str = "graph"
    """Name of the builder."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the builder, for records."""
    bisection_gbps: float | None = None
    """Bandwidth one way across the narrowest even cut, where the builder knows it in closed form."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """Names that a file or graph gives nodes; fault targets may use them."""
    via_switches: Int32Array | None = None
    """Switches one of which every route visits on its way (Valiant routing); None: shortest routes."""

    def __post_init__(self) -> None:
        _check_columns(self)
        for item in fields(self):
            column = getattr(self, item.name)
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    # -- size ---------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> int:
        """NICs and switches."""
        return len(self.node_kind)

    @property
    def num_switches(self) -> int:
        """Switches of all planes and sites."""
        return self.num_nodes - self.num_nics

    @property
    def num_links(self) -> int:
        """Directed links, two per cable."""
        return len(self.link_source)

    @property
    def num_cables(self) -> int:
        """Cables, each of two directed links."""
        return self.num_links // 2

    # -- neighbours ---------------------------------------------------------------------------------------

    @cached_property
    def ports(self) -> PortTable:
        """Ports of all NICs."""
        found = np.flatnonzero(self.link_source < self.num_nics)
        order = np.lexsort((found, self.link_plane[found], self.link_source[found]))
        links = np.asarray(found[order], np.int32)
        nic = np.asarray(self.link_source[links], np.int32)
        offset = np.zeros(self.num_nics + 1, np.int64)
        np.cumsum(np.bincount(nic, minlength=self.num_nics), out=offset[1:])
        return PortTable(offset, nic, links, self.link_plane[links], self.link_target[links])

    def nic_links(self, nic: int) -> Int32Array:
        """Returns the links out of a NIC, one per port, ordered by plane.

        Raises:
            ConfigError: there is no such NIC.
        """
        if not 0 <= nic < self.num_nics:
            raise ConfigError(f"nic = {nic}: no such NIC; valid: 0 to {self.num_nics - 1}")
        return self.ports.link[self.ports.offset[nic] : self.ports.offset[nic + 1]]

    @cached_property
    def _out(self) -> tuple[Int64Array, Int32Array]:
        order = np.argsort(self.link_source, kind="stable").astype(np.int32)
        offset = np.zeros(self.num_nodes + 1, np.int64)
        np.cumsum(np.bincount(self.link_source, minlength=self.num_nodes), out=offset[1:])
        return offset, order

    @property
    def out_offset(self) -> Int64Array:
        """First of each node's entries in `out_order`, `int64[num_nodes + 1]`."""
        return self._out[0]

    @property
    def out_order(self) -> Int32Array:
        """All links, ordered by source and then by id."""
        return self._out[1]

    def out_links(self, node: int) -> Int32Array:
        """Returns the links out of a node in order of their ids: its ports."""
        return self.out_order[self.out_offset[node] : self.out_offset[node + 1]]

    @cached_property
    def node_number(self) -> Int32Array:
        """Number of each node among those of its tier and plane, as names have it."""
        return numbers_of(self.node_tier, self.node_plane)

    def node_name(self, node: int) -> str:
        """Returns the name a fault target has for a node: `nic/12`, or `t1/p0/5` for tier, plane and number."""
        return self.names.node(node)

    @cached_property
    def names(self) -> NodeNames:
        """Names of the nodes and links, without the network."""
        labels = {node: label for label, node in self.labels.items()}
        return NodeNames(self.node_tier, self.node_plane, self.node_number, labels)

    def link_name(self, link: int) -> str:
        """Returns `SOURCE->TARGET` of a directed link, with `#1` where it has parallels."""
        return self.names.link(link, self.link_source, self.link_target)

    # -- derived ------------------------------------------------------------------------------------------

    @cached_property
    def _routes(self) -> RouteTable:
        from farstep.fabric.topology.route_blocks import build_routes

        return build_routes(self)

    def routes(self, *, without_links: npt.ArrayLike | None = None) -> RouteTable:
        """Returns all shortest routes; computed once.

        Args:
            without_links: directed links that routing has noticed to be dead: routes around them, computed
                afresh. Source routes of MRC are never recomputed.
        """
        if without_links is None:
            return self._routes
        from farstep.fabric.topology.route_blocks import build_routes

        is_alive = np.ones(self.num_links, np.bool_)
        is_alive[np.asarray(without_links, np.int64)] = False
        return build_routes(self, is_alive=is_alive)

    def summary(self) -> TopologySummary:
        """Counts what the network is made of and what the loss of each part costs."""
        from farstep.fabric.topology.summary import summarize

        return summarize(self)

    def resolve(self, target: str) -> Int32Array:
        """Returns the directed links a fault target means, sorted.

        Args:
            target: such as `nic:12`, `nic-port:12/3`, `switch:t1/p0/5`, `link:t0/p0/3-t1/p0/7`,
                `transceiver:t0/p0/3/1`, `plane:2` or `site:east`; `*` and `?` are wildcards.

        Raises:
            ConfigError: the target cannot be read or names nothing of this network.
        """
        from farstep.fabric.topology.elements import resolve_links

        return resolve_links(self, target)

    def engine_columns(self) -> dict[str, npt.NDArray[Any]]:
        """Returns what a compiled engine reads; see `farstep.fabric.topology.columns.engine_columns`."""
        from farstep.fabric.topology.columns import engine_columns

        return engine_columns(self)

    def __repr__(self) -> str:
        return (
            f"Topology({self.name!r}, nics={self.num_nics}, switches={self.num_switches},"
            f" cables={self.num_cables}, planes={self.num_planes})"
        )


def _check_columns(topology: Topology) -> None:
    nodes, links = len(topology.node_kind), len(topology.link_source)
    for item in fields(topology):
        column = getattr(topology, item.name)
        if not isinstance(column, np.ndarray) or item.name == "via_switches":
            continue
        wanted = links if item.name.startswith("link_") else nodes
        if column.shape != (wanted,):
            raise ConfigError(f"topology.{item.name} has shape {column.shape}; valid: ({wanted},)")
    if not 1 <= topology.num_nics <= nodes:
        raise ConfigError(f"topology.num_nics = {topology.num_nics}; valid: 1 to the {nodes} nodes")
    is_nic = np.arange(nodes) < topology.num_nics
    if not np.array_equal(topology.node_kind == NodeKind.NIC, is_nic):
        raise ConfigError("topology.node_kind: the first num_nics nodes are NICs, the others switches")
    source, target = topology.link_source, topology.link_target
    if links % 2 or not np.array_equal(source[0::2], target[1::2]):
        raise ConfigError("topology.link_source: links 2i and 2i+1 are the two directions of cable i")
    if not np.array_equal(source[1::2], target[0::2]):
        raise ConfigError("topology.link_target: links 2i and 2i+1 are the two directions of cable i")
    if links and (min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= nodes):
        raise ConfigError(f"topology.link_source: a link ends outside of nodes 0 to {nodes - 1}")
    if np.any((source < topology.num_nics) & (target < topology.num_nics)):
        raise ConfigError("topology.link_source: a cable joins two NICs; put a switch between them")
    if links and not (topology.link_rate_gbps.min() > 0 and topology.link_latency_ns.min() >= 0):
        raise ConfigError("topology.link_rate_gbps: rates are above 0 and latencies not negative")
    if links and topology.link_cost.min() < 1:
        raise ConfigError("topology.link_cost: a link costs 1 or more")


def expect_topology(name: str, value: object) -> None:
    """Refuses what is no network.

    Raises:
        ConfigError: it is something else.
    """
    expect(name, value, Topology, "a network, as the builders of farstep.fabric.topology make it")
