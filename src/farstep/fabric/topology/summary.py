"""What a network counts up to: its parts, its paths, its bandwidth, and what the loss of a part costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from farstep.fabric.topology.blast import BlastRadius, blast_radii, tier_name
from farstep.fabric.topology.elements import cage_numbers
from farstep.fabric.topology.model import Topology
from farstep.fabric.topology.path_counts import PathClass, path_classes

__all__ = ["BlastRadius", "LinkCount", "PathClass", "TopologySummary", "summarize"]

CLASSES_SHOWN_MAX = 6
"""Lengths of paths that the text lists one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCount:
    """Cables between two tiers."""

    lower: str
    """`NIC`, `T0`, `T1`..."""
    upper: str
    cables: int
    optical: int
    """Cables of these that are optical."""
    rates_gbps: tuple[float, ...]
    """Distinct rates, ascending."""
    total_gbps: float
    """Of all cables together, one way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySummary:
    """Figures of a network; `str` renders them as text."""

    name: str
    nics: int
    nic_gbps: tuple[float, float]
    """All ports of a NIC together: of the slowest and of the fastest NIC."""
    planes: int
    switches: dict[str, int]
    """Per tier (`T0`...) over all planes."""
    links: tuple[LinkCount, ...]
    transceivers: int
    """Modules in cages, at both ends of optical cables; cables of one cage share them."""
    paths: tuple[PathClass, ...]
    """Per plane, by number of links; planes built alike counted once."""
    bisection_gbps: float | None
    """Bandwidth one way across the narrowest even cut, over all planes; None where there is no closed form."""
    wan_gbps: dict[tuple[str, str], float]
    """Bandwidth one way of the cables between each two sites."""
    blast: tuple[BlastRadius, ...]

    @property
    def num_switches(self) -> int:
        """Switches of all tiers."""
        return sum(self.switches.values())

    @property
    def paths_min(self) -> int:
        """Fewest paths between two NICs in a plane."""
        return min(entry.fewest for entry in self.paths)

    @property
    def paths_max(self) -> int:
        """Most paths between two NICs in a plane."""
        return max(entry.most for entry in self.paths)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def summarize(topology: Topology) -> TopologySummary:
    """See `Topology.summary`."""
    ports = topology.ports
    nic_gbps = np.bincount(
        ports.nic, weights=topology.link_rate_gbps[ports.link], minlength=topology.num_nics
    )
    tiers = topology.node_tier[topology.num_nics :]
    return TopologySummary(
        name=topology.name,
        nics=topology.num_nics,
        nic_gbps=(float(nic_gbps.min()), float(nic_gbps.max())),
        planes=topology.num_planes,
        switches={tier_name(int(tier)): int((tiers == tier).sum()) for tier in np.unique(tiers)},
        links=tuple(_link_counts(topology)),
        transceivers=_transceivers(topology),
        paths=path_classes(topology),
        bisection_gbps=topology.bisection_gbps,
        wan_gbps=_wan(topology),
        blast=blast_radii(topology),
    )


def _link_counts(topology: Topology) -> Iterator[LinkCount]:
    source, target = topology.link_source[0::2], topology.link_target[0::2]
    tiers = np.stack([topology.node_tier[source], topology.node_tier[target]]).astype(np.int32)
    lower, upper = tiers.min(axis=0), tiers.max(axis=0)
    rate, optical = topology.link_rate_gbps[0::2], topology.link_is_optical[0::2]
    for pair in np.unique((lower + 1) * 1024 + upper + 1):
        mine = (lower + 1) * 1024 + upper + 1 == pair
        yield LinkCount(
            lower=tier_name(int(pair) // 1024 - 1),
            upper=tier_name(int(pair) % 1024 - 1),
            cables=int(mine.sum()),
            optical=int(optical[mine].sum()),
            rates_gbps=tuple(float(value) for value in np.unique(rate[mine])),
            total_gbps=float(rate[mine].sum()),
        )


def _transceivers(topology: Topology) -> int:
    cage = cage_numbers(topology)
    links = np.flatnonzero(cage >= 0)
    key = topology.link_source[links].astype(np.int64) * (int(cage.max(initial=0)) + 1) + cage[links]
    return len(np.unique(key))


def _wan(topology: Topology) -> dict[tuple[str, str], float]:
    near = topology.node_site[topology.link_source[0::2]]
    far = topology.node_site[topology.link_target[0::2]]
    rate: npt.NDArray[np.float64] = topology.link_rate_gbps[0::2]
    totals = {}
    for one, other in combinations(range(len(topology.site_names)), 2):
        joins = ((near == one) & (far == other)) | ((near == other) & (far == one))
        if joins.any():
            totals[topology.site_names[one], topology.site_names[other]] = float(rate[joins].sum())
    return totals


def _lines(summary: TopologySummary) -> Iterator[str]:
    slowest, fastest = summary.nic_gbps
    each = f"{slowest:g}" if slowest == fastest else f"{slowest:g} to {fastest:g}"
    yield summary.name
    yield f"  NICs           {summary.nics:,} of {each} Gb/s in {summary.planes} planes"
    tiers = ", ".join(f"{tier} {count:,}" for tier, count in summary.switches.items())
    yield f"  switches       {summary.num_switches:,} ({tiers})"
    for link in summary.links:
        rates = "/".join(f"{rate:g}" for rate in link.rates_gbps)
        medium = "optical" if link.optical == link.cables else "copper" if not link.optical else "mixed"
        yield f"  {link.lower + ' - ' + link.upper:<14} {link.cables:,} cables of {rates} Gb/s, {medium}"
    yield f"  transceivers   {summary.transceivers:,} ({summary.transceivers / summary.nics:.3g} a NIC)"
    if len(summary.paths) > CLASSES_SHOWN_MAX:
        shortest, longest = summary.paths[0].links, summary.paths[-1].links
        count = f"{summary.paths_min:,} to {summary.paths_max:,}"
        yield f"  paths          {count} of {shortest} to {longest} links a plane"
    else:
        for paths in summary.paths:
            count = (
                f"{paths.fewest:,}" if paths.fewest == paths.most else f"{paths.fewest:,} to {paths.most:,}"
            )
            yield f"  paths          {count} of {paths.links} links a plane, for {paths.share:.2%} of pairs"
    if summary.bisection_gbps is not None:
        yield f"  bisection      {summary.bisection_gbps / 1000:,.6g} Tb/s one way"
    for (one, other), gbps in summary.wan_gbps.items():
        yield f"  {one + ' - ' + other:<14} {gbps:,.6g} Gb/s one way"
    yield "  loss of one:            of a NIC   of a T0's uplinks   of the network"
    for part in summary.blast:
        shares = f"{part.nic_share:>8.2%}   {part.t0_share:>17.2%}   {part.fabric_share:>14.4%}"
        yield f"    {part.element:<20} {shares}   ({part.count:,})"
