"""What comes next in a run: when a generation is due, when it is decided, and what it waits for otherwise.

The half of the coordinator's mind that looks at who is there and at the time; the other half, which listens
to members and operators, is :mod:`farstep.membership.proposer`.
"""

from __future__ import annotations

import random
import secrets
from typing import Any

from farstep.membership import messages as wire
from farstep.membership.complaints import Complaints
from farstep.membership.effects import AskKernel, Effect, Hangup, Note, Send
from farstep.membership.election import Election
from farstep.membership.plan import Blocked, Person, Plan, Standing, first_generation_members, plan_next
from farstep.membership.process import same_host
from farstep.membership.records import Ballot, Generation, MembershipConfig, Record
from farstep.membership.roster import Absence, Attendance, Roster
from farstep.membership.waiting import forming_text, missing_votes_text

__all__ = ["Succession"]

TICK_NS = 20_000_000
"""How often :meth:`Proposer.on_tick` wants to be called when nothing is under way."""

BUSY_TICK_NS = 2_000_000
"""How often when something is."""

BATCH_NS = 4_000_000
"""A death is acted upon so much later, so that those that die together are taken out together."""

WITNESS_DELAY_NS = (2_000_000, 200_000_000)
"""Kernels are asked whether a process has exited soon after it broke off, then less and less often."""

WAITING_NS = 200_000_000
"""What a run waits for is told to its members once it has waited so long."""


RUNLESS_NS = 5_000_000_000
"""A member that has been here for so long without a run may look for it at another coordinator; twice as long each
time it comes back, up to 32 times: the run may just have to wait for others."""


