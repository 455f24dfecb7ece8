"""What the loss of one part costs: of a NIC, of a T0, of the whole network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from farstep.fabric.topology.elements import cage_numbers
from farstep.fabric.topology.model import NIC_TIER, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class BlastRadius:
    """What is lost with one element of a kind, in the worst case."""

    element: str
    """Kind of element, such as `T0-T1 link`."""
    count: int
    """How many there are."""
    nic_share: float
    """Part of its bandwidth the worst hit NIC loses, 0 to 1."""
    t0_share: float
    """Part of its bandwidth to other switches the worst hit switch with NICs loses, itself included if it dies."""
    fabric_share: float
    """Part of the bandwidth between two tiers that is lost, where it is most."""


class _Element(NamedTuple):
    kind: str
    cable: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    """Element each cable belongs to; a cable may be listed twice."""


class _Bandwidth(NamedTuple):
    """Bandwidth of each cable, and what it is part of."""

    rate: npt.NDArray[np.float64]
    nic: npt.NDArray[np.int64]
    """NIC at its end; -1: none."""
    boundary: npt.NDArray[np.int64]
    """Number of the pair of tiers it joins."""


def tier_name(tier: int) -> str:
    """Returns `NIC`, `T0`, `T1`..."""
    return "NIC" if tier == NIC_TIER else f"T{tier}"


def blast_radii(topology: Topology) -> tuple[BlastRadius, ...]:
    """Computes what each kind of element takes with it."""
    bandwidth = _bandwidth(topology)
    return tuple(_radius(topology, bandwidth, element) for element in _elements(topology))


def _bandwidth(topology: Topology) -> _Bandwidth:
    ends = np.stack([topology.link_source[0::2], topology.link_target[0::2]]).astype(np.int64)
    low = ends.min(axis=0)
    tiers = np.sort(topology.node_tier[ends].astype(np.int64), axis=0)
    _, boundary = np.unique(tiers[0] * 1024 + tiers[1], return_inverse=True)
    return _Bandwidth(topology.link_rate_gbps[0::2], np.where(low < topology.num_nics, low, -1), boundary)


def _elements(topology: Topology) -> Iterator[_Element]:
    source = topology.link_source[0::2].astype(np.int64)
    target = topology.link_target[0::2].astype(np.int64)
    tiers = np.sort(
        np.stack([topology.node_tier[source], topology.node_tier[target]]).astype(np.int64), axis=0
    )
    cable = np.arange(len(source))
    both, ends = np.tile(cable, 2), np.concatenate([source, target])
    end_tier = topology.node_tier[ends]
    yield _Element("NIC", both[end_tier == NIC_TIER], ends[end_tier == NIC_TIER])
    for pair in np.unique(tiers[0] * 1024 + tiers[1]):
        mine = cable[tiers[0] * 1024 + tiers[1] == pair]
        low, high = int(tiers[0][mine[0]]), int(tiers[1][mine[0]])
        kind = "NIC port" if low == NIC_TIER else f"{tier_name(low)}-{tier_name(high)} link"
        yield _Element(kind, mine, mine)
    for tier in np.unique(topology.node_tier[topology.num_nics :]):
        mine = end_tier == tier
        yield _Element(f"{tier_name(int(tier))} switch", both[mine], ends[mine])
    cage = cage_numbers(topology)
    both_cages = np.concatenate([cage[0::2], cage[1::2]]).astype(np.int64)
    number = ends * (int(both_cages.max(initial=0)) + 1) + both_cages
    for tier in np.unique(end_tier[both_cages >= 0]):
        mine = (end_tier == tier) & (both_cages >= 0)
        yield _Element(f"{tier_name(int(tier))} transceiver", both[mine], number[mine])
    if topology.num_planes > 1:
        yield _Element("plane", cable, topology.link_plane[0::2].astype(np.int64))


def _radius(topology: Topology, bandwidth: _Bandwidth, element: _Element) -> BlastRadius:
    count = len(_runs(element.number)[1])
    # A cable both of whose ends are in one element counts once.
    cables = len(bandwidth.rate)
    order, starts = _runs(element.number * cables + element.cable)
    number, cable = element.number[order[starts]], element.cable[order[starts]]
    has_nic = bandwidth.nic >= 0
    attached = np.zeros(topology.num_nodes, np.bool_)
    attached[topology.ports.switch] = True
    up = ~has_nic
    source, target = topology.link_source[0::2], topology.link_target[0::2]
    t0_number = np.concatenate([number, number])
    t0_cable = np.concatenate([cable, cable])
    t0 = np.concatenate([source[cable], target[cable]]).astype(np.int64)
    mine = up[t0_cable] & attached[t0]
    total_t0 = np.bincount(
        np.concatenate([source[up], target[up]]),
        weights=np.tile(bandwidth.rate[up], 2),
        minlength=topology.num_nodes,
    )
    return BlastRadius(
        element=element.kind,
        count=count,
        nic_share=_worst(
            number[has_nic[cable]],
            bandwidth.nic[cable[has_nic[cable]]],
            bandwidth.rate[cable[has_nic[cable]]],
            np.bincount(bandwidth.nic[has_nic], weights=bandwidth.rate[has_nic], minlength=topology.num_nics),
        ),
        t0_share=_worst(t0_number[mine], t0[mine], bandwidth.rate[t0_cable[mine]], total_t0),
        fabric_share=_worst(
            number,
            bandwidth.boundary[cable],
            bandwidth.rate[cable],
            np.bincount(bandwidth.boundary, weights=bandwidth.rate),
        ),
    )


def _worst(
    element: npt.NDArray[np.int64],
    victim: npt.NDArray[np.int64],
    rate: npt.NDArray[np.float64],
    total: npt.NDArray[Any],
) -> float:
    """Returns the largest part of its total that a victim loses with one element."""
    if not len(element):
        return 0.0
    order, starts = _runs(element * len(total) + victim)
    lost = np.add.reduceat(rate[order], starts)
    return float((lost / total[victim[order[starts]]]).max())


def _runs(key: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the order that sorts keys, and where each run of equal ones starts; fast on keys nearly sorted."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    return order, np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
