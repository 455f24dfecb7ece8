"""Rows of varying length in flat arrays: offsets say where each row begins, as in compressed sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["gather_rows", "offsets_of", "row_minimum", "scramble", "sums"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def offsets_of(lengths: NDArray[Any]) -> IntArray:
    """Returns where rows of these lengths begin, and at the end where the last one stops, int64 (rows + 1,)."""
    offset = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offset[1:])
    return offset


def gather_rows(offset: IntArray, rows: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Finds the entries of some rows.

    Args:
        offset: int64 (n + 1,), beginnings of all rows.
        rows: numbers of the rows wanted, in any order, repeats allowed.

    Returns:
        Positions of the entries in the flat arrays, and for each the index into `rows` it belongs to.
    """
    begin = offset[rows]
    length = offset[np.asarray(rows) + 1] - begin
    owner = np.repeat(np.arange(len(rows), dtype=np.int64), length)
    own = offsets_of(length)
    position = np.arange(own[-1], dtype=np.int64) + (begin - own[:-1])[owner]
    return position, owner


def sums(index: NDArray[Any], weights: NDArray[Any], count: int) -> FloatArray:
    """Adds up weights by index, float64 (count,)."""
    return np.bincount(index, weights=weights, minlength=count).astype(np.float64, copy=False)


def row_minimum(values: FloatArray, offset: IntArray) -> FloatArray:
    """Returns the least value of each row; infinity for a row without entries."""
    out = np.full(len(offset) - 1, np.inf)
    filled = offset[1:] > offset[:-1]
    if filled.any():
        out[filled] = np.minimum.reduceat(values, offset[:-1][filled])
    return out


def scramble(values: NDArray[Any], salt: int = 0) -> NDArray[np.uint64]:
    """Mixes the bits of integers, so that sums and remainders of the outcome look random.

    The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    with np.errstate(over="ignore"):
        mixed = np.asarray(values).astype(np.uint64) + np.uint64((salt * _GOLDEN + _GOLDEN) & _WORD)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
