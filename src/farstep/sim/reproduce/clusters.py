"""The clusters of the MRC paper, cut down, and what of them is assumed.

One set of latencies holds for everything: a switch takes 600 ns from port to port and a cable 100 ns (20 m), as vendors
of such switches say and machine rooms are wide. What a host takes is not published; it is whatever makes a 2 B write
within a rack take the 5.09 us of Q9, and is set by nothing else.
"""

from __future__ import annotations

import functools
from typing import Any

from farstep.fabric.topology import Topology, leaf_spine
from farstep.sim.reproduce.runs import run, streams

__all__ = [
    "CABLE_NS",
    "CLUSTER_B_GBPS",
    "PAYLOAD_SHARE",
    "Q9_LOCAL_US",
    "SWITCH_NS",
    "cluster_b",
    "cluster_c",
    "cluster_d",
    "four_planes",
    "host",
    "host_latency_ns",
    "one_way_us",
    "rival_host",
]

SWITCH_NS = 600.0
CABLE_NS = 100.0
Q9_LOCAL_US = 5.09
CLUSTER_B_GBPS = 800.0
SMALL_MTU_BYTES = 256
PAYLOAD_SHARE = 4096 / 4262
"""Of a packet with SRv6 on the wire."""

_LATENCIES: dict[str, Any] = {"link_latency_ns": CABLE_NS, "switch_latency_ns": SWITCH_NS}


@functools.lru_cache(maxsize=8)
def cluster_b(leaves: int = 4, spines: int = 16) -> Topology:
    """GB200 with 800G NICs as 8 x 100G, two tiers, as many NICs on a T0 as it has T1s."""
    return leaf_spine(
        leaves=leaves, spines=spines, nics_per_leaf=spines, planes=8, port_gbps=100.0, **_LATENCIES
    )


@functools.lru_cache(maxsize=8)
def four_planes(leaves: int, spines: int = 16, nics_per_leaf: int | None = None) -> Topology:
    """Cluster A: 800G NICs as 4 x 200G, two tiers; four neighbouring ports of a T0 share an 800G transceiver."""
    return leaf_spine(
        leaves=leaves,
        spines=spines,
        nics_per_leaf=nics_per_leaf or spines,
        planes=4,
        port_gbps=200.0,
        transceiver_gbps=800.0,
        **_LATENCIES,
    )


@functools.lru_cache(maxsize=4)
def cluster_c(planes: int, leaves: int = 8) -> Topology:
    """64 NICs of 400G over leaves with as many uplinks as NICs: 4 planes of 100G for MRC, one of 400G for RoCE."""
    each = 64 // leaves
    return leaf_spine(
        leaves=leaves,
        spines=each,
        nics_per_leaf=each,
        planes=planes,
        port_gbps=400.0 / planes,
        **_LATENCIES,
    )


@functools.lru_cache(maxsize=1)
def cluster_d() -> Topology:
    """16 NICs of 400G in 4 racks over 4 spines, one plane."""
    return leaf_spine(leaves=4, spines=4, nics_per_leaf=4, planes=1, port_gbps=400.0, **_LATENCIES)


def one_way_us(source: int, target: int, host_ns: float) -> float:
    """Time of a 2 B write from being posted to being in memory; half of a ping-pong."""
    # Small packets, as short messages have them: in the engine a packet takes a full one's time on a link.
    result = run(
        cluster_b(), streams([source], [target], 2), host_latency_ns=host_ns, mtu_bytes=SMALL_MTU_BYTES
    )
    return float(result.finish_ns[0] - result.start_ns[0]) / 1000.0


@functools.lru_cache(maxsize=1)
def host_latency_ns() -> float:
    """What a packet spends in the hosts, from Q9 within a rack: the only figure that is fitted."""
    return (Q9_LOCAL_US - one_way_us(0, 1, 0.0)) * 1000.0


def rival_host() -> dict[str, Any]:
    """The setting transports other than MRC have."""
    return {"host_latency_ns": host_latency_ns()}


def host(evs: int = 16) -> dict[str, Any]:
    """Settings every experiment with MRC has.

    Args:
        evs: active EVs in each plane, and twice as many as there are in reserve; the paper has 128 to 256 EVs a
            connection, which are 16 to 32 in each of 8 planes and 32 to 64 in each of 4.
    """
    return {
        **rival_host(),
        "active_evs_per_plane": evs,
        "backup_evs_per_plane": max(evs // 2, 1),
    }
