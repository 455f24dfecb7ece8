"""How one coordinator gets the generation after the one it knows decided by that one's members."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from farstep.membership.messages import AcceptedReply, Promise, Rejected
from farstep.membership.plan import Plan
from farstep.membership.quorum import QuorumRule
from farstep.membership.records import Ballot, Generation, Record
from farstep.membership.round import Round

__all__ = ["Election"]

BACKOFF_NS = (20_000_000, 120_000_000)
"""After another proposer's ballot was in the way, the next attempt waits a random time between these."""


class Election:
    """Opens rounds, asks voters, and says when something is decided.

    Args:
        proposer: name of this coordinator, never used before.
        draw: source of the random waits.
        send: passes a question on to a voter that is connected.
    """

    def __init__(self, proposer: str, draw: random.Random, send: Callable[[str, Record], None]) -> None:
        self._proposer = proposer
        self._draw = draw
        self._send = send
        self._counter = 0
        self._backoff_until_ns = 0
        self.base: Generation | None = None
        self.round: Round | None = None

    def set_base(self, generation: Generation | None) -> None:
        """Starts over from a decided generation."""
        self.base = generation
        self.round = None
        if generation is not None:
            self._counter = max(self._counter, generation.ballot.counter)

    def rule(self, certified: Collection[str], dropped: Collection[str]) -> QuorumRule:
        """Returns who has to answer, as of now."""
        assert self.base is not None
        voters = self.base.voter_ids
        return QuorumRule(voters, voters & frozenset(certified), voters & frozenset(dropped))

    def advance(
        self, plan: Plan | None, living: Collection[str], rule: QuorumRule, now_ns: int
    ) -> Generation | None:
        """Does what can be done now; returns a generation that has been decided.

        Args:
            plan: what should come next; None if all can stay as it is.
            living: voters that are connected and heard.
            rule: :meth:`rule` as of now.
            now_ns: the time.
        """
        assert self.base is not None
        if self.round is None:
            if now_ns >= self._backoff_until_ns and rule.holds(living):
                self._open(rule, living)
            return None
        current = self.round
        if current.is_decided:
            return current.value
        if current.value is None and current.is_prepared and rule.holds(living):
            if current.best is not None:
                value: Generation | None = current.best.value
            else:
                value = self._value(plan) if plan is not None else None
            if value is not None:
                current.propose(value, rule)
                self._ask(current, living)
                return None
        # Certificates count only for those asked after them: ask anew if that decides and waiting does not.
        answers = current.answers | frozenset(living)
        if current.rule != rule and not current.rule.holds(answers) and rule.holds(living):
            self._open(rule, living)
        else:
            self._ask(current, living)  # those who were silent when the others were asked
        return None

    def question_for(self, member_id: str) -> Record | None:
        """Returns what a voter that has just connected has to be asked."""
        if self.round is None or member_id not in self.round.electorate:
            return None
        self.round.asked.add(member_id)
        return self.round.question

    def on_promise(self, member_id: str, message: Promise) -> None:
        """Takes a voter's answer to the first question."""
        if self.round is not None:
            self.round.on_promise(member_id, message)

    def on_accepted(self, member_id: str, message: AcceptedReply) -> None:
        """Takes a voter's answer to the second question."""
        if self.round is not None:
            self.round.on_accepted(member_id, message)

    def on_rejected(self, message: Rejected, now_ns: int) -> None:
        """Gives up a ballot: a voter has promised a higher one to another proposer."""
        self._counter = max(self._counter, message.promised.counter)
        if self.round is not None and message.ballot == self.round.ballot:
            self.round = None
            self._backoff_until_ns = now_ns + self._draw.randint(*BACKOFF_NS)

    def _open(self, rule: QuorumRule, living: Collection[str]) -> None:
        assert self.base is not None
        self._counter += 1
        self.round = Round(self.base, Ballot(self._counter, self._proposer), rule)
        self._ask(self.round, living)

    def _ask(self, current: Round, living: Collection[str]) -> None:
        """Puts the question of the phase to all living voters that have not been asked."""
        for member_id in sorted((current.electorate & frozenset(living)) - current.asked):
            current.asked.add(member_id)
            self._send(member_id, current.question)

    def _value(self, plan: Plan) -> Generation:
        assert self.base is not None
        assert self.round is not None
        return Generation(
            run_id=self.base.run_id,
            number=self.base.number + 1,
            ballot=self.round.ballot,
            previous=self.base.digest,
            seats=plan.seats,
            spares=plan.spares,
            is_urgent=plan.is_urgent,
            reason=plan.reason,
            changes=plan.changes,
        )
