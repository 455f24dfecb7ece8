"""One attempt of one coordinator to decide one generation."""

from __future__ import annotations

from farstep.membership.messages import Accept, Accepted, AcceptedReply, Prepare, Promise
from farstep.membership.quorum import QuorumRule
from farstep.membership.records import Ballot, Generation

__all__ = ["Round"]


class Round:
    """The proposer's half of single-decree Paxos for one ballot.

    The first phase is usually done long before it is needed, right after the generation before was
    committed, so that a death costs one round trip. Each phase has its own rule, fixed when it begins:
    certificates that come later need a new round (:mod:`farstep.membership.quorum`).

    Attributes:
        base: the generation whose members vote.
        value: what is proposed; None during the first phase.
        asked: who has been asked in the phase under way, on a line that is still there or not.
        best: what some voter had accepted already, under the highest ballot of those that answered.
    """

    def __init__(self, base: Generation, ballot: Ballot, rule: QuorumRule) -> None:
        self.base = base
        self.ballot = ballot
        self.prepare_rule = rule
        self.accept_rule: QuorumRule | None = None
        self.value: Generation | None = None
        self.best: Accepted | None = None
        self.promises: set[str] = set()
        self.accepts: set[str] = set()
        self.asked: set[str] = set()

    @property
    def number(self) -> int:
        """Number of the generation that is to be decided."""
        return self.base.number + 1

    @property
    def rule(self) -> QuorumRule:
        """The rule of the phase under way."""
        return self.accept_rule or self.prepare_rule

    @property
    def electorate(self) -> frozenset[str]:
        """Who may be asked in the phase under way: those the rule does not count as dead or out."""
        return self.rule.voters - self.rule.certified - self.rule.dropped

    @property
    def question(self) -> Prepare | Accept:
        """What voters are asked in the phase under way."""
        if self.value is None:
            return Prepare(number=self.number, ballot=self.ballot)
        return Accept(ballot=self.ballot, value=self.value)

    @property
    def answers(self) -> set[str]:
        """Who has answered in the phase under way."""
        return self.promises if self.value is None else self.accepts

    @property
    def is_prepared(self) -> bool:
        """Whether enough voters have promised."""
        return self.prepare_rule.holds(self.promises)

    @property
    def is_decided(self) -> bool:
        """Whether enough voters have accepted."""
        return self.accept_rule is not None and self.accept_rule.holds(self.accepts)

    def on_promise(self, member_id: str, message: Promise) -> None:
        """Counts a promise, and remembers what its sender had accepted."""
        if message.number != self.number or message.ballot != self.ballot or self.value is not None:
            return
        self.promises.add(member_id)
        accepted = message.accepted
        if accepted is not None and (self.best is None or accepted.ballot > self.best.ballot):
            self.best = accepted

    def propose(self, value: Generation, rule: QuorumRule) -> None:
        """Begins the second phase."""
        assert self.is_prepared
        assert self.value is None
        assert self.best is None or self.best.value.digest == value.digest
        self.value = value
        self.accept_rule = rule
        self.asked.clear()

    def on_accepted(self, member_id: str, message: AcceptedReply) -> None:
        """Counts an acceptance."""
        if message.number == self.number and message.ballot == self.ballot and self.value is not None:
            self.accepts.add(member_id)
