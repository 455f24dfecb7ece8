"""Dragonflies: groups of fully joined routers, groups fully joined by global cables.

Source: Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology" (ISCA 2008): `a` routers
a group, `p` NICs and `h` global cables a router, up to `a * h + 1` groups, balanced with `a = 2p = 2h`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology.checks import latency, rate, whole
from farstep.fabric.topology.clos import LINK_LATENCY_NS
from farstep.fabric.topology.draft import NODES_MAX, TopologyDraft
from farstep.fabric.topology.model import Topology

GLOBAL_COST = 3
"""What routing counts for a global cable: with local ones at 1, a route over one global and two local cables (5)
goes before one over two global cables (6), as minimal routing in a dragonfly does."""


def dragonfly(
    *,
    routers_per_group: int,
    nics_per_router: int,
    global_links: int,
    groups: int | None = None,
    routing: str = "minimal",
    port_gbps: float = 100.0,
    local_gbps: float | None = None,
    global_gbps: float | None = None,
    local_latency_ns: float = LINK_LATENCY_NS,
    global_latency_ns: float = LINK_LATENCY_NS,
    router_latency_ns: float = 0.0,
) -> Topology:
    """Builds a dragonfly.

    Args:
        routers_per_group: `a`: routers of a group, each joined to each other.
        nics_per_router: `p`.
        global_links: `h`: global cables of a router.
        groups: groups; None: `a * h + 1`, so that each pair has one cable. With fewer, pairs have several.
        routing: `"minimal"`: at most one global cable; `"valiant"`: to a router chosen by the path's number first,
            and minimally to and from it.
        port_gbps: rate of a NIC's port.
        local_gbps: rate within a group; None: as `port_gbps`.
        global_gbps: rate between groups; None: as `port_gbps`.
        local_latency_ns: propagation within a group and to NICs.
        global_latency_ns: propagation between groups.
        router_latency_ns: forwarding latency of a router.

    Raises:
        ConfigError: an argument cannot be used.

    Example:
        >>> dragonfly(routers_per_group=4, nics_per_router=2, global_links=2).num_nics
        72
    """
    if routing not in ("minimal", "valiant"):
        raise ConfigError(f'routing = {quoted(routing)}: valid: "minimal", "valiant"')
    a = whole("routers_per_group", routers_per_group, low=1, high=1024)
    p = whole("nics_per_router", nics_per_router, low=1, high=1024)
    h = whole("global_links", global_links, low=1, high=1024)
    groups = _groups(groups, a, p, h)
    draft, routers = _routers(groups, a, p, latency("router_latency_ns", router_latency_ns))
    links_ns = latency("local_latency_ns", local_latency_ns)
    port_gbps = rate("port_gbps", port_gbps)
    _join_nics(draft, np.repeat(routers, p), port_gbps, links_ns)
    near, far = _local_cables(a, groups)
    local_gbps = port_gbps if local_gbps is None else rate("local_gbps", local_gbps)
    draft.add_cables(routers[near], routers[far], rate_gbps=local_gbps, latency_ns=links_ns, is_optical=False)
    near, far = _global_cables(a, h, groups)
    global_gbps = port_gbps if global_gbps is None else rate("global_gbps", global_gbps)
    latency_ns = latency("global_latency_ns", global_latency_ns)
    draft.add_cables(
        routers[near], routers[far], rate_gbps=global_gbps, latency_ns=latency_ns, cost=GLOBAL_COST
    )
    per_pair = a * h // (groups - 1)
    bisection_gbps = (groups // 2) ** 2 * per_pair * global_gbps
    return draft.build(
        f"dragonfly of {groups} groups, a={a} p={p} h={h}",
        kind="dragonfly",
        parameters={"routers_per_group": a, "nics_per_router": p, "global_links": h, "groups": groups},
        bisection_gbps=None if groups % 2 else bisection_gbps,
        via_switches=routers if routing == "valiant" else None,
    )


def _groups(groups: int | None, a: int, p: int, h: int) -> int:
    most = a * h + 1
    groups = most if groups is None else whole("groups", groups, low=2, high=most, why="a * h + 1")
    if groups * a * (p + 1) > NODES_MAX:
        raise ConfigError(f"groups = {groups}: makes {groups * a * (p + 1)} nodes; valid: up to {NODES_MAX}")
    return groups


def _routers(groups: int, a: int, p: int, latency_ns: float) -> tuple[TopologyDraft, npt.NDArray[np.int32]]:
    draft = TopologyDraft(groups * a * p, nic_group=np.repeat(np.arange(groups), a * p))
    group = np.repeat(np.arange(groups), a)
    return draft, draft.add_switches(groups * a, tier=0, group=group, latency_ns=latency_ns)


def _join_nics(
    draft: TopologyDraft, routers: npt.NDArray[np.int32], rate_gbps: float, latency_ns: float
) -> None:
    nics = np.arange(len(routers))
    draft.add_cables(nics, routers, rate_gbps=rate_gbps, latency_ns=latency_ns, is_optical=False)


def _local_cables(a: int, groups: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the routers at both ends of each cable within a group."""
    one, other = np.triu_indices(a, 1)
    base = np.arange(groups)[:, None] * a
    return (base + one).ravel(), (base + other).ravel()


def _global_cables(a: int, h: int, groups: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the routers at both ends of each global cable.

    Global port `j` of a group (port `j % h` of router `j // h`) leads to the group `j % (groups - 1) + 1` further
    on, so that equal distances are spread over the routers; ports that would not serve all pairs alike stay dark.
    """
    rounds = a * h // (groups - 1)
    group, port = np.divmod(np.arange(groups * rounds * (groups - 1)), rounds * (groups - 1))
    turn, ahead = np.divmod(port, groups - 1)
    target = (group + ahead + 1) % groups
    back = turn * (groups - 1) + (groups - ahead - 2)
    first = group < target
    return (group * a + port // h)[first], (target * a + back // h)[first]
