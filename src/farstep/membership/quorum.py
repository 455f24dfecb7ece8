"""Quorum of what: of the members of the generation before, seats and spares alike.

With n voters a quorum is q = floor(n/2) + 1 of them. A voter whose process is known to have exited can
neither answer nor ever come back, so it may be counted as one that agrees, under two conditions.

1. ``|living| + |certified| >= q`` and ``|living| >= n - q + 1``. The second says that the living alone intersect
   every majority that may have decided something before the certified ones died. For odd n it is a
   majority anyway; for even n it lets exactly half of the voters go on: of two, the one that is left.
2. The certificates are there *before* the living are asked. If they could be added later, both halves
   might die after having answered, each counting the other's death (`tests/unit/membership/test_quorum.py`
   has the history).

Why that is enough: let two quorums have disjoint living parts L1, L2. Then n is even, ``|L1| = |L2| = n/2``,
and each needs a certificate for a member of the other: x of L2, dead before L1 was asked, and y of L1, dead
before L2 was asked. But y answered after x had died, and x answered after y had died.

The operator's override takes voters out of the count altogether. Whoever gives it vouches for that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["QuorumRule", "quorum_size"]


def quorum_size(num_voters: int) -> int:
    """Returns the least number that is more than half of the voters."""
    return num_voters // 2 + 1


@dataclass(frozen=True, slots=True)
class QuorumRule:
    """Who has to answer, as known when they are asked.

    Attributes:
        voters: identities of the seats and spares of the generation before.
        certified: voters whose processes had exited when the others were asked.
        dropped: voters that the operator has taken out.
    """

    voters: frozenset[str]
    certified: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()

    @property
    def num_needed(self) -> int:
        """Living voters that must answer, given the certificates."""
        num_voters = len(self.voters - self.dropped)
        size = quorum_size(num_voters)
        num_certified = len((self.certified & self.voters) - self.dropped)
        return max(size - num_certified, num_voters - size + 1, 1)

    def holds(self, living: Collection[str]) -> bool:
        """Whether these answers decide."""
        answers = (self.voters & frozenset(living)) - self.certified - self.dropped
        return len(answers) >= self.num_needed
