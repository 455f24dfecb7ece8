"""Samples over time at the flow level: what is delivered and lost, and what planes and tiers carry."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.network import FlowNetwork
from farstep.sim.flow.ragged import sums
from farstep.sim.flow.rows import BITS_PER_BYTE

__all__ = ["RateSeries"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SAMPLES_MAX = 10_000_000
"""Samples of a series; more is a slip of the unit of its interval."""


class RateSeries:
    """Adds rates up into intervals of equal length.

    Args:
        network: whose rows the rates belong to.
        interval_ns: length of an interval.

    Raises:
        ValueError: the interval is not above 0.
    """

    def __init__(self, network: FlowNetwork, interval_ns: float) -> None:
        if not interval_ns > 0:
            raise ValueError(f"sample_interval_ns = {interval_ns}; valid: above 0")
        self._network = network
        self.interval_ns = interval_ns
        topology = network.topology
        tiers = np.stack(
            (topology.node_tier[topology.link_source], topology.node_tier[topology.link_target]), axis=1
        )
        self.groups, group = np.unique(tiers, axis=0, return_inverse=True)
        self._group_of_link = group.ravel()
        self._num_columns = 2 + topology.num_planes + len(self.groups)
        self._bins = np.zeros((64, self._num_columns))
        self._used = 0
        self.rebind()

    def rebind(self) -> None:
        """Finds out which planes and tiers the rows load, after ways changed."""
        network, topology = self._network, self._network.topology
        rows = network.rows
        count = len(rows.survival)
        owner, link, share = network.table.expand(rows.bundle)
        row = np.repeat(np.arange(count), np.diff(rows.offset))[owner]
        amount = share * rows.share[owner]
        at_nic = topology.link_source[link] < topology.num_nics
        planes, groups = topology.num_planes, len(self.groups)
        plane = sums(row[at_nic] * planes + topology.link_plane[link[at_nic]], amount[at_nic], count * planes)
        group = sums(row * groups + self._group_of_link[link], amount, count * groups)
        self._loads = np.concatenate(
            (
                network.goodput[:, None],
                1.0 - network.goodput[:, None],
                plane.reshape(count, planes),
                group.reshape(count, groups),
            ),
            axis=1,
        )

    def pass_time(
        self,
        rows: IntArray,
        rates: FloatArray,
        begin_ns: float,
        end_ns: float,
        fates: tuple[float, float] | None = None,
    ) -> None:
        """Adds what parts of flows send at constant rates between two times.

        Args:
            rows: int64 (parts,).
            rates: float64 (parts,).
            begin_ns: the first time.
            end_ns: the second.
            fates: rates of all together at which bits count, and are lost; None: what the rows' goodput says.
        """
        if end_ns <= begin_ns or not len(rows):
            return
        flow = rates @ self._loads[rows]
        if fates is not None:
            flow[:2] = fates
        first, last = int(begin_ns // self.interval_ns), int(end_ns // self.interval_ns)
        self._grow(last + 1)
        if first == last:
            self._bins[first] += flow * (end_ns - begin_ns)
            return
        self._bins[first] += flow * ((first + 1) * self.interval_ns - begin_ns)
        self._bins[first + 1 : last] += flow * self.interval_ns
        self._bins[last] += flow * (end_ns - last * self.interval_ns)

    def correct(self, rows: IntArray, bits: FloatArray, at_ns: float) -> None:
        """Adds bits that parts sent before they were noticed, or takes away what they sent too much."""
        if len(rows):
            self._grow(int(at_ns // self.interval_ns) + 1)
            self._bins[int(at_ns // self.interval_ns)] += bits @ self._loads[rows]

    def _grow(self, count: int) -> None:
        if count > SAMPLES_MAX:
            raise ValueError(
                f"sample_interval_ns = {self.interval_ns}; valid: so long that there are at most {SAMPLES_MAX} samples"
            )
        if count > len(self._bins):
            more = np.zeros((max(count, 2 * len(self._bins)) - len(self._bins), self._num_columns))
            self._bins = np.concatenate((self._bins, more))
        self._used = max(self._used, count)

    def columns(self, payload_share: float, dropped: int) -> dict[str, NDArray[Any]]:
        """Returns the columns of a result, a row per interval: `time_ns` is its end.

        Args:
            payload_share: of what is sent.
            dropped: packets the tasks lost in all, to which those of the intervals add up.
        """
        bits = np.maximum(self._bins[: self._used], 0.0)
        planes = self._network.topology.num_planes
        size = np.rint(bits / BITS_PER_BYTE).astype(np.int64)
        return {
            "time_ns": np.rint((np.arange(self._used) + 1) * self.interval_ns).astype(np.int64),
            "goodput_bytes": np.rint(bits[:, 0] * payload_share / BITS_PER_BYTE).astype(np.int64),
            "dropped": _shared_out(dropped, bits[:, 1]),
            "plane_bytes": size[:, 2 : 2 + planes],
            "group_bytes": size[:, 2 + planes :],
        }


def _shared_out(total: int, weights: FloatArray) -> IntArray:
    """Whole numbers that add up to the total, as near to the weights as such can be."""
    so_far = np.cumsum(weights)
    if not len(so_far) or so_far[-1] <= 0.0:
        return np.zeros(len(so_far), np.int64)
    return np.asarray(np.diff(np.rint(so_far * (total / so_far[-1])), prepend=0.0), np.int64)
