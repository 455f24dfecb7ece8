"""Bundles: sets of links over which a hop spreads a flow in fixed shares.

Where a fabric is symmetric, very many flows spread over the same links in the same shares, and one number says what
all these links carry. Bundle `l`, for `l` below the number of links, is link `l` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import gather_rows, offsets_of, scramble

__all__ = ["BundleTable", "Constraints", "constraints_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_SHARE_STEPS = 2.0**40
"""Resolution at which two shares count as equal."""


class BundleTable:
    """All bundles met so far; equal ones get one number.

    Args:
        num_links: directed links of the fabric, which are the first bundles.
    """

    def __init__(self, num_links: int) -> None:
        self.num_links = num_links
        self._links: list[NDArray[Any]] = []
        self._shares: list[FloatArray] = []
        self._lengths: list[IntArray] = []
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return self.num_links + len(self._numbers)

    def intern(self, offset: IntArray, links: NDArray[Any], shares: FloatArray) -> IntArray:
        """Returns the numbers of bundles given in compressed rows, each of at least one link, none twice in a row.

        A bundle of one link is that link, whatever its share.
        """
        length = np.diff(offset)
        numbers = np.empty(len(length), np.int64)
        single = length == 1
        numbers[single] = links[offset[:-1][single]]
        keys = _row_hash(offset, links, shares)
        distinct, first, inverse = np.unique(keys[~single], return_index=True, return_inverse=True)
        rows = np.flatnonzero(~single)[first]
        found = np.empty(len(distinct), np.int64)
        fresh = []
        for index, key in enumerate(distinct.tolist()):
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self)
                fresh.append(rows[index])
            found[index] = number
        if fresh:
            position, _ = gather_rows(offset, np.asarray(fresh))
            self._links.append(links[position])
            self._shares.append(shares[position])
            self._lengths.append(length[fresh])
        numbers[~single] = found[inverse]
        return numbers

    def columns(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Returns offset, link and share of the bundles of several links, in compressed rows."""
        if not self._links:
            return np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0)
        self._links = [np.concatenate(self._links)]
        self._shares = [np.concatenate(self._shares)]
        self._lengths = [np.concatenate(self._lengths)]
        return offsets_of(self._lengths[0]), self._links[0].astype(np.int64), self._shares[0]

    def expand(self, bundles: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Lists the links of some bundles: index into `bundles`, link, share; shares of a bundle sum to at most 1."""
        offset, link, share = self.columns()
        several = bundles >= self.num_links
        position, owner = gather_rows(offset, bundles[several] - self.num_links)
        alone = np.flatnonzero(~several)
        return (
            np.concatenate((alone, np.flatnonzero(several)[owner])),
            np.concatenate((bundles[alone], link[position])),
            np.concatenate((np.ones(len(alone)), share[position])),
        )


def _row_hash(offset: IntArray, links: NDArray[Any], shares: FloatArray) -> NDArray[np.uint64]:
    steps = np.rint(shares * _SHARE_STEPS).astype(np.uint64)
    with np.errstate(over="ignore"):
        words = scramble(links, 1) * (steps + np.uint64(1))
        return np.asarray(np.add.reduceat(words, offset[:-1]), np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class Constraints:
    """What limits the rates: for each a number of links that are always loaded alike.

    Attributes:
        capacity_gbps: float64 (constraints,), on the sum of the entries' rates.
        width: int64 (constraints,), links a constraint stands for.
        rate_gbps: float64 (constraints,), rate of one of its links.
        bundle_offset: int64, entries of the i-th of the bundles asked for.
        entry_constraint: int64, constraint an entry loads.
        entry_share: float64, load per unit of the bundle's rate.
        num_own: constraints of links that one bundle alone loads; they come first.
    """

    capacity_gbps: FloatArray
    width: IntArray
    rate_gbps: FloatArray
    bundle_offset: IntArray
    entry_constraint: IntArray
    entry_share: FloatArray
    num_own: int


def constraints_of(table: BundleTable, bundles: IntArray, rate_gbps: FloatArray) -> Constraints:
    """Reduces links to what can limit the flows over these bundles.

    The links of a bundle that no other bundle touches carry fixed parts of one rate, so that only the one which
    fills up first matters. Links of several bundles are kept apart unless the same bundles load them alike.

    Args:
        table: where the bundles are kept.
        bundles: int64, distinct bundles in use.
        rate_gbps: float64 (links,), of each link now; 0 if it is down.
    """
    owner, link, share = table.expand(bundles)
    times = np.bincount(link, minlength=table.num_links)
    alone = times[link] == 1
    count = len(bundles)
    capacity = np.full(count, np.inf)
    with np.errstate(divide="ignore"):
        room = rate_gbps[link] / share
    np.minimum.at(capacity, owner[alone], room[alone])
    width = np.bincount(owner[alone], minlength=count)
    slowest = np.full(count, np.inf)
    np.minimum.at(slowest, owner[alone], rate_gbps[link[alone]])
    has_own = width > 0
    number = np.cumsum(has_own) - 1
    own_bundle = np.flatnonzero(has_own)
    parts_bundle = [own_bundle]
    parts_constraint = [number[own_bundle]]
    parts_share = [np.ones(len(own_bundle))]
    capacity, width, slowest = capacity[has_own], width[has_own], slowest[has_own]
    if not alone.all():
        shared = _shared_links(owner[~alone], link[~alone], share[~alone], rate_gbps)
        parts_bundle.append(shared[0])
        parts_constraint.append(shared[1] + len(capacity))
        parts_share.append(shared[2])
        capacity = np.concatenate((capacity, shared[3]))
        slowest = np.concatenate((slowest, shared[3]))
        width = np.concatenate((width, shared[4]))
    bundle = np.concatenate(parts_bundle)
    order = np.argsort(bundle, kind="stable")
    offset = offsets_of(np.bincount(bundle, minlength=count))
    constraint, load = np.concatenate(parts_constraint)[order], np.concatenate(parts_share)[order]
    return Constraints(capacity, width.astype(np.int64), slowest, offset, constraint, load, len(own_bundle))


def _shared_links(
    owner: IntArray, link: IntArray, share: FloatArray, rate_gbps: FloatArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray, IntArray]:
    """Joins links loaded alike by the same bundles; returns bundle, constraint, share, capacity and width."""
    order = np.lexsort((owner, link))
    owner, link, share = owner[order], link[order], share[order]
    starts = np.flatnonzero(np.r_[True, link[1:] != link[:-1]])
    offset = np.r_[starts, len(link)].astype(np.int64)
    keys = _row_hash(offset, owner, share)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    capacity = np.full(len(first), np.inf)
    np.minimum.at(capacity, inverse, rate_gbps[link[starts]])
    position, constraint = gather_rows(offset, first)
    return owner[position], constraint, share[position], capacity, np.bincount(inverse)