class Succession:
    """Who is there, and which generation they get.

    Args:
        config: how generations are formed and changed.
        now_ns: monotonic time; every later time is on the same clock.
        name: never used before; drawn if None.
        seed: of random waits and of the run's number; drawn if None.

    Attributes:
        generation: latest decided generation this coordinator knows.
        run_id: of the run it serves; None until generation 1 is formed or learned.
        waiting: what the run waits for, in words; None if it does not.
        ended: why the run has ended; None while it goes on.
    """

    def __init__(
        self, config: MembershipConfig, now_ns: int, *, name: str | None = None, seed: int | None = None
    ) -> None:
        self.config = config
        self.name = name or secrets.token_hex(8)
        self._draw = random.Random(secrets.randbits(64) if seed is None else seed)
        self._started_ns = now_ns
        self._last_tick_ns: int | None = None  # nobody was served before the first
        self.generation: Generation | None = None
        self.waiting: str | None = None
        self.ended: str | None = None
        self.lost: str | None = None
        self.roster = Roster(config)
        self._new_run_id = self._draw_run_id()
        self._complaints = Complaints()
        self._election = Election(self.name, self._draw, self._send_to)
        self._effects: list[Effect] = []
        self._urgent_since_ns: int | None = None
        self._forming_since_ns: int | None = None
        self._waiting_since_ns: int | None = None
        self._is_busy = False
        self._quiet_until_ns = 0
        self._lonely_until_ns = 0
        self._is_alone = False
        self._void_runs: set[str] = set()
        self._confirmed_ids: set[str] = set()
        self._final_step: int | None = None

    @property
    def run_id(self) -> str | None:
        """Number of the run; None before generation 1."""
        return self.generation.run_id if self.generation else None

    def take_effects(self) -> list[Effect]:
        """Returns what has to be done, in order, and forgets it."""
        effects, self._effects = self._effects, []
        return effects

    def wait_ns(self) -> int:
        """Returns how long the next tick may wait."""
        return BUSY_TICK_NS if self._is_busy else TICK_NS

    # ---- what comes next ----

    def _advance(self, now_ns: int) -> None:
        """Does all that can be done now."""
        self._is_busy = False
        self._quiet_until_ns = 0
        if self.generation is None:
            self._form(now_ns)
        if self.generation is None or self.ended is not None:
            return
        self._seek_certificates(now_ns)
        for _ in range(4):  # a commit may call for the next change at once
            if not self._step(now_ns):
                break
        else:
            self._is_busy = True
        is_settled = self.waiting is None and not self._complaints.is_pending
        if self.generation is not None and is_settled and not self._is_busy:
            # Nothing happens by itself before somebody has been silent for a while.
            items = (self.roster.get(member_id) for member_id in self.generation.voter_ids)
            self._quiet_until_ns = min(self.roster.doubt_ns(item) for item in items if item is not None)

    def _step(self, now_ns: int) -> bool:
        """Does one thing towards the next generation; returns whether one was committed."""
        base = self.generation
        assert base is not None
        people = self.roster.people(base, now_ns)
        self._note_losses(people)
        rule = self._election.rule(self.roster.certified, self.roster.dropped)
        if rule.voters <= rule.certified | rule.dropped:
            self._lose_run()
            self._wait_for(None, now_ns)
            return False
        retry = self._complaints.retry_reason(base, self.roster, now_ns)
        outcome = plan_next(base, people, self.config, retry=retry)
        if self._complaints.is_pending and isinstance(outcome, Plan) and not outcome.is_urgent:
            outcome = None
        plan = outcome if isinstance(outcome, Plan) else None
        living = self._living(now_ns)
        self._is_busy = self.waiting is None and (
            plan is not None
            or self._election.round is None
            or not self._election.round.is_prepared
            or any(person.standing is Standing.GONE for person in people.values())
            or self._has_breaks(base)
        )
        if not self._is_due(plan, now_ns):
            plan = None
        decided = self._election.advance(plan, living, rule, now_ns)
        if decided is None:
            text = None
            if isinstance(outcome, Blocked):
                text = outcome.text
            elif not rule.holds(living) and (outcome is not None or self._election.round is not None):
                text = missing_votes_text(base, self.roster, rule, living, self.config.run)
            self._wait_for(text, now_ns)
            return False
        is_retry = retry is not None and {m.member_id for m in decided.seats} == {
            m.member_id for m in base.seats
        }
        self._commit(decided, now_ns, is_retry=is_retry)
        return True

    def _is_due(self, plan: Plan | None, now_ns: int) -> bool:
        if plan is None or not plan.is_urgent:
            self._urgent_since_ns = None
            return True
        if self._urgent_since_ns is None:
            self._urgent_since_ns = now_ns
        return now_ns >= self._urgent_since_ns + BATCH_NS

    def _has_breaks(self, base: Generation) -> bool:
        """Whether the end of a grace is near for somebody whose connection broke."""
        items = (self.roster.get(member_id) for member_id in base.voter_ids)
        return any(item is not None and item.link is None and item.absence is Absence.LOST for item in items)

    def _living(self, now_ns: int) -> set[str]:
        assert self.generation is not None
        living = set()
        for member_id in self.generation.voter_ids:
            item = self.roster.get(member_id)
            if item is None or item.link is None or member_id in self.roster.certified | self.roster.dropped:
                continue
            if now_ns < self.roster.deadline_ns(item):
                living.add(member_id)
        return living

    def _is_lonely(self, item: Attendance, now_ns: int) -> bool:
        """Whether too few voters are here to decide anything; looked up once per tick, asked per heartbeat."""
        if self.generation is None:
            return now_ns >= item.arrived_ns + (RUNLESS_NS << min(item.num_arrivals - 1, 5))
        if now_ns >= self._lonely_until_ns:
            self._lonely_until_ns = now_ns + TICK_NS
            rule = self._election.rule(self.roster.certified, self.roster.dropped)
            self._is_alone = not rule.holds(self._living(now_ns))
        return self._is_alone

    def _convict(self) -> None:
        assert self.generation is not None
        verdict = self._complaints.convict(self.generation, self.config.min_groups)
        item = self.roster.get(verdict[0]) if verdict else None
        if verdict and item is not None and item.evicted is None:
            item.evicted = verdict[1]
            self._note("evict", item, reason=verdict[1])

    def _convict_stuck(self, now_ns: int) -> None:
        """Gives up the seats whose training threads are stuck while others wait; trying again would not help them.

        If most seats are stuck at once, something that all depend on may be, their storage say, and pass: then the
        step is tried once more first.
        """
        base = self.generation
        assert base is not None
        here = [item for info in base.seats if (item := self.roster.get(info.member_id)) is not None]
        stuck = [item for item in here if item.stuck_ns is not None and not self.roster.is_gone(item, now_ns)]
        num_heirs = sum(
            person.is_ready
            and person.standing is Standing.HERE
            and person.wants != "observer"
            and base.seat_of(person.info.member_id) is None
            for person in self.roster.people(base, now_ns).values()
        )
        num_empty = max(0, len(stuck) - num_heirs)
        num_left = len(base.seats) - num_empty
        can_go_on = num_left >= self.config.min_groups and not (num_empty and self.config.fixed_seats)
        is_most = 2 * len(stuck) > len(base.seats)
        if len(stuck) == len(base.seats) or not can_go_on or (is_most and not self._complaints.num_retries):
            return
        for item in stuck:
            beyond_s = (item.stuck_ns or 0) / 1e9
            item.evicted = (
                f"its part of a step did not come and its training thread is stuck, since {beyond_s:.1f} s"
            )
            self._note("evict", item, reason=item.evicted)

    def _form(self, now_ns: int) -> None:
        """Makes generation 1 once enough members are there. Nobody else can: the run's number is new."""
        people = [
            Person(item.info, item.wants, order=item.order)
            for item in self.roster.connected()
            if item.wants != "observer"
            and item.leaving is None
            and not item.was_member
            and not self.roster.is_gone(item, now_ns)
        ]
        num_seats = sum(person.wants == "seat" for person in people)
        if num_seats == 0:
            self._forming_since_ns = None
        elif self._forming_since_ns is None:
            self._forming_since_ns = now_ns
        is_late = (
            self._forming_since_ns is not None
            and now_ns >= self._forming_since_ns + self.config.join_window_s * 1e9
        )
        is_enough = num_seats >= self.config.expected_groups or (
            is_late and num_seats >= self.config.groups_to_form
        )
        if not is_enough or now_ns < self._started_ns + self.config.settle_s * 1e9:
            self._wait_for(forming_text(people, self.config) if people and not is_enough else None, now_ns)
            return
        seats, spares = first_generation_members(people, self.config)
        names = ", ".join(info.name for info in seats)
        first = Generation(
            run_id=self._new_run_id,
            number=1,
            ballot=Ballot(0, self.name),
            seats=seats,
            spares=spares,
            reason="the run begins",
            changes=(f"the run begins with {names}",),
        )
        self._commit(first, now_ns, is_retry=False)

    @property
    def _is_confirmed(self) -> bool:
        """Whether some member of the run has shown that it takes part in it."""
        return bool(self._confirmed_ids)

    def _lose_run(self) -> None:
        """Nobody is left who could go on: keeps in mind for people how far it was."""
        assert self.generation is not None
        found = (self.roster.get(info.member_id) for info in self.generation.seats)
        step = max((item.step for item in found if item is not None and item.step is not None), default=None)
        where = "" if step is None else f", at step {step:,}"
        lost = (
            f"{self.generation.run_id} has no member left{where}; a new run begins from the newest checkpoint"
        )
        self._drop_run("has no member left that could go on", **({} if step is None else {"step": step}))
        self.lost = lost

    def _drop_run(self, reason: str, **more: int) -> None:
        """Forgets the run: whoever comes next begins a new one, or brings another."""
        assert self.generation is not None
        run_id, number = self.generation.run_id, self.generation.number
        fields = {"run_id": run_id, "number": number, "reason": reason, **more}
        self._effects.append(Note("run_dropped", fields))
        self.generation = None
        self._election.set_base(None)
        self._complaints = Complaints()
        self._confirmed_ids.clear()
        self._new_run_id = self._draw_run_id()

    def _adopt(self, generation: Generation, now_ns: int) -> None:
        """Learns of a generation that was decided elsewhere."""
        self._install(generation, now_ns)
        self._effects.append(
            Note("generation_learned", {"number": generation.number, "run_id": generation.run_id})
        )
        for item in self.roster.connected():
            self._tell(item, generation)

    def _commit(self, generation: Generation, now_ns: int, *, is_retry: bool) -> None:
        began_ns = self._urgent_since_ns
        self._install(generation, now_ns)
        self._complaints.on_generation(generation, is_retry=is_retry, now_ns=now_ns)
        self._urgent_since_ns = None
        self._wait_for(None, now_ns)
        for item in self.roster.connected():
            self._tell(item, generation)
        took_ns = now_ns - began_ns if began_ns is not None else 0
        self._effects.append(Note("generation", generation_fields(generation, took_ns)))
        self._convict()

    def _install(self, generation: Generation, now_ns: int) -> None:
        self.generation = generation
        self.lost = None
        self._forming_since_ns = None
        self._election.set_base(generation)
        self.roster.expect(generation, now_ns)
        self.roster.forget(generation, now_ns)

    def _is_news(self, generation: Generation) -> bool:
        ours = self.generation
        return ours is None or (generation.run_id == ours.run_id and generation.number > ours.number)

    # ---- certificates ----

    def _certify(self, member_id: str, witness: str, now_ns: int) -> None:
        item = self.roster.get(member_id)
        if item is None or member_id in self.roster.certified:
            return
        self.roster.certified.add(member_id)
        self._note("death_certificate", item, witness=witness)
        if item.link is not None:
            link = item.link
            self.roster.leave(link, Absence.LOST, now_ns)
            self._effects.append(Hangup(link, wire.CLOSE_REFUSED, "certified to have exited"))
        self._advance(now_ns)

    def _seek_certificates(self, now_ns: int) -> None:
        """Asks kernels about members of the generation that have broken off."""
        base = self.generation
        if base is None:
            return
        for info in (*base.seats, *base.spares):
            item = self.roster.get(info.member_id)
            if item is None or item.member_id in self.roster.certified or now_ns < self.roster.doubt_ns(item):
                continue
            if item.witness_delay_ns and now_ns < item.next_witness_ns:
                continue
            delay_ns = max(WITNESS_DELAY_NS[0], min(2 * item.witness_delay_ns, WITNESS_DELAY_NS[1]))
            item.witness_delay_ns = delay_ns
            item.next_witness_ns = now_ns + delay_ns
            self._effects.append(AskKernel(info))
            for other in self.roster.connected():
                is_witness = other is not item and same_host(other.info.process, info.process)
                if is_witness and other.link is not None:
                    self._effects.append(Send(other.link, wire.Witness(info=info)))
                    break

    # ---- small things ----

    def _wait_for(self, text: str | None, now_ns: int) -> None:
        if text is None:
            self._waiting_since_ns = None
        elif self._waiting_since_ns is None:
            self._waiting_since_ns = now_ns
        if text == self.waiting or (
            text is not None
            and self._waiting_since_ns is not None
            and now_ns < self._waiting_since_ns + WAITING_NS
        ):
            return
        self.waiting = text
        self._broadcast(wire.Waiting(text=text))
        if text is not None:
            self._effects.append(Note("waiting", {"text": text}))

    def _note_losses(self, people: dict[str, Person]) -> None:
        for member_id, person in people.items():
            item = self.roster.get(member_id)
            if person.standing is Standing.GONE and item is not None and not item.is_reported_gone:
                item.is_reported_gone = True
                self._note("member_lost", item, cause=person.cause)

    def _tell(self, item: Attendance, generation: Generation) -> None:
        if item.link is not None:
            item.known_number = generation.number
            self._effects.append(Send(item.link, wire.Commit(value=generation)))

    def _broadcast(self, message: Record) -> None:
        for item in self.roster.connected():
            if item.link is not None:
                self._effects.append(Send(item.link, message))

    def _send_to(self, member_id: str, message: Record) -> None:
        item = self.roster.get(member_id)
        if item is not None and item.link is not None:
            self._effects.append(Send(item.link, message))

    def _note(self, kind: str, item: Attendance, **fields: Any) -> None:
        self._effects.append(Note(kind, {"member_id": item.member_id, **fields}, item.info.name))

    def _draw_run_id(self) -> str:
        return f"{self.config.run}/{self._draw.getrandbits(48):012x}"


def generation_fields(generation: Generation, took_ns: int) -> dict[str, Any]:
    """Returns what the event log says about a new generation."""
    return {
        "number": generation.number,
        "run_id": generation.run_id,
        "urgent": generation.is_urgent,
        "reason": generation.reason,
        "changes": list(generation.changes),
        "members": [info.name for info in generation.seats],
        "spares": [info.name for info in generation.spares],
        "took_ms": round(took_ns / 1e6, 3),
    }
