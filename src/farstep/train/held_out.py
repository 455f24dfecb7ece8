"""The held-out loss, measured by all ranks together without waiting for each other.

A collective would hang when somebody dies in it. So the windows are cut into as many shares as there were ranks at
the start, whoever trains now measures the shares of their seat, and the supervisor adds up what it is told. Replicas
are bit-identical, so it does not matter who measured a share, nor that two may have done so.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

__all__ = ["HeldOutLoss", "HeldOutLosses", "shares_of"]

Share = tuple[float, int]
"""Sum of the loss over windows, and how many they are."""


def shares_of(seat: int, num_seats: int, num_shares: int) -> range:
    """Returns the shares that one seat measures; those of all seats make up all shares."""
    return range(seat, num_shares, num_seats)


@dataclass(slots=True)
class HeldOutLoss:
    """One measurement, as it comes in."""

    shares: dict[int, Share] = field(default_factory=dict)

    @property
    def windows(self) -> int:
        """Windows measured so far."""
        return sum(count for _, count in self.shares.values())

    @property
    def loss(self) -> float:
        """Mean over all windows, nats per byte; added up in the same order whoever was first."""
        return sum(self.shares[share][0] for share in sorted(self.shares)) / self.windows


class HeldOutLosses:
    """Adds up what ranks have measured.

    A measurement is complete when all of its shares are in. If a rank was lost in the middle of it, it is over when all
    that are left have gone past it, and its mean is that of the shares there are.

    Args:
        num_shares: into which all windows are cut.
    """

    def __init__(self, num_shares: int) -> None:
        self._num_shares = num_shares
        self._open: dict[int, HeldOutLoss] = {}
        self._reached: dict[int, int] = {}
        self._newest_closed = -1

    def add(self, rank: int, step: int, shares: Mapping[int, Share]) -> None:
        """Takes what one rank has measured after so many steps."""
        self._reached[rank] = max(step, self._reached.get(rank, 0))
        if step > self._newest_closed:
            self._open.setdefault(step, HeldOutLoss()).shares.update(shares)

    def take_complete(self, living: Collection[int]) -> list[tuple[int, HeldOutLoss]]:
        """Returns the measurements that nothing more will come to, each once, with the number of steps.

        Args:
            living: ranks from which something may still come.
        """
        done = []
        for step in sorted(self._open):
            is_whole = len(self._open[step].shares) == self._num_shares
            if not is_whole and any(self._reached.get(rank, -1) < step for rank in living):
                break
            self._newest_closed = step
            measured = self._open.pop(step)
            if measured.windows:
                done.append((step, measured))
        return done
