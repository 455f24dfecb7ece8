"""A member's vote on the generation after its own: single-decree Paxos, kept in memory.

The state dies with the process. That is safe because identities are never used twice: a member that has
forgotten its promises is another member.
"""

from __future__ import annotations

from farstep.membership.messages import (
    Accept,
    Accepted,
    AcceptedReply,
    Outdated,
    Prepare,
    Promise,
    Rejected,
)
from farstep.membership.records import Ballot, Generation

__all__ = ["Acceptor", "TwoHistories"]


class TwoHistories(RuntimeError):
    """Two different generations carry one number: somebody has overridden a part of the run that lived."""


class Acceptor:
    """The acceptor of one member.

    Attributes:
        generation: latest committed generation the member knows; it votes on the next one.
        promised: highest ballot promised for that.
        accepted: what was accepted for it last.
    """

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self.generation: Generation | None = None
        self.promised: Ballot | None = None
        self.accepted: Accepted | None = None

    @property
    def is_voter(self) -> bool:
        """Whether this member has a vote on the next generation."""
        return self.generation is not None and self._member_id in self.generation

    def on_prepare(self, message: Prepare) -> Promise | Rejected | Outdated | None:
        """Answers a proposer's first question; None if this member has no vote on it."""
        if (refusal := self._refusal(message.number, message.ballot)) is not None:
            return refusal
        if not self._votes_on(message.number):
            return None
        self.promised = message.ballot
        return Promise(number=message.number, ballot=message.ballot, accepted=self.accepted)

    def on_accept(self, message: Accept) -> AcceptedReply | Rejected | Outdated | None:
        """Answers a proposer's second question; None if this member has no vote on it."""
        value = message.value
        if (refusal := self._refusal(value.number, message.ballot)) is not None:
            return refusal
        if not self._votes_on(value.number):
            return None
        assert self.generation is not None
        if value.run_id != self.generation.run_id or value.previous != self.generation.digest:
            return None  # it does not follow the generation this member has a vote on
        self.promised = message.ballot
        self.accepted = Accepted(ballot=message.ballot, value=value)
        return AcceptedReply(number=value.number, ballot=message.ballot)

    def on_commit(self, value: Generation) -> bool:
        """Adopts a decided generation; returns whether it was news.

        Raises:
            TwoHistories: another one with this number had been decided, in this run.
        """
        known = self.generation
        if known is not None:
            if value.run_id != known.run_id or value.number < known.number:
                return False
            if value.number == known.number:
                if value.digest != known.digest:
                    raise TwoHistories(
                        f"run {value.run_id} has two generations {value.number}: {known.digest} and {value.digest}"
                    )
                return False
        self.generation = value
        self.promised = None
        self.accepted = None
        return True

    def _votes_on(self, number: int) -> bool:
        return self.generation is not None and self.is_voter and number == self.generation.number + 1

    def _refusal(self, number: int, ballot: Ballot) -> Rejected | Outdated | None:
        if self.generation is None:
            return None
        if number <= self.generation.number:
            return Outdated(generation=self.generation)
        if number == self.generation.number + 1 and self.promised is not None and ballot < self.promised:
            return Rejected(number=number, ballot=ballot, promised=self.promised)
        return None
