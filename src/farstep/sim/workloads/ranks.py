"""Who takes part: ranks of a job and the NICs they sit on."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farstep.fabric.expected import expect_whole
from farstep.sim.tasks import WorkloadError, whole_numbers

__all__ = ["Nics", "positive", "to_nics"]

Nics = NDArray[np.int64]
"""NIC of every rank, int64 (ranks,)."""


def to_nics(ranks: int | ArrayLike, *, at_least: int = 2) -> Nics:
    """Returns the NIC of every rank: the given ones, or 0..n-1 for a number n.

    Raises:
        WorkloadError: there are too few, one is used twice or below 0.
    """
    if isinstance(ranks, int):
        expect_whole("ranks", ranks, 0, 2**20)
        ranks = np.arange(ranks)
    nics = whole_numbers("ranks", ranks)
    if nics.ndim != 1 or len(nics) < at_least:
        raise WorkloadError(f"{nics.size} ranks are too few; at least {at_least} are needed")
    if nics.min() < 0:
        raise WorkloadError(f"rank {int(np.argmin(nics))} is placed on NIC {nics.min()}; NICs count from 0")
    if len(np.unique(nics)) != len(nics):
        numbers, counts = np.unique(nics, return_counts=True)
        raise WorkloadError(f"NIC {numbers[np.argmax(counts)]} is given to two ranks")
    return nics


def positive(name: str, value: int) -> int:
    """Returns a number that must be 1 or more.

    Raises:
        WorkloadError: it is not.
    """
    if value < 1:
        raise WorkloadError(f"{name} is {value}; it must be at least 1")
    return value
