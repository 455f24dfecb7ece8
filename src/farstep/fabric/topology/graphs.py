"""Arbitrary graphs: from a description of switches, NICs and links, and from networkx."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from farstep.fabric.errors import ConfigError, describe_validation_error, names, quoted
from farstep.fabric.expected import expect, expect_like
from farstep.fabric.tables import Table
from farstep.fabric.topology.checks import LATENCY_NS_MAX, RATE_GBPS_MAX
from farstep.fabric.topology.clos import LINK_LATENCY_NS
from farstep.fabric.topology.draft import CABLES_MAX, NODES_MAX, PLANES_MAX, TopologyDraft
from farstep.fabric.topology.joined_sites import FIBRE_KM_MAX, FIBRE_NS_PER_KM
from farstep.fabric.topology.model import Int32Array, Topology, expect_topology

if TYPE_CHECKING:
    import networkx as nx

SITE_DEFAULT = "local"

Rate = Annotated[float, Field(gt=0.0, le=RATE_GBPS_MAX)]
Latency = Annotated[float, Field(ge=0.0, le=LATENCY_NS_MAX)]
Plane = Annotated[int, Field(ge=-1, lt=PLANES_MAX)]


class GraphSwitch(Table):
    """A switch."""

    name: str = Field(min_length=1)
    tier: int | None = Field(default=None, ge=0, le=100)
    """Tier; left out: hops to the nearest NIC, less one."""
    plane: int = Field(default=0, ge=-1, lt=PLANES_MAX)
    """Plane; -1: it joins planes."""
    site: str = SITE_DEFAULT
    group: int = 0
    latency_ns: Latency = 0.0
    """Forwarding latency."""


class GraphNics(Table):
    """NICs that are attached alike."""

    switches: tuple[str, ...] = Field(min_length=1)
    """Switch of each port; a NIC of several planes names one of each."""
    count: int = Field(default=1, ge=1, le=NODES_MAX)
    site: str | None = None
    """Left out: that of the first switch."""
    group: int = 0
    rate_gbps: Rate = 100.0
    latency_ns: Latency = LINK_LATENCY_NS


class GraphLink(Table):
    """A cable between two switches, or several alike."""

    between: tuple[str, str]
    rate_gbps: Rate = 100.0
    latency_ns: Latency | None = None
    """Propagation; left out: that of `fibre_km`, or a microsecond."""
    fibre_km: float | None = Field(default=None, ge=0.0, le=FIBRE_KM_MAX)
    count: int = Field(default=1, ge=1, le=CABLES_MAX)
    plane: Plane | None = None
    """Left out: that of the switches."""
    cost: int = Field(default=1, ge=1, le=255)
    """What routing counts for it."""
    optical: bool = True

    @property
    def delay_ns(self) -> float:
        """Propagation."""
        if self.latency_ns is not None:
            return self.latency_ns
        return LINK_LATENCY_NS if self.fibre_km is None else self.fibre_km * FIBRE_NS_PER_KM


class GraphDescription(Table):
    """A network as a file describes it."""

    name: str = "graph"
    switches: tuple[GraphSwitch, ...] = Field(min_length=1, max_length=NODES_MAX)
    nics: tuple[GraphNics, ...] = Field(min_length=1, max_length=NODES_MAX)
    links: tuple[GraphLink, ...] = Field(default=(), max_length=CABLES_MAX)


def parse_graph(table: Mapping[str, Any], *, source: str = "graph") -> Topology:
    """Builds a network from a table of `switches`, `nics` and `links`.

    Args:
        table: as `GraphDescription` says.
        source: where it comes from, for messages.

    Raises:
        ConfigError: with one line per mistake, each starting with `source`.
    """
    try:
        description = GraphDescription.model_validate(table)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error, source)) from None
    return build_graph(description, source=source)


def build_graph(description: GraphDescription, *, source: str = "graph") -> Topology:
    """Builds a network from its description.

    Raises:
        ConfigError: a name is unknown or used twice, or a link joins planes that differ.
    """
    expect("description", description, GraphDescription, "a GraphDescription; parse_graph() reads tables")
    switches = description.switches
    index = {switch.name: number for number, switch in enumerate(switches)}
    if len(index) < len(switches):
        twice = next(switch.name for number, switch in enumerate(switches) if index[switch.name] != number)
        raise ConfigError(f"{source}: switches: the name {quoted(twice)} is used twice")
    attached = [
        [_find(index, name, f"{source}: nics[{number}].switches") for name in entry.switches]
        for number, entry in enumerate(description.nics)
    ]
    ends = [
        tuple(_find(index, name, f"{source}: links[{number}].between") for name in link.between)
        for number, link in enumerate(description.links)
    ]
    planes = [
        _plane(link, (switches[a].plane, switches[b].plane), f"{source}: links[{number}]")
        for number, (link, (a, b)) in enumerate(zip(description.links, ends, strict=True))
    ]
    for number, (a, b) in enumerate(ends):
        if a == b:
            raise ConfigError(f"{source}: links[{number}].between: a link joins two different switches")
    sites = tuple(dict.fromkeys([*(s.site for s in switches), *(n.site for n in description.nics if n.site)]))
    tiers = _tiers(switches, attached, ends)
    counts = [entry.count for entry in description.nics]
    num_nics = sum(counts)
    num_planes = 1 + max([0, *(switch.plane for switch in switches), *planes])
    nic_sites = [
        entry.site or switches[first].site
        for entry, (first, *_) in zip(description.nics, attached, strict=True)
    ]
    draft = TopologyDraft(
        num_nics,
        num_planes=num_planes,
        nic_site=np.repeat([sites.index(site) for site in nic_sites], counts),
        nic_group=np.repeat([entry.group for entry in description.nics], counts),
    )
    nodes = draft.add_switches(
        len(switches),
        tier=tiers,
        plane=[switch.plane for switch in switches],
        site=[sites.index(switch.site) for switch in switches],
        group=[switch.group for switch in switches],
        latency_ns=[switch.latency_ns for switch in switches],
    )
    _attach_nics(draft, description, attached, nodes)
    if ends:
        _add_links(draft, description, ends, planes, nodes)
    labels = {switch.name: int(node) for switch, node in zip(switches, nodes, strict=True)}
    return draft.build(description.name, kind="graph", site_names=sites, labels=labels)


def _attach_nics(
    draft: TopologyDraft, description: GraphDescription, attached: list[list[int]], nodes: Int32Array
) -> None:
    first = 0
    for entry, where in zip(description.nics, attached, strict=True):
        for switch in where:
            draft.add_cables(
                np.arange(first, first + entry.count),
                np.full(entry.count, nodes[switch]),
                rate_gbps=entry.rate_gbps,
                latency_ns=entry.latency_ns,
                plane=max(description.switches[switch].plane, 0),
            )
        first += entry.count


def _add_links(
    draft: TopologyDraft,
    description: GraphDescription,
    ends: list[tuple[int, ...]],
    planes: list[int],
    nodes: Int32Array,
) -> None:
    repeats = [link.count for link in description.links]
    near, far = (np.repeat(nodes[list(side)], repeats) for side in zip(*ends, strict=True))
    draft.add_cables(
        near,
        far,
        rate_gbps=np.repeat([link.rate_gbps for link in description.links], repeats),
        latency_ns=np.repeat([link.delay_ns for link in description.links], repeats),
        plane=np.repeat(planes, repeats),
        is_optical=np.repeat([link.optical for link in description.links], repeats),
        cost=np.repeat([link.cost for link in description.links], repeats),
    )


def from_networkx(graph: nx.Graph[Any], *, name: str = "graph") -> Topology:
    """Builds a network from a networkx graph or multigraph.

    Node attributes: `kind` (`"nic"` or `"switch"`, required), `tier`, `plane`, `site`, `group`, `latency_ns` as of
    `GraphSwitch`. Edge attributes: `rate_gbps`, `latency_ns`, `fibre_km`, `plane`, `cost`, `optical` as of
    `GraphLink`; others are left alone. NICs are numbered in the graph's order of nodes, and fault targets may name
    every node as the graph does.

    Raises:
        ConfigError: the graph is directed, a node has no kind, two NICs are joined, or a value cannot be used.
    """
    expect_like("graph", graph, ("is_directed", "nodes", "edges"), "a graph of networkx")
    if graph.is_directed():
        raise ConfigError(
            f"{name}: the graph is directed; valid: an undirected graph, whose edges are cables"
        )
    kinds = {}
    for node, attributes in graph.nodes(data=True):
        kind = attributes.get("kind")
        if kind not in ("nic", "switch"):
            raise ConfigError(f'{name}: node {quoted(node)}: kind = {quoted(kind)}; valid: "nic", "switch"')
        kinds[node] = kind
    ports: dict[Any, list[tuple[Any, dict[str, Any]]]] = {node: [] for node in kinds if kinds[node] == "nic"}
    links = []
    for one, other, attributes in graph.edges(data=True):
        near, far = (other, one) if kinds[one] == "switch" and kinds[other] == "nic" else (one, other)
        if kinds[far] == "nic":
            raise ConfigError(
                f"{name}: nodes {quoted(one)} and {quoted(other)} are both NICs; put a switch between them"
            )
        if kinds[near] == "nic":
            ports[near].append((far, attributes))
        else:
            links.append({"between": (str(near), str(far)), **_known(attributes, GraphLink)})
    nics = []
    for node, attached in ports.items():
        if not attached:
            raise ConfigError(f"{name}: NIC {quoted(node)} is joined to nothing")
        allowed = ("rate_gbps", "latency_ns")
        values = [
            {key: attributes[key] for key in allowed if key in attributes} for _, attributes in attached
        ]
        if any(value != values[0] for value in values):
            raise ConfigError(
                f"{name}: NIC {quoted(node)} has ports that differ in rate or latency; valid: equal ones"
            )
        own = {key: value for key, value in graph.nodes[node].items() if key in ("site", "group")}
        nics.append({"switches": [str(switch) for switch, _ in attached], **values[0], **own})
    switches = [
        {**_known(graph.nodes[node], GraphSwitch), "name": str(node)}
        for node in kinds
        if kinds[node] == "switch"
    ]
    topology = parse_graph({"name": name, "switches": switches, "nics": nics, "links": links}, source=name)
    labels = {**topology.labels, **{str(node): number for number, node in enumerate(ports)}}
    return replace(topology, labels=labels)


def to_networkx(topology: Topology) -> nx.MultiGraph[Any]:
    """Returns a network as a networkx multigraph: nodes by number, an edge per cable, with the attributes above.

    Raises:
        ConfigError: networkx is not installed.
    """
    expect_topology("topology", topology)
    try:
        import networkx as nx
    except ImportError:
        raise ConfigError('networkx is not installed; install it with: pip install "farstep[sim]"') from None
    graph: nx.MultiGraph[Any] = nx.MultiGraph(name=topology.name)
    for node in range(topology.num_nodes):
        graph.add_node(
            node,
            kind="nic" if node < topology.num_nics else "switch",
            name=topology.node_name(node),
            tier=int(topology.node_tier[node]),
            plane=int(topology.node_plane[node]),
            site=topology.site_names[topology.node_site[node]],
            group=int(topology.node_group[node]),
        )
    for link in range(0, topology.num_links, 2):
        graph.add_edge(
            int(topology.link_source[link]),
            int(topology.link_target[link]),
            key=link // 2,
            rate_gbps=float(topology.link_rate_gbps[link]),
            latency_ns=float(topology.link_latency_ns[link]),
            plane=int(topology.link_plane[link]),
        )
    return graph


def _known(attributes: Mapping[str, Any], model: type[Table]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if key in model.model_fields}


def _find(index: Mapping[str, int], name: str, key: str) -> int:
    if name not in index:
        known = list(index)
        shown = names(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
        raise ConfigError(f"{key}: no such switch {quoted(name)}; known switches: {shown}")
    return index[name]


def _plane(link: GraphLink, planes: tuple[int, int], key: str) -> int:
    own = {plane for plane in planes if plane >= 0}
    if link.plane is not None:
        return link.plane
    if len(own) > 1:
        raise ConfigError(f"{key}: joins planes {planes[0]} and {planes[1]}; valid: give its plane")
    return own.pop() if own else -1


def _tiers(
    switches: tuple[GraphSwitch, ...], attached: list[list[int]], ends: list[tuple[int, ...]]
) -> list[int]:
    """Returns the tiers given, and elsewhere the hops to the nearest switch with NICs."""
    neighbours: list[list[int]] = [[] for _ in switches]
    for a, b in ends:
        neighbours[a].append(b)
        neighbours[b].append(a)
    tier = {switch: 0 for where in attached for switch in where}
    queue = deque(tier)
    while queue:
        switch = queue.popleft()
        for other in neighbours[switch]:
            if other not in tier:
                tier[other] = min(tier[switch] + 1, 100)
                queue.append(other)
    return [
        tier.get(number, 0) if switch.tier is None else switch.tier for number, switch in enumerate(switches)
    ]
