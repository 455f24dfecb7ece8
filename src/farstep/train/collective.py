"""What training asks of the network: a few blocking calls on tensors.

The product runs on `farstep.train.transport.MrcCollective`; tests may pass anything of this shape.
"""

from typing import Literal, Protocol

from torch import Tensor

__all__ = ["Collective", "ReduceOp"]

ReduceOp = Literal["sum", "mean", "min", "max"]


class Collective(Protocol):
    """A group of ranks that call the same operations in the same order."""

    @property
    def rank(self) -> int:
        """Own place in the group."""

    @property
    def num_ranks(self) -> int:
        """Size of the group."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> None:
        """Replaces a contiguous CPU tensor on every rank by the same bits of the reduction.

        Returns when the result is in place. May be called from any thread, one call at a time.
        """

    def abort(self, reason: str) -> None:
        """Makes the pending call and every later one fail at once, on this rank."""
