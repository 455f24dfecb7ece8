"""What a folded Clos network is built of: rates and latencies of its cables, ports of its transceivers."""

from __future__ import annotations

from typing import TypedDict

from farstep.fabric.topology.checks import latency, rate
from farstep.fabric.topology.folded_clos import TierLinks

_CAGE_PORTS_MAX = 2**15 - 1
"""What the column of a topology holds."""


class Cabling(TypedDict):
    """The arguments of `FoldedClos` that do not depend on its shape."""

    tiers: tuple[TierLinks, ...]
    switch_latency_ns: tuple[float, ...]
    nic_cage_ports: int
    switch_cage_ports: int


def cabling(
    tiers: int,
    *,
    port_gbps: float,
    uplink_gbps: float | None = None,
    core_gbps: float | None = None,
    link_latency_ns: float,
    switch_latency_ns: float,
    transceiver_gbps: float,
    nic_copper: bool,
) -> Cabling:
    """Checks a builder's arguments and returns the cabling of two or three tiers.

    Args:
        tiers: tiers of switches.
        port_gbps: rate of NIC-T0 links.
        uplink_gbps: rate of T0-T1 links; None: as `port_gbps`.
        core_gbps: rate of T1-T2 links; None: as T0-T1 links.
        link_latency_ns: propagation of every link.
        switch_latency_ns: forwarding latency of every switch.
        transceiver_gbps: capacity of one transceiver.
        nic_copper: NICs are on copper cables.

    Raises:
        ConfigError: an argument cannot be used.
    """
    port_gbps = rate("port_gbps", port_gbps)
    uplink_gbps = port_gbps if uplink_gbps is None else rate("uplink_gbps", uplink_gbps)
    core_gbps = uplink_gbps if core_gbps is None else rate("core_gbps", core_gbps)
    transceiver_gbps = rate("transceiver_gbps", transceiver_gbps)
    link_latency_ns = latency("link_latency_ns", link_latency_ns)
    links = (
        TierLinks(rate_gbps=port_gbps, latency_ns=link_latency_ns, is_optical=not nic_copper),
        TierLinks(rate_gbps=uplink_gbps, latency_ns=link_latency_ns),
        TierLinks(rate_gbps=core_gbps, latency_ns=link_latency_ns),
    )
    return Cabling(
        tiers=links[:tiers],
        switch_latency_ns=(latency("switch_latency_ns", switch_latency_ns),) * tiers,
        nic_cage_ports=ports_per_cage(transceiver_gbps, port_gbps),
        switch_cage_ports=ports_per_cage(transceiver_gbps, uplink_gbps),
    )


def ports_per_cage(transceiver_gbps: float, port_gbps: float) -> int:
    """Returns how many ports share one transceiver."""
    return int(min(max(1, transceiver_gbps // port_gbps), _CAGE_PORTS_MAX))
