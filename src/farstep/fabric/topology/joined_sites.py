"""Several sites, each with a network of its own, joined by long fibres between border switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from farstep.fabric.errors import ConfigError, describe_validation_error, names, quoted
from farstep.fabric.expected import expect, expect_list
from farstep.fabric.sites import check_name
from farstep.fabric.tables import Table
from farstep.fabric.topology.checks import RATE_GBPS_MAX, latency, rate, whole
from farstep.fabric.topology.draft import TopologyDraft
from farstep.fabric.topology.model import Topology, expect_topology

FIBRE_NS_PER_KM = 4897.4
"""One kilometre of standard single-mode fibre at 1,550 nm: group index 1.4682, 204,190 km/s."""

JOINED_PLANE = -1
"""Plane of a border switch that serves all planes."""

BORDER_COST = 100
"""What routing counts for a cable to a border switch, so that no route within a site goes through one: more than half
of the longest route within a site (32 hops in the largest published torus)."""

FIBRE_KM_MAX = 40_000.0
"""Around the world."""


class WanLink(Table):
    """Equal parallel links between two sites."""

    between: tuple[str, str]
    """The two sites."""
    fibre_km: float | None = Field(default=None, ge=0.0, le=FIBRE_KM_MAX)
    """Length of the cable (not of the great circle), which sets the delay..."""
    delay_ms: float | None = Field(default=None, ge=0.0, le=10_000.0)
    """...or the one-way delay itself."""
    rate_gbps: float = Field(default=400.0, gt=0.0, le=RATE_GBPS_MAX)
    """Rate of one link."""
    links: int = Field(default=1, ge=1, le=65_536)
    """Parallel links; link `i` is in plane `i % planes`, unless border switches join the planes."""

    @property
    def latency_ns(self) -> float:
        """One-way delay."""
        if self.delay_ms is not None:
            return self.delay_ms * 1e6
        return (self.fibre_km or 0.0) * FIBRE_NS_PER_KM


class _Site(NamedTuple):
    name: str
    topology: Topology
    first_nic: int
    nodes: npt.NDArray[np.int32]
    """New number of each of its nodes."""


def multi_site(
    sites: Mapping[str, Topology],
    wan: Sequence[WanLink | Mapping[str, Any]],
    *,
    borders: int = 1,
    border_gbps: float | None = None,
    border_latency_ns: float = 0.0,
    cable_latency_ns: float = 500.0,
    join_planes: bool = False,
) -> Topology:
    """Joins networks of sites, which may differ in size and kind, by WAN links.

    NICs are numbered site by site in the order given. Each site gets border switches, each with one cable to every
    switch of the site's highest tier in its plane; WAN links end at them in turn.

    Args:
        sites: name and network of each site; each of one site itself.
        wan: links between sites, as `WanLink` or tables of its keys.
        borders: border switches per site and plane.
        border_gbps: rate of a cable to a border switch; None: the fastest rate of the site.
        border_latency_ns: forwarding latency of a border switch.
        cable_latency_ns: propagation of a cable to a border switch.
        join_planes: border switches serve all planes, so that sites may have different numbers of planes and
            WAN links need not be as many as planes. Otherwise planes stay disjoint over all sites.

    Raises:
        ConfigError: an argument cannot be used, or a plane would have no WAN link.
    """
    _check_sites(sites)
    links = _wan_links(wan, tuple(sites))
    borders = whole("borders", borders, low=1, high=1024)
    cable_latency_ns = latency("cable_latency_ns", cable_latency_ns)
    planes = {name: site.num_planes for name, site in sites.items()}
    num_planes = max(planes.values())
    if not join_planes and len(set(planes.values())) > 1:
        raise ConfigError(
            f"sites: numbers of planes differ ({planes}); valid: equal ones, or join_planes = true"
        )
    draft, placed = _copy_sites(sites, num_planes)
    border_planes = [JOINED_PLANE] if join_planes else list(range(num_planes))
    routers = _add_borders(
        draft, placed, borders, border_planes, latency("border_latency_ns", border_latency_ns)
    )
    for site in placed:
        fastest = float(site.topology.link_rate_gbps.max())
        rate_gbps = fastest if border_gbps is None else rate("border_gbps", border_gbps)
        for plane in range(site.topology.num_planes):
            border = routers[site.name, JOINED_PLANE if join_planes else plane]
            above = site.nodes[_highest(site.topology, plane)]
            draft.add_cables(
                np.repeat(above, borders),
                np.tile(border, len(above)),
                rate_gbps=rate_gbps,
                latency_ns=cable_latency_ns,
                plane=plane,
                cost=BORDER_COST,
            )
    for link in links:
        _add_wan_link(draft, link, routers, num_planes, join_planes)
    return draft.build(
        f"{len(sites)} sites: {', '.join(sites)}",
        kind="multi-site",
        parameters={
            "sites": {name: dict(site.parameters) for name, site in sites.items()},
            "wan": [link.model_dump(mode="json") for link in links],
        },
        site_names=tuple(sites),
    )


def _check_sites(sites: Mapping[str, Topology]) -> None:
    expect("sites", sites, Mapping, "a table of networks by name")
    if len(sites) < 2:
        raise ConfigError(f"sites has {len(sites)} entries; valid: two or more")
    for name, site in sites.items():
        try:
            check_name(name)
        except ValueError as error:
            raise ConfigError(f"sites: {quoted(name)}: {error}") from None
        expect_topology(f"sites.{name}", site)
        if len(site.site_names) > 1 or site.via_switches is not None:
            raise ConfigError(f"sites.{name}: valid: a network of one site, with shortest routes")


def _wan_links(wan: Sequence[WanLink | Mapping[str, Any]], sites: tuple[str, ...]) -> list[WanLink]:
    links = []
    for number, item in enumerate(
        expect_list("wan", wan, 'links, such as {"between": ["a", "b"], "delay_ms": 1}')
    ):
        key = f"wan[{number}]"
        try:
            link = item if isinstance(item, WanLink) else WanLink.model_validate(item)
        except ValidationError as error:
            raise ConfigError(describe_validation_error(error, key)) from None
        for site in link.between:
            if site not in sites:
                raise ConfigError(f"{key}.between: no such site {quoted(site)}; known sites: {names(sites)}")
        if link.between[0] == link.between[1]:
            raise ConfigError(f"{key}.between = {list(link.between)}: name two different sites")
        if (link.fibre_km is None) == (link.delay_ms is None):
            raise ConfigError(f"{key}: give fibre_km or delay_ms, and not both")
        links.append(link)
    return links


def _copy_sites(sites: Mapping[str, Topology], num_planes: int) -> tuple[TopologyDraft, list[_Site]]:
    counts = [site.num_nics for site in sites.values()]
    first = np.cumsum([0, *counts])
    number = np.repeat(np.arange(len(sites)), counts)
    group = np.concatenate([site.node_group[: site.num_nics] for site in sites.values()])
    cages = max(int(site.node_cage_ports[0]) for site in sites.values())
    draft = TopologyDraft(
        int(first[-1]), num_planes=num_planes, nic_site=number, nic_group=group, nic_cage_ports=cages
    )
    placed = []
    for index, (name, site) in enumerate(sites.items()):
        above = slice(site.num_nics, None)
        switches = draft.add_switches(
            site.num_switches,
            tier=site.node_tier[above],
            plane=site.node_plane[above],
            site=index,
            group=site.node_group[above],
            latency_ns=site.switch_latency_ns[above],
            cage_ports=site.node_cage_ports[above],
        )
        nics = np.arange(first[index], first[index + 1], dtype=np.int32)
        placed.append(_Site(name, site, int(first[index]), np.concatenate([nics, switches])))
    for entry in placed:
        site, even = entry.topology, slice(0, None, 2)
        draft.add_cables(
            entry.nodes[site.link_source[even]],
            entry.nodes[site.link_target[even]],
            rate_gbps=site.link_rate_gbps[even],
            latency_ns=site.link_latency_ns[even],
            plane=site.link_plane[even],
            is_optical=site.link_is_optical[even],
            cost=site.link_cost[even],
        )
    return draft, placed


def _add_borders(
    draft: TopologyDraft, placed: Sequence[_Site], count: int, planes: Sequence[int], latency_ns: float
) -> dict[tuple[str, int], npt.NDArray[np.int32]]:
    """Returns the border switches of each site and plane."""
    top = max(int(site.topology.node_tier.max()) for site in placed)
    routers = {}
    for number, site in enumerate(placed):
        for plane in planes:
            routers[site.name, plane] = draft.add_switches(
                count, tier=top + 1, plane=plane, site=number, latency_ns=latency_ns
            )
    return routers


def _highest(site: Topology, plane: int) -> npt.NDArray[np.int64]:
    """Returns the switches of the highest tier of a plane."""
    mine = (site.node_plane == plane) & (np.arange(site.num_nodes) >= site.num_nics)
    return np.flatnonzero(mine & (site.node_tier == site.node_tier[mine].max(initial=0)))


def _add_wan_link(
    draft: TopologyDraft,
    link: WanLink,
    routers: Mapping[tuple[str, int], npt.NDArray[np.int32]],
    num_planes: int,
    join_planes: bool,
) -> None:
    turns = 1 if join_planes else num_planes
    if link.links < turns:
        raise ConfigError(
            f"wan: {link.links} links between {' and '.join(link.between)} leave planes without any;"
            f" valid: {num_planes} or more for {num_planes} planes, or join_planes = true"
        )
    near, far = link.between
    for turn in range(turns):
        plane = JOINED_PLANE if join_planes else turn
        place = np.arange(turn, link.links, turns) // turns
        draft.add_cables(
            routers[near, plane][place % len(routers[near, plane])],
            routers[far, plane][place % len(routers[far, plane])],
            rate_gbps=link.rate_gbps,
            latency_ns=link.latency_ns,
            plane=plane,
        )
