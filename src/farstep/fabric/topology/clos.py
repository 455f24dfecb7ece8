"""Two tiers: several planes of a Clos network, and leaf-spine.

Source of the shape: the MRC paper, section 2: NICs of eight 100 Gb/s ports, one per plane, each plane a two-tier
Clos of 512-port switches.
"""

from __future__ import annotations

import math

from farstep.fabric.errors import ConfigError
from farstep.fabric.topology.cabling import cabling
from farstep.fabric.topology.checks import RADIX_MAX, divides, number, whole
from farstep.fabric.topology.draft import NODES_MAX, PLANES_MAX
from farstep.fabric.topology.folded_clos import FoldedClos, build_folded_clos
from farstep.fabric.topology.model import Topology

LINK_LATENCY_NS = 1000.0
"""Propagation of a link unless said otherwise: htsim's, whose results ours are compared with."""

TRANSCEIVER_GBPS = 800.0
"""Capacity of one transceiver, in the generation the MRC paper describes."""


def clos(
    nics: int | None = None,
    *,
    planes: int = 8,
    radix: int | None = None,
    oversubscription: float = 1.0,
    port_gbps: float = 100.0,
    uplink_gbps: float | None = None,
    link_latency_ns: float = LINK_LATENCY_NS,
    switch_latency_ns: float = 0.0,
    transceiver_gbps: float = TRANSCEIVER_GBPS,
    nic_copper: bool = False,
) -> Topology:
    """Builds a multi-plane two-tier Clos network.

    Args:
        nics: NICs; None: as many as the radix allows.
        planes: planes, each with one port of every NIC.
        radix: ports of a switch; None: the smallest even number that holds the NICs at full T0s.
        oversubscription: NIC ports per uplink of a T0.
        port_gbps: rate of a NIC's port in one plane.
        uplink_gbps: rate of T0-T1 links; None: as `port_gbps`.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver; neighbouring ports of slower links share one.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used, or the NICs do not fit.

    Example:
        >>> clos(128, planes=2).num_switches
        48
    """
    planes = whole("planes", planes, low=1, high=PLANES_MAX)
    oversubscription = number("oversubscription", oversubscription, low=0.125, high=64.0)
    cables = cabling(
        2,
        port_gbps=port_gbps,
        uplink_gbps=uplink_gbps,
        link_latency_ns=link_latency_ns,
        switch_latency_ns=switch_latency_ns,
        transceiver_gbps=transceiver_gbps,
        nic_copper=nic_copper,
    )
    if nics is not None:
        nics = whole("nics", nics, low=2, high=NODES_MAX)
    if radix is None:
        radix = _radix_for(nics, oversubscription)
    radix = whole("radix", radix, low=2, high=RADIX_MAX)
    down, up = _split(radix, oversubscription)
    nics = down * radix if nics is None else nics
    num_t0 = _num_t0(nics, down, radix)
    shape = FoldedClos(
        num_planes=planes,
        num_pods=1,
        t0s_per_pod=num_t0,
        t0_down=down,
        t0_up=up,
        t1s_per_pod=fewest_above(num_t0, up, radix),
        **cables,
    )
    name = f"clos of {nics} NICs, {planes} x {cables['tiers'][0].rate_gbps:g}G, radix {radix}"
    parameters = {"nics": nics, "planes": planes, "radix": radix, "oversubscription": oversubscription}
    return build_folded_clos(shape, name=name, kind="clos", parameters=parameters)


def leaf_spine(
    *,
    leaves: int,
    spines: int,
    nics_per_leaf: int,
    links_per_spine: int = 1,
    planes: int = 1,
    port_gbps: float = 100.0,
    uplink_gbps: float | None = None,
    link_latency_ns: float = LINK_LATENCY_NS,
    switch_latency_ns: float = 0.0,
    transceiver_gbps: float = TRANSCEIVER_GBPS,
    nic_copper: bool = False,
) -> Topology:
    """Builds leaves that are each joined to every spine.

    Args:
        leaves: switches with NICs, per plane.
        spines: switches above, per plane.
        nics_per_leaf: NICs of a leaf.
        links_per_spine: parallel links between a leaf and a spine.
        planes: planes, each with one port of every NIC.
        port_gbps: rate of a NIC's port.
        uplink_gbps: rate of leaf-spine links; None: as `port_gbps`.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used.
    """
    leaves = whole("leaves", leaves, low=1, high=RADIX_MAX)
    spines = whole("spines", spines, low=1, high=RADIX_MAX)
    nics_per_leaf = whole("nics_per_leaf", nics_per_leaf, low=1, high=RADIX_MAX)
    links_per_spine = whole("links_per_spine", links_per_spine, low=1, high=1024)
    cables = cabling(
        2,
        port_gbps=port_gbps,
        uplink_gbps=uplink_gbps,
        link_latency_ns=link_latency_ns,
        switch_latency_ns=switch_latency_ns,
        transceiver_gbps=transceiver_gbps,
        nic_copper=nic_copper,
    )
    if leaves * nics_per_leaf < 2:
        raise ConfigError(f"nics_per_leaf = {nics_per_leaf}: a network has two NICs or more")
    shape = FoldedClos(
        num_planes=whole("planes", planes, low=1, high=PLANES_MAX),
        num_pods=1,
        t0s_per_pod=leaves,
        t0_down=nics_per_leaf,
        t0_up=spines * links_per_spine,
        t1s_per_pod=spines,
        **cables,
    )
    parameters = {"leaves": leaves, "spines": spines, "nics_per_leaf": nics_per_leaf, "planes": planes}
    name = f"leaf-spine of {shape.num_nics} NICs, {leaves} x {spines}"
    return build_folded_clos(shape, name=name, kind="leaf-spine", parameters=parameters)


def fewest_above(num_below: int, uplinks: int, radix: int) -> int:
    """Returns how many switches above hold all uplinks evenly: a divisor of the uplinks per switch below."""
    return next(
        count
        for count in range(1, uplinks + 1)
        if uplinks % count == 0 and num_below * uplinks // count <= radix
    )


def _split(radix: int, oversubscription: float) -> tuple[int, int]:
    up = math.floor(radix / (1.0 + oversubscription))
    down = round(up * oversubscription)
    if up < 1 or down < 1 or down + up > radix or abs(down - up * oversubscription) > 1e-9:
        raise ConfigError(
            f"oversubscription = {oversubscription:g}: a T0 of radix = {radix} cannot have {up} uplinks and"
            f" {up * oversubscription:g} NICs; valid: one that gives whole numbers of ports"
        )
    return down, up


def _num_t0(nics: int, down: int, radix: int) -> int:
    num_t0 = divides("NICs per T0", down, "nics", nics)
    if num_t0 > radix:
        raise ConfigError(
            f"nics = {nics}: {num_t0} T0s of {down} NICs do not fit T1s of radix = {radix};"
            f" valid: up to {down * radix} NICs"
        )
    return num_t0


def _radix_for(nics: int | None, oversubscription: float) -> int:
    """Returns the smallest radix of which full T0s hold the NICs."""
    if nics is None:
        raise ConfigError("nics = None: give nics or radix")
    for radix in range(2, RADIX_MAX, 2):
        try:
            down, _ = _split(radix, oversubscription)
        except ConfigError:
            continue
        if down * radix >= nics and nics % down == 0:
            return radix
        if down > nics:
            break
    raise ConfigError(f"nics = {nics}: no radix gives full T0s with oversubscription = {oversubscription:g}")
