"""A shard as the trainer sees it: what the step under way uses up, also when it is run again with fewer members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farstep.train.ledger import Deal
from farstep.train.shard import Shard

__all__ = ["ShardSource"]


class ShardSource:
    """Deals the samples of a :class:`~farstep.train.shard.Shard` to the trainer.

    Args:
        shard: what the user iterates over.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._kept: tuple[Deal, tuple[int | None, ...]] | None = None

    @property
    def inner_scale(self) -> float:
        """Factor of this rank's loss that makes the mean over its group's ranks the mean over their samples."""
        return self._shard.inner_scale

    def counts(self) -> tuple[int, ...]:
        """Samples of every present seat in the step under way."""
        if self._kept is None:
            return self._shard.deal.counts
        deal, holders = self._kept
        return tuple(0 if holder is None else deal.counts[holder] for holder in holders)

    def redeal(self) -> Any:
        """Deals the step under way anew, among the seats of now; returns this seat's batch."""
        self._kept = None
        return self._shard.redeal()

    def keep(self, seats: int, holders: Sequence[int | None]) -> None:
        """Goes on with a deal among earlier seats; what none of the holders has is dealt later."""
        self._kept = self._shard.ledger.deal(seats), tuple(holders)

    def forget(self) -> None:
        """The step under way goes by the deal of the batch handed out last."""
        self._kept = None

    def commit(self) -> dict[str, Any]:
        """Marks the samples of the step under way as used; returns what does the same on any replica."""
        kept, self._kept = self._kept, None
        if kept is None:
            record = self._shard.ledger.commit(self._shard.deal)
        else:
            deal, holders = kept
            record = self._shard.ledger.commit(deal, {holder for holder in holders if holder is not None})
        return record.to_json()

    def replay(self, record: Mapping[str, Any]) -> None:
        """Marks the samples of a step as used that another member committed."""
        self._kept = None
        self._shard.ledger.replay(record)

    def state(self) -> dict[str, Any]:
        """Position in the data, as JSON values."""
        return self._shard.state_dict()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position."""
        self._kept = None
        self._shard.load_state_dict(state)
