"""Max-min fair rates: no flow can get more without taking from one that has no more than it.

Each flow loads some constraints (a link, or a bundle of links that are always loaded alike) with a share of its
rate. Progressive filling raises all rates together and freezes flows as their constraints fill up. Constraints
that are filled first *as seen by all their flows* do not depend on each other, so each pass freezes all of
those at once, and a fabric under symmetric load needs one pass (Ros-Giralt et al., "On the bottleneck structure of
congestion-controlled networks", 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import offsets_of, row_minimum, sums

__all__ = ["LoadMatrix", "max_min_rates"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TOLERANCE = 1e-9
"""Relative difference up to which two fair shares are the same level."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadMatrix:
    """Which share of each flow's rate loads which constraint, in compressed rows.

    Attributes:
        offset: int64 (flows + 1,), entries of flow f are `offset[f]:offset[f + 1]`.
        constraint: int64, number of the constraint of each entry.
        share: float64, above 0: load on the constraint per unit of the flow's rate. A constraint may
            occur several times in a row; the shares add up.
        weight: float64, above 0: where a constraint is full, rates of its flows are as their weights; None: equal.
    """

    offset: IntArray
    constraint: IntArray
    share: FloatArray
    weight: FloatArray | None = None

    @property
    def num_flows(self) -> int:
        """Number of rows."""
        return len(self.offset) - 1

    @property
    def num_entries(self) -> int:
        """Number of loads."""
        return len(self.constraint)

    def owners(self) -> IntArray:
        """Flow of each entry."""
        return np.repeat(np.arange(self.num_flows, dtype=np.int64), np.diff(self.offset))

    def loads(self, rates: FloatArray, num_constraints: int) -> FloatArray:
        """Load on each constraint under these rates of the flows."""
        weights = self.share * rates[self.owners()]
        return sums(self.constraint, weights, num_constraints)

    def rows(self, chosen: NDArray[np.bool_]) -> LoadMatrix:
        """The rows of some flows, by a mask."""
        length = np.diff(self.offset)
        kept = np.repeat(chosen, length)
        weight = None if self.weight is None else self.weight[kept]
        return LoadMatrix(offsets_of(length[chosen]), self.constraint[kept], self.share[kept], weight)


def max_min_rates(matrix: LoadMatrix, capacity: FloatArray, limit: FloatArray | None = None) -> FloatArray:
    """Computes max-min fair rates, weighted ones if the matrix has weights, by progressive filling.

    Args:
        matrix: loads of the flows.
        capacity: float64 (constraints,), not negative; flows over a constraint of 0 get 0.
        limit: float64 (flows,), the most each flow can use; None: no limit.

    Returns:
        float64 (flows,), in the unit of `capacity`; infinity for a flow nothing holds back.
    """
    rates = np.zeros(matrix.num_flows)
    if limit is None:
        limit = np.full(matrix.num_flows, np.inf)
    left = capacity.astype(np.float64, copy=True)
    flows = np.arange(matrix.num_flows, dtype=np.int64)
    open_rows = matrix
    while len(flows):
        owner = open_rows.owners()
        weight = 1.0 if open_rows.weight is None else open_rows.weight
        demand = sums(open_rows.constraint, open_rows.share * weight, len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            fair = np.where(demand > 0, np.maximum(left, 0.0) / demand, np.inf)
        here = fair[open_rows.constraint] * weight
        level = np.minimum(row_minimum(here, open_rows.offset), limit[flows])
        lowest = np.full(len(left), np.inf)
        np.minimum.at(lowest, open_rows.constraint, level[owner] / weight)
        # A constraint is filled when none of its flows is held lower elsewhere.
        fills = lowest >= fair * (1.0 - TOLERANCE)
        frozen = limit[flows] <= level
        entry_fills = fills[open_rows.constraint] & (here <= level[owner] * (1.0 + TOLERANCE))
        frozen[owner[entry_fills]] = True
        if not frozen.any():
            # Weights that differ from constraint to constraint may leave each waiting for another.
            frozen = level <= level.min() * (1.0 + TOLERANCE)
        rates[flows[frozen]] = level[frozen]
        taken = open_rows.share * np.where(frozen, level, 0.0)[owner]
        taken[~frozen[owner]] = 0.0
        left -= sums(open_rows.constraint, taken, len(left))
        flows = flows[~frozen]
        if len(flows):
            open_rows = open_rows.rows(~frozen)
    return rates
