"""The vote alone: acceptors and proposers whose messages come in any order, twice, late or never.

No clock and no connections: whatever can happen next is drawn from a seed. Small and quick, so that many
thousands of histories can be looked at; :mod:`tests.simulation.membership.world` is the whole machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from farstep.membership.acceptor import Acceptor
from farstep.membership.messages import Accept, AcceptedReply, Outdated, Prepare, Promise, Rejected
from farstep.membership.quorum import QuorumRule
from farstep.membership.records import Ballot, Generation, MemberInfo
from farstep.membership.round import Round


class History:
    """All that has been decided anywhere; raises as soon as there are two histories."""

    def __init__(self) -> None:
        self.decided: dict[int, Generation] = {}

    def note(self, generation: Generation) -> None:
        known = self.decided.setdefault(generation.number, generation)
        assert known.digest == generation.digest, (
            f"two generations {generation.number}: {known.describe()} by {known.ballot} "
            f"and {generation.describe()} by {generation.ballot}"
        )
        before = self.decided.get(generation.number - 1)
        if before is not None:
            assert generation.previous == before.digest, f"generation {generation.number} has another past"


@dataclass
class Proposing:
    """One coordinator, reduced to its ballots."""

    name: str
    base: Generation
    counter: int = 0
    round: Round | None = None
    certified: set[str] = field(default_factory=set)


Mail = tuple[Proposing, str, object]


class Votes:
    """A run of a few members, with several coordinators proposing at once."""

    def __init__(self, seed: int, *, num_members: int | None = None) -> None:
        self.draw = random.Random(seed)
        num_members = num_members or self.draw.randint(2, 5)
        self.num_made = 0
        seats = tuple(self.new_member() for _ in range(num_members))
        first = Generation(run_id="run/00000000", number=1, ballot=Ballot(0, "first"), seats=seats)
        self.history = History()
        self.history.note(first)
        self.acceptors: dict[str, Acceptor] = {}
        self.dead: set[str] = set()
        self.proposers = [Proposing(f"c{number}", first) for number in range(self.draw.randint(2, 3))]
        self.mail: list[Mail] = []  # who asks, whom, what
        self.answers: list[Mail] = []
        for info in seats:
            self.enter(info, first)

    def new_member(self) -> MemberInfo:
        self.num_made += 1
        name = f"m{self.num_made}"
        return MemberInfo(member_id=f"{name}/{self.num_made:08x}", name=name)

    def enter(self, info: MemberInfo, generation: Generation) -> None:
        acceptor = self.acceptors.setdefault(info.member_id, Acceptor(info.member_id))
        acceptor.on_commit(generation)

    # ---- what can happen ----

    def run(self, num_events: int) -> None:
        for _ in range(num_events):
            self.happen()

    def happen(self) -> None:
        event = self.draw.random()
        if event < 0.62:
            self.stint(self.draw.choice(self.proposers))
        elif event < 0.72 and self.mail:
            self.deliver_question(self.pick(self.mail))
        elif event < 0.80 and self.answers:
            self.deliver_answer(self.pick(self.answers))
        elif event < 0.86:
            self.kill()
        elif event < 0.96:
            self.certify(self.draw.choice(self.proposers))
        else:
            self.restart(self.draw.choice(self.proposers))

    def stint(self, proposing: Proposing) -> None:
        """One coordinator gets on with some of the members, until it is interrupted somewhere."""
        living = sorted(set(self.acceptors) - self.dead)
        reach = set(self.draw.sample(living, self.draw.randint(min(len(living), 1), len(living))))
        for _ in range(self.draw.randint(1, 24)):
            current = proposing.round
            if current is not None and current.is_decided and current.value is not None:
                self.decide(proposing, current.value)
            elif mail := self.first(self.mail, proposing, reach):
                self.deliver_question(mail)
            elif mail := self.first(self.answers, proposing, reach):
                self.deliver_answer(mail)
            elif proposing.round is None:
                self.open_round(proposing)
            elif proposing.round.is_prepared and proposing.round.value is None:
                self.propose(proposing)
            elif self.draw.random() < 0.3:
                self.open_round(proposing)
            else:
                return

    def first(self, mail: list[Mail], proposing: Proposing, reach: set[str]) -> Mail | None:
        for index, (whose, member_id, _) in enumerate(mail):
            if whose is proposing and member_id in reach:
                return mail[index] if self.draw.random() < 0.05 else mail.pop(index)
        return None

    def pick(self, mail: list[Mail]) -> Mail:
        """Takes any message, however old; sometimes it comes again later."""
        index = self.draw.randrange(len(mail))
        return mail[index] if self.draw.random() < 0.2 else mail.pop(index)

    def deliver_question(self, mail: Mail) -> None:
        proposing, member_id, question = mail
        if member_id in self.dead or self.draw.random() < 0.03:
            return
        acceptor = self.acceptors[member_id]
        match question:
            case Prepare():
                answer = acceptor.on_prepare(question)
            case Accept():
                answer = acceptor.on_accept(question)
            case Generation():
                acceptor.on_commit(question)
                return
        if answer is not None:
            self.answers.append((proposing, member_id, answer))

    def deliver_answer(self, mail: Mail) -> None:
        proposing, member_id, answer = mail
        current = proposing.round
        match answer:
            case Outdated(generation=generation):
                self.learn(proposing, generation)
            case Rejected(promised=promised):
                proposing.counter = max(proposing.counter, promised.counter)
                if current is not None and answer.ballot == current.ballot:
                    proposing.round = None
            case Promise() if current is not None:
                current.on_promise(member_id, answer)
            case AcceptedReply() if current is not None:
                current.on_accepted(member_id, answer)

    def decide(self, proposing: Proposing, value: Generation) -> None:
        self.history.note(value)
        self.learn(proposing, value)
        for info in (*value.seats, *proposing.base.seats):
            self.acceptors.setdefault(info.member_id, Acceptor(info.member_id))
            self.mail.append((proposing, info.member_id, value))

    def learn(self, proposing: Proposing, generation: Generation) -> None:
        if generation.number > proposing.base.number:
            proposing.base, proposing.round = generation, None

    def open_round(self, proposing: Proposing) -> None:
        proposing.counter += 1
        rule = QuorumRule(proposing.base.voter_ids, frozenset(proposing.certified) & proposing.base.voter_ids)
        ballot = Ballot(proposing.counter, proposing.name)
        proposing.round = Round(proposing.base, ballot, rule)
        self.ask(proposing, Prepare(number=proposing.base.number + 1, ballot=ballot), rule)

    def propose(self, proposing: Proposing) -> None:
        current = proposing.round
        if current is None or not current.is_prepared or current.value is not None:
            return
        base = proposing.base
        value = current.best.value if current.best else self.next_generation(proposing, base, current.ballot)
        rule = QuorumRule(base.voter_ids, frozenset(proposing.certified) & base.voter_ids)
        current.propose(value, rule)
        self.ask(proposing, Accept(ballot=current.ballot, value=value), rule)

    def next_generation(self, proposing: Proposing, base: Generation, ballot: Ballot) -> Generation:
        """Leaves out who is thought to be dead, and sometimes others, and takes in somebody new."""
        seats = [info for info in base.seats if info.member_id not in proposing.certified]
        if len(seats) > 1 and self.draw.random() < 0.4:
            seats.pop(self.draw.randrange(len(seats)))
        if len(seats) < 2 or self.draw.random() < 0.5:
            seats.append(self.new_member())
        return Generation(
            run_id=base.run_id,
            number=base.number + 1,
            ballot=ballot,
            previous=base.digest,
            seats=tuple(seats),
        )

    def ask(self, proposing: Proposing, question: object, rule: QuorumRule) -> None:
        for member_id in sorted(rule.voters - rule.certified):
            self.mail.append((proposing, member_id, question))
        del self.mail[:-60], self.answers[:-60]  # what is older is lost

    def kill(self) -> None:
        living = sorted(set(self.acceptors) - self.dead)
        if len(living) > 1:
            self.dead.add(self.draw.choice(living))

    def certify(self, proposing: Proposing) -> None:
        unknown = sorted(self.dead - proposing.certified)
        if unknown:
            proposing.certified.add(self.draw.choice(unknown))

    def restart(self, proposing: Proposing) -> None:
        """A coordinator dies, and another comes up at its place that has met one of the members."""
        living = [acceptor for name, acceptor in self.acceptors.items() if name not in self.dead]
        known = [acceptor.generation for acceptor in living if acceptor.generation is not None]
        if not known:
            return
        self.num_made += 1
        self.proposers.remove(proposing)
        self.proposers.append(Proposing(f"c{self.num_made}", self.draw.choice(known)))
