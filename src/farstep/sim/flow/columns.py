"""Columns that grow and shrink together, one value per part of a flow, and what is drawn for parts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import scramble

__all__ = ["Columns", "Memory", "exponential", "uniform"]

FloatArray = NDArray[np.float64]
AnyColumns = TypeVar("AnyColumns", bound="Columns")


class Columns:
    """Base of dataclasses whose fields are arrays of one length, the name of each part among them."""

    __slots__ = ()

    @staticmethod
    def empty(kind: type[AnyColumns]) -> AnyColumns:
        """Columns without any part."""
        nothing: dict[str, Any] = {item.name: np.zeros(0) for item in fields(kind)}  # type: ignore[arg-type]
        return kind(**{**nothing, "name": np.zeros(0, np.uint64)})

    def append(self, other: Self) -> None:
        """Adds the parts of other columns."""
        for item in fields(self):  # type: ignore[arg-type]
            setattr(self, item.name, np.concatenate((getattr(self, item.name), getattr(other, item.name))))

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forgets parts, by a mask of those that stay."""
        for item in fields(self):  # type: ignore[arg-type]
            setattr(self, item.name, getattr(self, item.name)[kept])


class Memory:
    """What connections keep from one message to the next.

    Args:
        count: connections.
        names: columns that are kept.
    """

    def __init__(self, count: int, names: tuple[str, ...]) -> None:
        self._known = np.zeros(count, np.bool_)
        self._kept = {name: np.zeros(count) for name in names}

    def note(self, columns: Columns, part: NDArray[np.int64], row: NDArray[np.int64]) -> None:
        """Keeps the state of parts for their connections."""
        self._known[row] = True
        for name, kept in self._kept.items():
            kept[row] = getattr(columns, name)[part]

    def recall(self, columns: Columns, row: NDArray[np.int64]) -> None:
        """Puts what was kept into columns, one part for each of these connections."""
        known = self._known[row]
        for name, kept in self._kept.items():
            getattr(columns, name)[known] = kept[row[known]]


def uniform(names: NDArray[np.uint64], turn: FloatArray | float) -> FloatArray:
    """A deviate from 0 to 1 for each name and turn, turns being whole."""
    with np.errstate(over="ignore"):
        word = scramble(names + np.asarray(turn).astype(np.int64).astype(np.uint64) * np.uint64(0x9E37), 31)
    return np.asarray((word >> np.uint64(11)).astype(np.float64) / 2.0**53, np.float64)


def exponential(names: NDArray[np.uint64], turn: FloatArray | float) -> FloatArray:
    """An exponential deviate of mean 1 for each name and turn."""
    return np.asarray(-np.log1p(-uniform(names, turn)), np.float64)
