"""Routing that follows failures and repairs, late: which routes are in effect from when.

Transports without source routes depend on it. Between a failure and new routes, what is sent toward the dead link is
lost; a silent failure nobody tells routing of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.link_actions import LinkAction

__all__ = ["reroutes"]


def reroutes(
    topology: Topology, actions: Iterable[LinkAction], delay_ns: float
) -> list[tuple[int, dict[str, NDArray[Any]]]]:
    """Returns the routes after each failure that is signalled, and after each repair.

    Args:
        topology: the network.
        actions: what happens to links.
        delay_ns: from a change until routing has followed it everywhere.

    Returns:
        Times in ns, ascending, each with the columns of the routes that hold from then on.
    """
    is_fabric = (topology.link_source >= topology.num_nics) & (topology.link_target >= topology.num_nics)
    is_dead = np.zeros(topology.num_links, np.bool_)
    in_effect = is_dead.copy()
    noticed = sorted(
        (
            action
            for action in actions
            if action.kind == "up" or (action.kind == "down" and action.is_signalled)
        ),
        key=lambda action: action.time_ns,
    )
    found: list[tuple[int, dict[str, NDArray[Any]]]] = []
    for index, action in enumerate(noticed):
        is_dead[action.links] = action.kind == "down"
        is_last = index + 1 == len(noticed) or noticed[index + 1].time_ns != action.time_ns
        wanted = is_dead & is_fabric
        if not is_last or np.array_equal(wanted, in_effect):
            continue
        in_effect = wanted.copy()
        routes = topology.routes(without_links=np.flatnonzero(wanted)) if wanted.any() else topology.routes()
        found.append((round(action.time_ns + delay_ns), routes.columns()))
    return found
