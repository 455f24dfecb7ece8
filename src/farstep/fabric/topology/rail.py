"""Networks that follow the rails of servers: NIC `k` of every server near NIC `k` of the others.

Sources: NVIDIA's rail-optimised reference design (a server's NICs on as many leaves; a unit is as many servers as a
leaf has ports down); Alibaba HPN 7.0 (SIGCOMM 2024): NICs of two ports on two ToRs, each in a plane of its own.
"""

from __future__ import annotations

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.cabling import cabling
from farstep.fabric.topology.checks import RADIX_MAX, divides, even_radix, whole
from farstep.fabric.topology.clos import LINK_LATENCY_NS, TRANSCEIVER_GBPS, fewest_above
from farstep.fabric.topology.draft import NODES_MAX, PLANES_MAX
from farstep.fabric.topology.folded_clos import FoldedClos, SwitchCounts, build_folded_clos
from farstep.fabric.topology.model import Topology

DUAL_TOR_PLANES = 2


def rail_optimised(
    nics: int,
    *,
    rails: int = 8,
    radix: int = 64,
    tiers: int = 2,
    planes: int = 1,
    port_gbps: float = 400.0,
    link_latency_ns: float = LINK_LATENCY_NS,
    switch_latency_ns: float = 0.0,
    transceiver_gbps: float = TRANSCEIVER_GBPS,
    nic_copper: bool = False,
) -> Topology:
    """Builds a rail-optimised network: a fat tree in which each NIC of a server is on a leaf of its own.

    NIC `k` of server `s` is NIC `s * rails + k`. Servers of a unit (as many as a leaf has ports down) reach each
    other over one leaf in the same rail.

    Args:
        nics: NICs: a multiple of `rails * radix / 2`, the NICs of a unit.
        rails: NICs of a server.
        radix: ports of a switch.
        tiers: tiers of switches, 2 or 3; with 3, a pod is a fat tree's (`radix / 2` leaves).
        planes: planes, each with one port of every NIC.
        port_gbps: rate of every link.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used, or the NICs do not fit.

    Example:
        >>> rail_optimised(2048).num_switches  # 64 leaves, 32 spines
        96
    """
    nics = whole("nics", nics, low=2, high=NODES_MAX)
    rails = whole("rails", rails, low=1, high=256)
    radix = even_radix(radix)
    tiers = whole("tiers", tiers, low=2, high=3)
    half = radix // 2
    leaves, per_pod = _leaves(nics, rails, radix, tiers)
    cables = cabling(
        tiers,
        port_gbps=port_gbps,
        link_latency_ns=link_latency_ns,
        switch_latency_ns=switch_latency_ns,
        transceiver_gbps=transceiver_gbps,
        nic_copper=nic_copper,
    )
    spines = fewest_above(per_pod, half, radix if tiers == 2 else half)
    pods = leaves // per_pod
    t1_up = per_pod * half // spines if tiers == 3 else 0
    shape = FoldedClos(
        num_planes=whole("planes", planes, low=1, high=PLANES_MAX),
        num_pods=pods,
        t0s_per_pod=per_pod,
        t0_down=half,
        t0_up=half,
        t1s_per_pod=spines,
        t1_up=t1_up,
        num_t2=fewest_above(pods, spines * t1_up, radix) if tiers == 3 else 0,
        **cables,
        rails=rails,
    )
    name = f"rail-optimised network of {nics} NICs, {rails} rails, {tiers} tiers"
    parameters = {"nics": nics, "rails": rails, "radix": radix, "tiers": tiers, "planes": planes}
    return build_folded_clos(shape, name=name, kind="rail-optimised", parameters=parameters)


