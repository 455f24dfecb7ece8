"""The ranks inside one replica group, which hold one copy of the model together and live and die together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["AloneInside", "InnerRanks"]


class InnerRanks(Protocol):
    """Lets the ranks of a replica group come to one decision."""

    @property
    def rank(self) -> int:
        """Own rank within the group."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Returns the rows of all ranks, by rank; all ranks call it together.

        Raises:
            InnerRankLost: a rank of the group is gone, and so is the group.
        """

    def close(self) -> None:
        """Ends the exchange."""


class AloneInside:
    """A replica group of one rank."""

    rank = 0
    size = 1

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Returns the only row."""
        return [list(row)]

    def close(self) -> None:
        """Nothing to end."""
