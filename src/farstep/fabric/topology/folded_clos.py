"""Folded Clos networks of two or three tiers: the wiring behind Clos planes, fat trees and leaf-spine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from farstep.fabric.topology.draft import TopologyDraft
from farstep.fabric.topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLinks:
    """Cables between a tier and the one below."""

    rate_gbps: float
    latency_ns: float
    is_optical: bool = True


class SwitchCounts(TypedDict):
    """The arguments of `FoldedClos` that count switches and their ports."""

    num_pods: int
    t0s_per_pod: int
    t0_down: int
    t0_up: int
    t1s_per_pod: int
    t1_up: int
    num_t2: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedClos:
    """Shape of each plane of a folded Clos network.

    NIC `i` is on T0 `i // t0_down`. Uplink `u` of a T0 leads to T1 `u % t1s_per_pod` of its pod; uplink `k` of the
    T1 at place `a` of its pod to T2 `(a * t1_up + k) % num_t2`. More uplinks than switches above make parallel
    links.
    """

    num_planes: int
    num_pods: int
    t0s_per_pod: int
    t0_down: int
    t0_up: int
    t1s_per_pod: int
    t1_up: int = 0
    num_t2: int = 0
    tiers: tuple[TierLinks, ...]
    """Cables NIC-T0, T0-T1 and, with three tiers, T1-T2."""
    switch_latency_ns: tuple[float, ...]
    """Per tier of switches."""
    nic_cage_ports: int = 1
    switch_cage_ports: int = 1
    rails: int = 0
    """With rails, NIC `k` of a server is on the T0 of rail `k`: of every `rails` T0s in turn the `k`th, and a node's
    group is its rail (0 for tiers above). Without, NICs fill T0s in order and the group is the pod."""

    @property
    def num_t0(self) -> int:
        """T0s of a plane."""
        return self.num_pods * self.t0s_per_pod

    def t0_of_nics(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns the T0 of each NIC, as numbered in a plane."""
        nics = np.arange(self.num_nics)
        if not self.rails:
            return nics // self.t0_down
        server, rail = np.divmod(nics, self.rails)
        return server // self.t0_down * self.rails + rail

    @property
    def num_nics(self) -> int:
        """NICs."""
        return self.num_pods * self.t0s_per_pod * self.t0_down

    @property
    def bisection_gbps(self) -> float:
        """Bandwidth one way between two halves that share no T0, or no pod, over all planes."""
        half_t0s = self.num_t0 / 2
        narrowest = half_t0s * min(
            self.t0_down * self.tiers[0].rate_gbps, self.t0_up * self.tiers[1].rate_gbps
        )
        if self.num_t2:
            half_t1s = self.num_pods * self.t1s_per_pod / 2
            narrowest = min(narrowest, half_t1s * self.t1_up * self.tiers[2].rate_gbps)
        return narrowest * self.num_planes


def build_folded_clos(shape: FoldedClos, *, name: str, kind: str, parameters: Mapping[str, Any]) -> Topology:
    """Builds the planes, all wired alike; links of a plane are numbered tier by tier from below."""
    num_t0 = shape.num_t0
    num_t1 = shape.num_pods * shape.t1s_per_pod
    nics = np.arange(shape.num_nics)
    draft = TopologyDraft(
        shape.num_nics,
        num_planes=shape.num_planes,
        nic_group=nics % shape.rails if shape.rails else nics // (shape.t0_down * shape.t0s_per_pod),
        nic_cage_ports=shape.nic_cage_ports,
    )
    t0_of_nic = shape.t0_of_nics()
    t0_group = np.arange(num_t0) % shape.rails if shape.rails else np.arange(num_t0) // shape.t0s_per_pod
    uplink = np.arange(num_t0 * shape.t0_up)
    t0_of, number = np.divmod(uplink, shape.t0_up)
    t1_of = t0_of // shape.t0s_per_pod * shape.t1s_per_pod + number % shape.t1s_per_pod
    for plane in range(shape.num_planes):
        t0 = _add_tier(draft, shape, 0, num_t0, plane, t0_group)
        t1 = _add_tier(draft, shape, 1, num_t1, plane, np.arange(num_t1) // shape.t1s_per_pod)
        _add_cables(draft, nics, t0[t0_of_nic], shape.tiers[0], plane)
        _add_cables(draft, t0[t0_of], t1[t1_of], shape.tiers[1], plane)
        if shape.num_t2:
            t2 = _add_tier(draft, shape, 2, shape.num_t2, plane, np.zeros(shape.num_t2, np.int32))
            upper = np.arange(num_t1 * shape.t1_up)
            t1_number = upper // shape.t1_up
            column = (t1_number % shape.t1s_per_pod) * shape.t1_up + upper % shape.t1_up
            _add_cables(draft, t1[t1_number], t2[column % shape.num_t2], shape.tiers[2], plane)
    return draft.build(name, kind=kind, parameters=parameters, bisection_gbps=shape.bisection_gbps)


def _add_tier(
    draft: TopologyDraft, shape: FoldedClos, tier: int, count: int, plane: int, group: np.ndarray[Any, Any]
) -> np.ndarray[Any, np.dtype[np.int32]]:
    return draft.add_switches(
        count,
        tier=tier,
        plane=plane,
        group=group,
        latency_ns=shape.switch_latency_ns[tier],
        cage_ports=shape.switch_cage_ports,
    )


def _add_cables(draft: TopologyDraft, source: Any, target: Any, links: TierLinks, plane: int) -> None:
    draft.add_cables(
        source,
        target,
        rate_gbps=links.rate_gbps,
        latency_ns=links.latency_ns,
        plane=plane,
        is_optical=links.is_optical,
    )
