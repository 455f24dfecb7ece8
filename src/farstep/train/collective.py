"""What training asks of the network: one operation on tensors, and a way to give up.

The product runs on `farstep.train.transport.MrcCollective`; tests may pass anything of this shape.
"""

from typing import Literal, Protocol

from torch import Tensor

__all__ = ["Collective", "Pending", "ReduceOp"]

ReduceOp = Literal["sum", "mean", "min", "max"]


class Pending(Protocol):
    """An operation under way."""

    def wait(self) -> None:
        """Blocks until the result is in place.

        Raises:
            farstep.engine.EngineError: the network could not do it, or the collective was aborted.
        """


class Collective(Protocol):
    """A group of ranks that start the same operations in the same order."""

    @property
    def rank(self) -> int:
        """Own place in the group."""

    @property
    def num_ranks(self) -> int:
        """Size of the group."""

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, background: bool = False) -> Pending:
        """Replaces a contiguous CPU tensor on every rank by the same bits of the reduction.

        Args:
            tensor: the same shape and type on every rank; not to be touched until the result is in place.
            op: how the ranks' values are combined.
            background: return at once; otherwise the result is in place when this returns.

        Raises:
            farstep.engine.EngineError: the network could not do it, or the collective was aborted.
        """

    def abort(self, reason: str) -> None:
        """Makes the pending operations and every later one fail at once, on this rank."""