def _leaves(nics: int, rails: int, radix: int, tiers: int) -> tuple[int, int]:
    """Returns the leaves of a plane and those of a pod."""
    half = radix // 2
    leaves = divides(f"NICs per unit ({rails} rails of {half} servers)", rails * half, "nics", nics) * rails
    most = radix if tiers == 2 else radix * half
    if leaves > most:
        raise ConfigError(f"nics = {nics}: {tiers} tiers of radix = {radix} hold up to {most * half}")
    if tiers == 2:
        return leaves, leaves
    if half % rails:
        raise ConfigError(f"rails = {rails}: valid with three tiers: a divisor of the {half} leaves of a pod")
    divides("NICs per pod", half * half, "nics", nics)
    return leaves, half


def dual_tor(
    segments: int = 15,
    *,
    hosts_per_segment: int = 128,
    rails: int = 8,
    pods: int = 1,
    uplinks: int = 60,
    core_uplinks: int = 8,
    port_gbps: float = 200.0,
    uplink_gbps: float = 400.0,
    core_radix: int = 128,
    link_latency_ns: float = LINK_LATENCY_NS,
    switch_latency_ns: float = 0.0,
    transceiver_gbps: float = TRANSCEIVER_GBPS,
    nic_copper: bool = False,
) -> Topology:
    """Builds a dual-ToR, dual-plane network; the defaults are one pod of HPN 7.0 (15,360 GPUs).

    Each NIC has two ports, on two ToRs in two planes that meet nowhere above. NIC `k` of the hosts of a segment
    is on the pair of ToRs of rail `k`. Every ToR has one link to each aggregation switch of its plane and pod.

    Args:
        segments: segments of a pod.
        hosts_per_segment: hosts of a segment: the NIC ports of a ToR.
        rails: NICs of a host.
        pods: pods; several are joined by core switches.
        uplinks: uplinks of a ToR: aggregation switches per plane and pod.
        core_uplinks: uplinks of an aggregation switch, where there are several pods (120 links down over 8 up is
            the 15:1 of HPN 7.0).
        port_gbps: rate of a NIC's port.
        uplink_gbps: rate of ToR-aggregation and aggregation-core links.
        core_radix: ports of a core switch.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used.

    Example:
        >>> dual_tor(segments=2, hosts_per_segment=4, uplinks=4).num_nics
        64
    """
    segments = whole("segments", segments, low=1, high=4096)
    rails = whole("rails", rails, low=1, high=256)
    pods = whole("pods", pods, low=1, high=1024)
    down = whole("hosts_per_segment", hosts_per_segment, low=1, high=4096)
    counts = _dual_tor_counts(pods, segments * rails, down, uplinks, core_uplinks, core_radix)
    if pods * segments * down * rails > NODES_MAX:
        raise ConfigError(f"segments = {segments}: makes more than {NODES_MAX} NICs")
    cables = cabling(
        3 if pods > 1 else 2,
        port_gbps=port_gbps,
        uplink_gbps=uplink_gbps,
        link_latency_ns=link_latency_ns,
        switch_latency_ns=switch_latency_ns,
        transceiver_gbps=transceiver_gbps,
        nic_copper=nic_copper,
    )
    shape = FoldedClos(num_planes=DUAL_TOR_PLANES, **counts, **cables, rails=rails)
    name = f"dual-ToR network of {shape.num_nics} NICs, {pods} pods"
    parameters = {"segments": segments, "hosts_per_segment": down, "rails": rails, "pods": pods}
    return build_folded_clos(shape, name=name, kind="dual-tor", parameters=parameters)


def _dual_tor_counts(
    pods: int, tors: int, down: int, uplinks: int, core_uplinks: int, core_radix: int
) -> SwitchCounts:
    uplinks = whole("uplinks", uplinks, low=1, high=1024)
    core_uplinks = whole("core_uplinks", core_uplinks, low=1, high=1024)
    core_radix = whole("core_radix", core_radix, low=pods, high=RADIX_MAX, why="a link to each pod or more")
    return SwitchCounts(
        num_pods=pods,
        t0s_per_pod=tors,
        t0_down=down,
        t0_up=uplinks,
        t1s_per_pod=uplinks,
        t1_up=core_uplinks if pods > 1 else 0,
        num_t2=fewest_above(pods, uplinks * core_uplinks, core_radix) if pods > 1 else 0,
    )
