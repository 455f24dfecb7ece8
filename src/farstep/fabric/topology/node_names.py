"""What nodes and links are called, in messages, tables and fault scripts alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["NodeNames", "numbers_of"]


@dataclass(frozen=True, slots=True, eq=False)
class NodeNames:
    """Enough of a network to name its nodes and links.

    Attributes:
        tier: int8 per node, -1 for a NIC.
        plane: int16 per node, -1 for a switch that joins planes.
        number: int32 per node, among those of its tier and plane.
        labels: names that a file or graph gives nodes, by node.
    """

    tier: npt.NDArray[np.int8]
    plane: npt.NDArray[np.int16]
    number: npt.NDArray[np.int32]
    labels: Mapping[int, str] = field(default_factory=dict)

    def node(self, node: int) -> str:
        """Returns the name of a node: `nic/12`, `t1/p0/5` for tier, plane and number, or its label."""
        if node in self.labels:
            return self.labels[node]
        if self.tier[node] < 0:
            return f"nic/{self.number[node]}"
        plane = int(self.plane[node])
        return f"t{self.tier[node]}/p{'x' if plane < 0 else plane}/{self.number[node]}"

    def link(self, link: int, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32]) -> str:
        """Returns the name of a directed link, such as `nic/3->t0/p1/7`; with `#1` where it has parallels.

        Args:
            link: its number.
            source: node each link leaves.
            target: node each link leads to.
        """
        ends = source[link], target[link]
        parallel = np.flatnonzero((source == ends[0]) & (target == ends[1]))
        number = f"#{np.searchsorted(parallel, link)}" if len(parallel) > 1 else ""
        return f"{self.node(int(ends[0]))}->{self.node(int(ends[1]))}{number}"


def numbers_of(tier: npt.NDArray[np.int8], plane: npt.NDArray[np.int16]) -> npt.NDArray[np.int32]:
    """Numbers the nodes of each tier and plane from 0, int32 per node; NICs among themselves."""
    plane = np.where(tier < 0, 0, plane)
    order = np.lexsort((np.arange(len(tier)), plane, tier))
    key = tier[order].astype(np.int32) * 65536 + plane[order]
    starts = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    number = np.empty(len(tier), np.int32)
    number[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return number
