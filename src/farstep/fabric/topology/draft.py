"""How builders put a topology together: nodes in batches, cables in batches, then columns once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.topology.checks import whole
from farstep.fabric.topology.model import NIC_TIER, NodeKind, Topology

NODES_MAX = 2_000_000
"""Nodes of one topology: ten times the largest cluster published; more is a slip of a digit."""

CABLES_MAX = 32_000_000
"""Cables of one topology; their columns are 1.8 GB."""

PLANES_MAX = 256
"""Planes of one topology, as fault scripts number them."""

_Column = npt.NDArray[Any]


NICS_MAX = 16_000_000
"""More than memory holds, and fewer than numbers of nodes allow."""


class TopologyDraft:
    """Collects nodes and cables; `build` makes columns of them.

    Args:
        num_nics: NICs; they are nodes `0 .. num_nics - 1`.
        num_planes: planes.
        nic_site: site of each NIC, or one for all.
        nic_group: group of each NIC, or one for all.
        nic_cage_ports: ports of a NIC that share a transceiver.
    """

    def __init__(
        self,
        num_nics: int,
        *,
        num_planes: int = 1,
        nic_site: npt.ArrayLike = 0,
        nic_group: npt.ArrayLike = 0,
        nic_cage_ports: int = 1,
    ) -> None:
        self.num_nics = whole("num_nics", num_nics, low=1, high=NICS_MAX)
        self.num_planes = num_planes
        self._num_nodes = 0
        self._num_cables = 0
        self._nodes: list[tuple[_Column, ...]] = []
        self._cables: list[tuple[_Column, ...]] = []
        self._add(num_nics, NodeKind.NIC, NIC_TIER, 0, nic_site, nic_group, 0.0, nic_cage_ports)

    def add_switches(
        self,
        count: int,
        *,
        tier: npt.ArrayLike,
        plane: npt.ArrayLike = 0,
        site: npt.ArrayLike = 0,
        group: npt.ArrayLike = 0,
        latency_ns: npt.ArrayLike = 0.0,
        cage_ports: npt.ArrayLike = 1,
    ) -> npt.NDArray[np.int32]:
        """Adds switches and returns their node numbers; attributes are one for all or one each."""
        return self._add(count, NodeKind.SWITCH, tier, plane, site, group, latency_ns, cage_ports)

    def _add(
        self,
        count: int,
        kind: NodeKind,
        tier: npt.ArrayLike,
        plane: npt.ArrayLike,
        site: npt.ArrayLike,
        group: npt.ArrayLike,
        latency_ns: npt.ArrayLike,
        cage_ports: npt.ArrayLike,
    ) -> npt.NDArray[np.int32]:
        if self._num_nodes + count > NODES_MAX:
            raise ConfigError(
                f"topology has {self._num_nodes + count} nodes or more; valid: up to {NODES_MAX}"
            )
        values = (
            (int(kind), np.uint8),
            (tier, np.int8),
            (plane, np.int16),
            (site, np.int16),
            (group, np.int32),
            (latency_ns, np.float64),
            (cage_ports, np.int16),
        )
        self._nodes.append(tuple(_filled(value, count, dtype) for value, dtype in values))
        first = self._num_nodes
        self._num_nodes += count
        return np.arange(first, self._num_nodes, dtype=np.int32)

    def add_cables(
        self,
        source: npt.ArrayLike,
        target: npt.ArrayLike,
        *,
        rate_gbps: npt.ArrayLike,
        latency_ns: npt.ArrayLike,
        plane: npt.ArrayLike = 0,
        is_optical: npt.ArrayLike = True,
        cost: npt.ArrayLike = 1,
    ) -> None:
        """Adds cables, both directions of each; `source` is the lower end, whose link gets the even id."""
        ends = np.asarray(source, np.int32).ravel(), np.asarray(target, np.int32).ravel()
        count = len(ends[0])
        if self._num_cables + count > CABLES_MAX:
            raise ConfigError(
                f"topology has {self._num_cables + count} cables or more; valid: up to {CABLES_MAX}"
            )
        values = (
            (ends[0], np.int32),
            (ends[1], np.int32),
            (rate_gbps, np.float64),
            (latency_ns, np.float64),
            (plane, np.int16),
            (is_optical, np.bool_),
            (cost, np.uint8),
        )
        self._cables.append(tuple(_filled(value, count, dtype) for value, dtype in values))
        self._num_cables += count

    def build(
        self,
        name: str,
        *,
        kind: str,
        parameters: Mapping[str, Any] | None = None,
        site_names: tuple[str, ...] = ("local",),
        bisection_gbps: float | None = None,
        via_switches: npt.NDArray[np.int32] | None = None,
        labels: Mapping[str, int] | None = None,
    ) -> Topology:
        """Returns the topology."""
        if not self._cables:
            raise ConfigError(f"topology {quoted(name)} has no cable")
        node = [np.concatenate(column) for column in zip(*self._nodes, strict=True)]
        self._nodes.clear()
        cable = [np.concatenate(column) for column in zip(*self._cables, strict=True)]
        self._cables.clear()
        source = np.empty(2 * len(cable[0]), np.int32)
        target = np.empty_like(source)
        source[0::2], source[1::2] = cable[0], cable[1]
        target[0::2], target[1::2] = cable[1], cable[0]
        return Topology(
            name=name,
            num_nics=self.num_nics,
            num_planes=self.num_planes,
            node_kind=node[0],
            node_tier=node[1],
            node_plane=node[2],
            node_site=node[3],
            node_group=node[4],
            switch_latency_ns=node[5],
            node_cage_ports=node[6],
            link_source=source,
            link_target=target,
            link_rate_gbps=np.repeat(cable[2], 2),
            link_latency_ns=np.repeat(cable[3], 2),
            link_plane=np.repeat(cable[4], 2),
            link_is_optical=np.repeat(cable[5], 2),
            link_cost=np.repeat(cable[6], 2),
            site_names=site_names,
            kind=kind,
            parameters=dict(parameters or {}),
            bisection_gbps=bisection_gbps,
            via_switches=via_switches,
            labels=dict(labels or {}),
        )


def _filled(value: npt.ArrayLike, count: int, dtype: npt.DTypeLike) -> _Column:
    return np.array(np.broadcast_to(np.asarray(value, dtype), (count,)))
