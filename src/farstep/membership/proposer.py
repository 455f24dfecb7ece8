"""The coordinator's mind: who is there, which generation comes next, and how it gets decided.

Pure: messages, commands and the time go in, effects come out. It holds soft state only. Whatever it has to
know it learns from hellos, so it may die at any moment and come up again anywhere, and several of it may run
at once: the members' votes keep the history one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatchmethod
from typing import Any

from farstep.membership import messages as wire
from farstep.membership.bulletin import Bulletin
from farstep.membership.effects import CommandError, Hangup, Note, Send
from farstep.membership.plan import Blocked, plan_next
from farstep.membership.records import MembershipConfig, Record
from farstep.membership.roster import Absence, Attendance
from farstep.membership.succession import WITNESS_DELAY_NS, Succession

__all__ = ["Proposer"]

PAUSE_NS = 150_000_000
"""A tick that comes so late means that this process was stopped; the time does not count as others' silence."""

LONG_PAUSE_NS = 500_000_000
PAUSES_TOLD_NS = 10_000_000_000
"""Shorter pauses than the first are noted together, once in the second, by number and longest."""


class Proposer(Succession):
    """One coordinator: :class:`Succession` with ears.

    Args:
        config: how generations are formed and changed.
        now_ns: monotonic time; every later time is on the same clock.
        name: never used before; drawn if None.
        seed: of random waits and of the run's number; drawn if None.
    """

    def __init__(
        self, config: MembershipConfig, now_ns: int, *, name: str | None = None, seed: int | None = None
    ) -> None:
        super().__init__(config, now_ns, name=name, seed=seed)
        self._bulletin = Bulletin()
        self._pauses_told_ns = now_ns - PAUSES_TOLD_NS
        self._num_pauses = 0
        self._longest_pause_ns = 0

    # ---- what happens ----

    def on_message(self, link: int, message: wire.FromMember, now_ns: int) -> None:
        """Takes a message of a member."""
        self._feel_pause(now_ns)
        if isinstance(message, wire.Hello):
            self._on_hello(link, message, now_ns)
        else:
            item = self.roster.on_link(link)
            if item is None or item.link != link:
                self._effects.append(Hangup(link, wire.CLOSE_REFUSED, "say hello first"))
                return
            self.roster.heard(item, now_ns)
            self._handle(message, item, now_ns)
        if not isinstance(message, wire.Heartbeat | wire.StoreSet | wire.Request | wire.EventRecord):
            self._advance(now_ns)

    def on_closed(self, link: int, absence: Absence, now_ns: int) -> None:
        """Notes that a connection has ended."""
        self._feel_pause(now_ns)
        item = self.roster.leave(link, absence, now_ns)
        if item is not None:
            self._note("member_disconnected", item, cause=str(absence))
            self._advance(now_ns)

    def on_process_state(self, member_id: str, has_exited: bool | None, now_ns: int) -> None:
        """Takes the kernel's answer to :class:`AskKernel`."""
        item = self.roster.get(member_id)
        if item is None or has_exited is None:
            return
        if has_exited:
            self._certify(member_id, "the kernel of the coordinator's host", now_ns)
        elif (
            item.link is None
            and item.absence is Absence.LOST
            and now_ns >= item.absent_since_ns + 2 * WITNESS_DELAY_NS[0]
        ):
            item.absence = Absence.RUNNING

    def on_tick(self, now_ns: int) -> None:
        """Lets time pass."""
        self._feel_pause(now_ns)
        self._last_tick_ns = now_ns
        if now_ns >= self._quiet_until_ns:
            self._advance(now_ns)

    def _feel_pause(self, now_ns: int) -> None:
        """Notices that this process was stopped, before it blames anybody for silence."""
        if self._last_tick_ns is None:
            self._last_tick_ns = self._started_ns = now_ns
        pause_ns = now_ns - self._last_tick_ns - self.wait_ns()
        if pause_ns > PAUSE_NS:
            self._last_tick_ns = now_ns
            self.roster.forgive(pause_ns)
            self._tell_pause(pause_ns, now_ns)

    def _tell_pause(self, pause_ns: int, now_ns: int) -> None:
        """Notes a long pause at once and short ones, of which a busy machine has many, together."""
        self._num_pauses += 1
        self._longest_pause_ns = max(self._longest_pause_ns, pause_ns)
        if pause_ns < LONG_PAUSE_NS and now_ns < self._pauses_told_ns + PAUSES_TOLD_NS:
            return
        fields = {"pause_s": round(self._longest_pause_ns / 1e9, 3), "num_pauses": self._num_pauses}
        self._effects.append(Note("coordinator_paused", fields))
        self._pauses_told_ns, self._num_pauses, self._longest_pause_ns = now_ns, 0, 0

    # ---- commands ----

    def drain(self, name: str, reason: str, now_ns: int) -> str:
        """Asks a member to leave at the next step boundary."""
        item = self._member_named(name)
        if item.leaving is None:
            item.leaving = " ".join(reason.split()) or "drained by the operator"
        if item.link is not None:
            self._effects.append(Send(item.link, wire.Drain(reason=item.leaving)))
        self._note("drain", item, reason=item.leaving)
        self._advance(now_ns)
        blocked = self._obstacle(now_ns)
        return f"{item.info.name} is being drained: {item.leaving}" + (f"; {blocked}" if blocked else "")

    def evict(self, name: str, reason: str, now_ns: int) -> str:
        """Takes a member out at once, or as soon as the run can go on without it.

        The running step is run again without it.
        """
        item = self._member_named(name)
        item.evicted = " ".join(reason.split()) or "by the operator"
        self._note("evict", item, reason=item.evicted)
        self._advance(now_ns)
        text = f"{item.info.name} is evicted: {item.evicted}"
        is_seated = self.generation is not None and self.generation.seat_of(item.member_id) is not None
        blocked = self._obstacle(now_ns) if is_seated else None
        return text if blocked is None else f"{text}; it goes when the run can go on without it: {blocked}"

    def override(self, generation: int, names: Sequence[str], now_ns: int) -> str:
        """Decides without the named members of `generation` for good.

        Whoever calls this vouches that nobody trains with them elsewhere.

        Raises:
            CommandError: another generation is current, or one of the names is unknown, or connected and heard.
        """
        base = self.generation
        if base is None or base.number != generation:
            current = f"generation {base.number}" if base else "no generation"
            raise CommandError(
                f"generation {generation} is not the current one: this coordinator has {current}"
            )
        members = [*base.seats, *base.spares]
        dropped = set()
        for name in names:
            found = [info for info in members if name in (info.name, info.member_id)]
            if not found:
                raise CommandError(
                    f"{name} is no member of {base.describe()}; "
                    f"valid: {', '.join(info.name for info in members)}"
                )
            item = self.roster.get(found[0].member_id)
            if item is not None and self.roster.may_live(item, now_ns):
                # Also if it is evicted: as long as nothing is decided without it, it trains.
                raise CommandError(f"{name} is here; drain or evict it, then it votes on that itself")
            dropped.add(found[0].member_id)
        self.roster.dropped |= dropped
        for member_id in dropped:
            self._cut_off(member_id, now_ns)
        self._effects.append(
            Note("override", {"generation": generation, "dropped": sorted(dropped), "run_id": base.run_id})
        )
        self._advance(now_ns)
        without = f"without {', '.join(names)}"
        if self.generation is None:
            return f"run {base.run_id} is given up: nobody is left {without}; whoever comes begins a new one"
        if self.generation.number > generation:
            return f"generation {self.generation.number} is decided {without}"
        text = self._obstacle(now_ns) or self.waiting or "the votes are being collected"
        return f"generation {generation + 1} will be decided {without}: {text}"

    def _cut_off(self, member_id: str, now_ns: int) -> None:
        """Ends the line of a silent member that was dropped: what it says later must not count."""
        item = self.roster.get(member_id)
        if item is not None and item.link is not None:
            link = item.link
            self.roster.leave(link, Absence.LOST, now_ns)
            self._effects.append(Hangup(link, wire.CLOSE_REFUSED, "dropped by the operator"))

    def _obstacle(self, now_ns: int) -> str | None:
        """Says why nobody can be taken out now, if that is so."""
        if self.generation is None:
            return None
        people = self.roster.people(self.generation, now_ns)
        outcome = plan_next(self.generation, people, self.config)
        return outcome.text if isinstance(outcome, Blocked) else None

    def configure(self, changes: dict[str, Any], now_ns: int) -> MembershipConfig:
        """Changes group counts while the run goes on.

        Raises:
            pydantic.ValidationError: the values do not fit together.
        """
        self.config = MembershipConfig.model_validate({**self.config.model_dump(), **changes})
        self.roster.config = self.config
        self._effects.append(Note("config", dict(changes)))
        self._advance(now_ns)
        return self.config

    def people(self) -> list[Attendance]:
        """Returns everybody on the roster, in the order of their coming."""
        return sorted(self.roster, key=lambda item: item.order)

    # ---- hellos ----

    def _on_hello(self, link: int, hello: wire.Hello, now_ns: int) -> None:
        known = self.roster.on_link(link)
        if known is not None and known.member_id != hello.info.member_id:
            self._refuse(link, "this connection belongs to another member", is_final=False)
            return
        self._settle_runs(hello)
        if (refusal := self._refusal(hello, now_ns)) is not None:
            is_void = self._is_void(hello)
            self._refuse(link, *refusal, hello=hello, is_void=is_void)
            return
        if hello.generation is not None and self._is_news(hello.generation):
            self._adopt(hello.generation, now_ns)
        previous = self.roster.get(hello.info.member_id)
        is_new = previous is None or not previous.joined_ns
        if previous is not None and previous.link is not None and previous.link != link:
            old_link = previous.link
            self.roster.unlink(old_link)
            self._effects.append(Hangup(old_link, wire.CLOSE_MOVED, "there is a newer connection"))
        item = self.roster.enter(link, hello, now_ns)
        if hello.was_member and hello.generation is not None and hello.generation.run_id == self.run_id:
            self._confirmed_ids.add(item.member_id)
        if is_new:
            item.joined_ns = now_ns
        for member_id in hello.certified:
            self._accept_certificate(item, member_id, now_ns)
        if item.leaving is not None and hello.leaving is None:
            # Said when its line was down. It has to know before it hears of a generation without it.
            self._effects.append(Send(link, wire.Drain(reason=item.leaving)))
        self._effects.append(
            Send(
                link,
                wire.Welcome(
                    run_id=self.run_id or self._new_run_id,
                    coordinator=self.name,
                    generation=self.generation,
                    silence_s=self.config.silence_s,
                    heartbeat_s=self.config.heartbeat_s,
                ),
            )
        )
        item.known_number = self.generation.number if self.generation else 0
        self._note(
            "member_joined" if is_new else "member_returned", item, wants=item.wants, site=item.info.site
        )
        if self.ended is not None:
            self._effects.append(Send(link, wire.Ended(reason=self.ended, step=self._final_step)))
        if self.waiting is not None:
            self._effects.append(Send(link, wire.Waiting(text=self.waiting)))
        if item.wants != "observer":
            for owner, entry in self._bulletin:
                if owner != item.member_id:
                    self._effects.append(Send(link, wire.StoreValue(entry=entry)))
        if (question := self._election.question_for(item.member_id)) is not None:
            self._effects.append(Send(link, question))

    def _settle_runs(self, hello: wire.Hello) -> None:
        """Gives up this coordinator's run if a member of another one proves that it never began.

        Two coordinators that formed generation 1 at the same time, or one that died over it, may leave two
        runs. Nobody takes a step before all seats are there: a generation 1 whose seat is part of another
        run has no history, and neither has a run of which no member was ever heard here.
        """
        theirs, ours = hello.generation, self.generation
        if theirs is None or ours is None or theirs.run_id == ours.run_id or not hello.was_member:
            return
        if self.ended is not None:
            return  # it has had a history, and an end
        if ours.number == 1 and hello.info.member_id in ours:
            self._void_runs.add(ours.run_id)
            self._drop_run("never began: its members are part of another run")
        elif not self._is_confirmed and theirs.run_id not in self._void_runs:
            self._drop_run("was known by hearsay only")
        if theirs.number > 1:
            self._void_runs.discard(theirs.run_id)

    def _is_void(self, hello: wire.Hello) -> bool:
        """Whether the run this member belongs to never began."""
        theirs, ours = hello.generation, self.generation
        if theirs is None or theirs.number > 1 or not hello.was_member:
            return False
        if ours is None or theirs.run_id == ours.run_id:
            return theirs.run_id in self._void_runs
        return theirs.run_id in self._void_runs or (
            self._is_confirmed and bool(theirs.voter_ids & self._confirmed_ids & ours.voter_ids)
        )

    def _refusal(self, hello: wire.Hello, now_ns: int) -> tuple[str, bool] | None:
        """Returns why a member cannot be served, and whether that is for good."""
        member_id, name = hello.info.member_id, hello.info.name
        if hello.version != wire.PROTOCOL_VERSION:
            return (
                f"protocol version {hello.version} is not {wire.PROTOCOL_VERSION}, which this coordinator speaks",
                True,
            )
        if hello.run != self.config.run:
            return f"this is the coordinator of run {self.config.run}, not of {hello.run}", False
        if member_id in self.roster.certified:
            return f"{member_id} was certified to have exited; come back as a new incarnation", True
        if member_id in self.roster.dropped:
            return f"{member_id} was dropped by the operator; come back as a new incarnation", True
        theirs, ours = hello.generation, self.generation
        if theirs is not None and ours is None and self._is_void(hello):
            return f"generation 1 of run {theirs.run_id} never began", False
        if theirs is not None and ours is not None:
            if theirs.run_id != ours.run_id and hello.was_member:
                return f"{name} belongs to run {theirs.run_id}, this coordinator serves {ours.run_id}", False
            if theirs.run_id == ours.run_id and theirs.number == ours.number and theirs.digest != ours.digest:
                self._effects.append(
                    Note(
                        "two_histories",
                        {"number": ours.number, "ours": ours.digest, "theirs": theirs.digest},
                        name,
                    )
                )
                text = f"two histories: {name} has another generation {ours.number} than this coordinator"
                return f"{text}; a part of the run was overridden while it lived", True
        for other in self.roster.find(name):
            if other.member_id == member_id or hello.wants == "observer" or other.wants == "observer":
                continue
            if other.link is not None and not self.roster.is_gone(other, now_ns) and other.leaving is None:
                return (
                    f"the name {name} is in use by {other.member_id} (pid {other.info.pid} on {other.info.host})",
                    False,
                )
        return None

    def _refuse(
        self,
        link: int,
        reason: str,
        is_final: bool,
        hello: wire.Hello | None = None,
        *,
        is_void: bool = False,
    ) -> None:
        refused = wire.Refused(reason=reason, is_final=is_final, is_void=is_void)
        self._effects.append(Send(link, refused))
        self._effects.append(Hangup(link, wire.CLOSE_REFUSED, reason[:100]))
        self._effects.append(Note("refused", {"reason": reason}, hello.info.name if hello else None))

    # ---- other messages ----

    @singledispatchmethod
    def _handle(self, message: Record, item: Attendance, now_ns: int) -> None:
        raise AssertionError(f"no handler for {type(message).__name__}")

    @_handle.register
    def _(self, message: wire.Heartbeat, item: Attendance, now_ns: int) -> None:
        if message.rtt_ns is not None:
            item.rtt_ns = message.rtt_ns
        item.stuck_ns = message.stuck_ns
        if message.step is not None:
            item.step = message.step
            if self.generation is not None and self.generation.seat_of(item.member_id) is not None:
                self._complaints.on_progress(message.step)
        if message.figures:
            item.figures = dict(message.figures)
        assert item.link is not None
        reply = wire.HeartbeatReply(
            sequence=message.sequence, event_serial=item.event_serial, is_lonely=self._is_lonely(item, now_ns)
        )
        self._effects.append(Send(item.link, reply))

    @_handle.register
    def _(self, message: wire.Promise, item: Attendance, now_ns: int) -> None:
        self._confirmed_ids.add(item.member_id)
        self._election.on_promise(item.member_id, message)

    @_handle.register
    def _(self, message: wire.AcceptedReply, item: Attendance, now_ns: int) -> None:
        self._confirmed_ids.add(item.member_id)
        self._election.on_accepted(item.member_id, message)

    @_handle.register
    def _(self, message: wire.Rejected, item: Attendance, now_ns: int) -> None:
        self._election.on_rejected(message, now_ns)

    @_handle.register
    def _(self, message: wire.Outdated, item: Attendance, now_ns: int) -> None:
        if self._is_news(message.generation):
            self._adopt(message.generation, now_ns)

    @_handle.register
    def _(self, message: wire.FailureReport, item: Attendance, now_ns: int) -> None:
        base = self.generation
        if base is None or not self._complaints.add(item.member_id, message, base, now_ns):
            return
        suspects = [member_id.rpartition("/")[0] for member_id in message.suspects]
        self._note(
            "failure_report", item, generation=message.generation, suspects=suspects, reason=message.reason
        )
        self._convict()
        if message.late:
            self._convict_stuck(now_ns)

    @_handle.register
    def _(self, message: wire.Ready, item: Attendance, now_ns: int) -> None:
        if (item.ready_step is None) != (message.step is None):
            self._note(
                "member_ready" if message.step is not None else "member_not_ready", item, step=message.step
            )
        item.ready_step = message.step

    @property
    def final_step(self) -> int | None:
        """Steps the run has made in all, once it has ended and if anybody said how many."""
        return self._final_step

    @_handle.register
    def _(self, message: wire.Leave, item: Attendance, now_ns: int) -> None:
        if item.leaving is None:
            self._note("member_leaves", item, reason=message.reason, finished=message.finished)
        item.leaving = item.leaving or message.reason or "leaves"
        if message.finished and self.ended is None and self._knows_the_end(item, message):
            self.ended = message.reason or "finished"
            self._final_step = message.step
            self._wait_for(None, now_ns)
            self._effects.append(Note("run_ended", {"reason": self.ended}, item.info.name))
            self._broadcast(wire.Ended(reason=self.ended, step=message.step))

    @_handle.register
    def _(self, message: wire.DeathCertificate, item: Attendance, now_ns: int) -> None:
        self._accept_certificate(item, message.member_id, now_ns)

    @_handle.register
    def _(self, message: wire.StoreSet, item: Attendance, now_ns: int) -> None:
        self._post(item, message.entry)

    @_handle.register
    def _(self, message: wire.Request, item: Attendance, now_ns: int) -> None:
        for other in self.roster.find(message.to):
            if other.link is not None:
                self._effects.append(
                    Send(other.link, wire.Requested(sender=item.member_id, payload=message.payload))
                )
                return

    @_handle.register
    def _(self, message: wire.EventRecord, item: Attendance, now_ns: int) -> None:
        if message.serial and message.serial <= item.event_serial:
            return  # told again, as its receipt was lost
        item.event_serial = message.serial
        self._effects.append(Note(message.event, dict(message.fields), item.info.name, message.age_ns))

    def _knows_the_end(self, item: Attendance, message: wire.Leave) -> bool:
        """Whether a member that says so can know that the run is finished.

        Whoever has a seat does. Others may have had one in the last step, before a generation without them was
        decided; or they were told. Not so one that hung while the run went on: it is behind. And not so one that
        wanted to leave and was let go: its own end is not the run's.
        """
        base = self.generation
        if base is None or not item.was_member:
            return False
        is_seated = base.seat_of(item.member_id) is not None
        was_let_go = not is_seated and item.leaving not in (message.reason, message.reason or "leaves")
        if was_let_go or message.step is None:
            return is_seated
        steps = (other.step for info in base.seats if (other := self.roster.get(info.member_id)) is not None)
        return all((step or 0) <= message.step for step in steps)

    def _accept_certificate(self, sender: Attendance, member_id: str, now_ns: int) -> None:
        """Takes a member's word that a process of its own host has exited."""
        item = self.roster.get(member_id)
        if item is None or member_id in self.roster.certified:
            return
        if item.info.host != sender.info.host:
            here, there = sender.info.host, item.info.host
            text = f"{sender.info.name} on {here} cannot know whether a process on {there} has exited"
            self._note("certificate_refused", item, reason=text)
            return
        self._certify(member_id, f"{sender.info.name} on {sender.info.host}", now_ns)

    def _post(self, item: Attendance, entry: wire.StoreEntry) -> None:
        if item.wants == "observer" or not self._bulletin.post(item.member_id, entry):
            return
        for other in self.roster.connected():
            if other is not item and other.wants != "observer" and other.link is not None:
                self._effects.append(Send(other.link, wire.StoreValue(entry=entry)))

    def _member_named(self, name: str) -> Attendance:
        found = [item for item in self.roster.find(name) if item.wants != "observer"]
        base = self.generation
        for item in found:
            if item.link is not None or (base is not None and item.member_id in base):
                return item
        valid = sorted({item.info.name for item in self.roster.connected() if item.wants != "observer"})
        raise CommandError(f"there is no member {name}; valid: {', '.join(valid) or 'none is here'}")
