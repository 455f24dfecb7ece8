"""Every step is the mean over all replicas, and all apply it or none does.

Buckets are reduced in the background while backward fills the next ones. When all are in, the ranks
vote with one word on the same transport: the least vote wins, so one rank that cannot apply the step
keeps all others from applying it, and one rank that was asked to stop stops all after the same step.
"""

import time
from dataclasses import dataclass

import torch

from farstep.train.buckets import Bucket
from farstep.train.collective import Collective, Pending

__all__ = ["Decision", "SynchronousPolicy"]

# A vote is 2 * may_apply + goes_on. The minimum over the ranks refuses the step if any rank does. A rank
# that wants to stop but is outvoted by a refusal (1 < 2) votes to stop again after the next step.
_APPLY = 2
_GO_ON = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks decided together about one step."""

    is_committed: bool
    goes_on: bool


class SynchronousPolicy:
    """Reduces the gradient of every step over all ranks before it is applied.

    Args:
        collective: the ranks that hold a replica each.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._pending: list[Pending] = []

    def bucket_ready(self, bucket: Bucket) -> None:
        """Starts to reduce a bucket; all ranks hand in the same buckets in the same order."""
        self._pending.append(self._collective.all_reduce(bucket.flat, "mean", background=True))

    def wait(self) -> int:
        """Waits until every bucket handed in holds the mean over all ranks.

        Returns:
            Nanoseconds spent waiting.

        Raises:
            farstep.engine.EngineError: the network could not do it, or the collective was aborted.
        """
        began_ns = time.monotonic_ns()
        pending, self._pending = self._pending, []
        for operation in pending:
            operation.wait()
        return time.monotonic_ns() - began_ns

    def vote(self, *, may_apply: bool, goes_on: bool) -> Decision:
        """Lets all ranks decide on the step whose gradient is in; all get the same decision."""
        self._vote[0] = _APPLY * may_apply + _GO_ON * goes_on
        self._collective.all_reduce(self._vote, "min")
        word = int(self._vote[0])
        return Decision(is_committed=bool(word & _APPLY), goes_on=bool(word & _GO_ON))
