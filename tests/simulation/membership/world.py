"""The whole of membership in simulated time: coordinators, members, lines between them, and trouble.

Everything is drawn from a seed, so a failing seed is the bug report. Lines keep the order of their messages
and delay them; a cut holds messages back in one direction or both until it heals, as TCP does, unless the
line is given up before. What was said on an old line may still arrive after the member has a new one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from farstep.membership import messages as wire
from farstep.membership.client import LONELY_FIRST_FACTOR, LONELY_S
from farstep.membership.desk import FAREWELL_S
from farstep.membership.effects import AskKernel, Hangup, Note, Send
from farstep.membership.member import EndNotice, GenerationNotice, MemberCore, RefusalNotice, SplitNotice
from farstep.membership.proposer import Proposer
from farstep.membership.records import Generation, MemberInfo, MembershipConfig
from farstep.membership.roster import Absence

MS = 1_000_000
S = 1_000_000_000


class History:
    """All generations that anybody believes in, by run."""

    def __init__(self) -> None:
        self.by_number: dict[tuple[str, int], Generation] = {}

    def note(self, generation: Generation) -> None:
        key = (generation.run_id, generation.number)
        known = self.by_number.setdefault(key, generation)
        assert known.digest == generation.digest, (
            f"two generations {generation.number}: {known.describe()} by {known.ballot} "
            f"and {generation.describe()} by {generation.ballot}"
        )
        before = self.by_number.get((generation.run_id, generation.number - 1))
        after = self.by_number.get((generation.run_id, generation.number + 1))
        assert before is None or generation.previous == before.digest, f"{key} has another past"
        assert after is None or after.previous == generation.digest, f"{key} has another future"

    def runs(self) -> set[str]:
        return {run_id for run_id, _ in self.by_number}


@dataclass(eq=False)
class Line:
    number: int
    member: Member
    place: Place
    is_open: bool = True
    up_free_ns: int = 0
    down_free_ns: int = 0
    held_up: list[object] = field(default_factory=list)
    held_down: list[object] = field(default_factory=list)


@dataclass(eq=False)
class Place:
    """An address at which a coordinator may run."""

    number: int
    host: str
    proposer: Proposer | None = None
    lines: dict[int, Line] = field(default_factory=dict)
    is_paused: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list)
    life: int = 0
    notes: list[Note] = field(default_factory=list)


@dataclass(eq=False)
class Member:
    core: MemberCore
    host: str
    addresses: list[int]
    is_dead: bool = False
    is_stopped: bool = False
    line: Line | None = None
    next_address: int = 0
    last_heard_ns: int = 0
    lonely_until_ns: int = 0
    num_lonely: int = 0
    connected_ns: int = 0
    was_evicted: bool = False
    left_for: str | None = None
    """Why it had to leave, as it knew when it learned that a generation is without it."""
    is_told: bool = False
    """It knows that the run has ended."""
    comes_back: bool = False
    """If evicted it comes back as a new incarnation."""
    backlog: list[Callable[[], None]] = field(default_factory=list)
    committed_ns: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.core.info.name

    @property
    def generation(self) -> Generation | None:
        return self.core.generation


class World:
    """A run and its surroundings.

    Args:
        seed: decides everything that is not told.
        config: of all coordinators.
        num_places: addresses at which coordinators may run; all are known to all members.
        delay_ms: least and most delay of a message.
        witnesses: whether hosts' kernels can be asked about the dead.
        tick_factor: how much rarer coordinators tick than they want, to look at more seeds in the same time.
    """

    def __init__(
        self,
        seed: int,
        config: MembershipConfig,
        *,
        num_places: int = 2,
        delay_ms: tuple[float, float] = (0.2, 8.0),
        witnesses: bool = True,
        tick_factor: int = 1,
    ) -> None:
        self.draw = random.Random(seed)
        self.seed = seed
        self.config = config
        self.now_ns = 0
        self.history = History()
        self.delay_ns = (round(delay_ms[0] * MS), round(delay_ms[1] * MS))
        self.witnesses = witnesses
        self.tick_factor = tick_factor
        self.places = [Place(number, f"host-c{number}") for number in range(num_places)]
        self.members: list[Member] = []
        self.cuts_up: set[tuple[int, int]] = set()  # (index of member, number of place)
        self.cuts_down: set[tuple[int, int]] = set()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._line_numbers = itertools.count(1)
        self._exited: dict[str, Member] = {}

    # ---- time ----

    def at(self, delay_ns: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._order), call))

    def run(self, seconds: float) -> None:
        end_ns = self.now_ns + round(seconds * S)
        while self._events and self._events[0][0] <= end_ns:
            self.now_ns, _, call = heapq.heappop(self._events)
            call()
        self.now_ns = end_ns

    def run_until(self, is_true: Callable[[], bool], limit_s: float) -> float:
        """Runs until something is true; returns how long that took, in seconds."""
        began_ns = self.now_ns
        while not is_true():
            if self.now_ns - began_ns > limit_s * S:
                raise AssertionError(f"seed {self.seed}: not true after {limit_s} s\n{self.describe()}")
            self.run(0.005)
        return (self.now_ns - began_ns) / S

    # ---- who is there ----

    def start_coordinator(self, number: int) -> None:
        place = self.places[number]
        place.life += 1
        place.proposer = Proposer(
            self.config, self.now_ns, name=f"c{number}.{place.life}", seed=self.draw.getrandbits(32)
        )
        self._tick(place, place.life)

    def kill_coordinator(self, number: int) -> None:
        place = self.places[number]
        place.proposer = None
        place.is_paused = False
        place.backlog.clear()
        for line in list(place.lines.values()):
            self._close(line, from_member=False)
        place.lines.clear()

    def pause_coordinator(self, number: int, is_paused: bool) -> None:
        place = self.places[number]
        place.is_paused = is_paused
        if not is_paused:
            backlog, place.backlog = place.backlog, []
            for call in backlog:
                call()

    def add_member(self, name: str, *, host: str = "", wants: str = "seat", is_ready: bool = False) -> Member:
        serial = len(self.members)
        host = host or f"host-{name}"
        info = MemberInfo(
            member_id=f"{name}/{serial:08x}", name=name, host=host, process=f"boot:{host}:{serial}:1"
        )
        core = MemberCore(info, self.config.run, wants, ask_kernel=lambda process: self._ask(process, host))
        core.step = 0  # it trains: the limit for those that still start does not hold
        if is_ready:
            core.announce_ready(0)
        addresses = list(range(len(self.places)))
        member = Member(core, host, addresses)
        self.members.append(member)
        self.at(self.draw.randint(0, 50 * MS), lambda: self._beat(member))
        return member

    def kill(self, member: Member) -> None:
        member.is_dead = True
        self._exited[member.core.info.process] = member
        if member.line is not None:
            self._close(member.line, from_member=True, absence=Absence.LOST)

    def go(self, member: Member) -> None:
        """Ends a member in order, as one does that has closed its membership."""
        if member.is_dead:
            return
        member.is_dead = True
        self._exited[member.core.info.process] = member
        if member.line is not None:
            self._close(member.line, from_member=True, absence=Absence.LEFT)

    def finish(self, member: Member, step: int) -> None:
        """Has a member say that the run is finished, and go once that was heard, or nobody has heard it for long."""
        if not member.is_dead:
            member.core.leave("finished", finished=True, step=step)
            self._flush(member)
            self.at(round(FAREWELL_S * S), lambda: self.go(member))

    def come_back(self, member: Member) -> None:
        """Has a replica group come back as a new incarnation in the same process."""
        if not member.is_dead:
            self.go(member)
            self.add_member(member.name, host=member.host, wants=member.core.wants).comes_back = True

    def stop(self, member: Member, is_stopped: bool) -> None:
        member.is_stopped = is_stopped
        if not is_stopped:
            backlog, member.backlog = member.backlog, []
            for call in backlog:
                call()

    def cut(self, member: Member, place: int, *, up: bool = True, down: bool = True) -> None:
        key = (self.members.index(member), place)
        if up:
            self.cuts_up.add(key)
        if down:
            self.cuts_down.add(key)

    def heal(self) -> None:
        """Takes back all cuts; what was held goes on its way."""
        self.cuts_up.clear()
        self.cuts_down.clear()
        for place in self.places:
            for line in list(place.lines.values()):
                held, line.held_up = line.held_up, []
                for message in held:
                    self._up(line, message)
                held, line.held_down = line.held_down, []
                for message in held:
                    self._down(line, message)

    def living(self) -> list[Member]:
        return [member for member in self.members if not member.is_dead]

    def seated(self) -> list[Member]:
        return [m for m in self.living() if m.generation and m.core.info.member_id in m.generation]

    def agree(self, members: list[Member]) -> bool:
        """Whether all of them hold one and the same generation, made of them alone."""
        latest = {m.generation.digest if m.generation else None for m in members}
        if len(latest) != 1 or None in latest:
            return False
        generation = members[0].generation
        assert generation is not None
        return generation.voter_ids == {m.core.info.member_id for m in members}

    def describe(self) -> str:
        lines = [f"at {self.now_ns / S:.3f} s"]
        for m in self.members:
            state = "dead" if m.is_dead else "stopped" if m.is_stopped else "alive"
            known = m.generation.describe() if m.generation else "nothing"
            where = m.line.place.number if m.line else "-"
            lines.append(f"  {m.name} {state} at {where}: {known}; {m.core.waiting or ''}")
        for place in self.places:
            proposer = place.proposer
            known = proposer.generation.describe() if proposer and proposer.generation else "nothing"
            lines.append(
                f"  c{place.number} {'up' if proposer else 'down'}: {known}; {proposer and proposer.waiting}"
            )
        return "\n".join(lines)

    # ---- coordinators ----

    def _tick(self, place: Place, life: int) -> None:
        proposer = place.proposer
        if proposer is None or place.life != life:
            return
        if not place.is_paused:
            proposer.on_tick(self.now_ns)
            self._carry_out(place)
        wait_ns = proposer.wait_ns()
        self.at(wait_ns * self.tick_factor, lambda: self._tick(place, life))

    def _carry_out(self, place: Place) -> None:
        proposer = place.proposer
        assert proposer is not None
        while effects := proposer.take_effects():
            for effect in effects:
                match effect:
                    case Send(link, message):
                        if link in place.lines:
                            self._down(place.lines[link], message)
                    case Hangup(link, _, _):
                        if link in place.lines:
                            self._close(place.lines[link], from_member=False)
                    case Note():
                        place.notes.append(effect)
                    case AskKernel(info):
                        exited = self._ask(info.process, place.host)
                        proposer.on_process_state(info.member_id, exited, self.now_ns)
        if proposer.generation is not None:
            self.history.note(proposer.generation) if proposer.generation.number > 1 else None

    def _ask(self, process: str, host: str) -> bool | None:
        if not self.witnesses or f":{host}:" not in process:
            return None
        return process in self._exited

    def _at_place(self, place: Place, life: int, call: Callable[[], None]) -> None:
        if place.proposer is None or place.life != life:
            return
        if place.is_paused:
            place.backlog.append(lambda: self._at_place(place, life, call))
            return
        call()
        self._carry_out(place)

    # ---- lines ----

    def _delay(self) -> int:
        return self.draw.randint(*self.delay_ns)

    def _up(self, line: Line, message: object) -> None:
        place, life = line.place, line.place.life
        if self._is_cut(self.cuts_up, line):
            line.held_up.append(message)
            return
        line.up_free_ns = max(line.up_free_ns, self.now_ns + self._delay())

        def arrive() -> None:
            proposer = place.proposer
            assert proposer is not None
            proposer.on_message(line.number, message, self.now_ns)

        self.at(line.up_free_ns - self.now_ns, lambda: self._at_place(place, life, arrive))

    def _down(self, line: Line, message: object) -> None:
        if self._is_cut(self.cuts_down, line):
            line.held_down.append(message)
            return
        line.down_free_ns = max(line.down_free_ns, self.now_ns + self._delay())
        self.at(line.down_free_ns - self.now_ns, lambda: self._hear(line, message))
        if self.draw.random() < 0.02:  # an echo of an old line, long after
            self.at(self.draw.randint(0, 2 * S), lambda: self._hear(line, message, is_echo=True))

    def _is_cut(self, cuts: set[tuple[int, int]], line: Line) -> bool:
        return bool(cuts) and (self.members.index(line.member), line.place.number) in cuts

    def _close(self, line: Line, *, from_member: bool, absence: Absence = Absence.MOVED) -> None:
        """Ends a line; each side learns of it in time, unless it is cut."""
        if not line.is_open:
            return
        line.is_open = False
        place, life, member = line.place, line.place.life, line.member
        if member.line is line:
            if from_member:
                self._lose(member, line)
            else:
                self.at(self._delay(), lambda: self._lose(member, line))
        if not from_member:
            place.lines.pop(line.number, None)
        is_cut = self._is_cut(self.cuts_up, line)

        def arrive() -> None:
            proposer = place.proposer
            assert proposer is not None
            place.lines.pop(line.number, None)
            proposer.on_closed(line.number, absence, self.now_ns)

        line.up_free_ns = max(line.up_free_ns, self.now_ns + self._delay())
        delay_ns = 3 * S if is_cut else line.up_free_ns - self.now_ns
        self.at(delay_ns, lambda: self._at_place(place, life, arrive))

    # ---- members ----

    def _lose(self, member: Member, line: Line) -> None:
        if member.line is line:
            member.line = None
            member.core.disconnected()
            if not member.is_dead:
                self.at(self.draw.randint(1, 5) * MS, lambda: self._connect(member))

    def _beat(self, member: Member) -> None:
        if member.is_dead:
            return
        self.at(100 * MS, lambda: self._beat(member))
        if member.is_stopped:
            member.last_heard_ns += 100 * MS
            return
        line = member.line
        if line is None:
            self._connect(member)
            return
        if self.now_ns - member.last_heard_ns > self.config.silence_s * S:
            member.next_address += 1
            self._close(line, from_member=True)
            return
        if not member.core.is_lonely:
            member.lonely_until_ns = 0
            if member.core.is_welcome and self.now_ns - member.connected_ns > 200 * MS:
                member.num_lonely = 0
        elif not member.lonely_until_ns:
            is_first = member.num_lonely > 1 and line.place.number == 0
            stay_s = self.draw.uniform(*LONELY_S) * (LONELY_FIRST_FACTOR if is_first else 1)
            member.lonely_until_ns = self.now_ns + round(stay_s * S)
        elif self.now_ns >= member.lonely_until_ns and len(self.places) > 1:
            member.lonely_until_ns = 0
            member.num_lonely += 1
            member.next_address += 1
            self._close(line, from_member=True)
            return
        if member.core.is_welcome:
            self._up(line, member.core.heartbeat(self.now_ns))
        self._flush(member)

    def _connect(self, member: Member) -> None:
        if member.line is not None or member.is_dead or member.is_stopped:
            return
        number = member.addresses[member.next_address % len(member.addresses)]
        place = self.places[number]
        key = (self.members.index(member), number)
        if place.proposer is None or key in self.cuts_up or key in self.cuts_down:
            member.next_address += 1
            return  # refused, or no answer; the next beat tries again
        line = Line(next(self._line_numbers), member, place)
        place.lines[line.number] = line
        member.line = line
        member.last_heard_ns = member.connected_ns = self.now_ns
        self._up(line, member.core.hello())

    def _hear(self, line: Line, message: object, *, is_echo: bool = False) -> None:
        member = line.member
        if member.is_dead or (member.line is not line and not is_echo):
            return
        if is_echo and not isinstance(message, wire.Prepare | wire.Accept | wire.Commit):
            return
        if member.is_stopped:
            member.backlog.append(lambda: self._hear(line, message, is_echo=is_echo))
            return
        member.last_heard_ns = self.now_ns
        member.core.on_message(message, self.now_ns)
        notices, member.core.notices = member.core.notices, []
        for notice in notices:
            assert not isinstance(notice, SplitNotice), notice
            if isinstance(notice, GenerationNotice):
                self.history.note(notice.generation)
                assert not member.was_evicted or member.core.is_evicted, f"{member.name} came back"
                if member.core.is_evicted and not member.was_evicted and member.comes_back:
                    self.at(self.draw.randint(0, 50 * MS), lambda: self._renew(member))
                if member.core.is_evicted and not member.was_evicted:
                    member.left_for = member.core.leaving
                member.was_evicted = member.was_evicted or member.core.is_evicted
                member.committed_ns[notice.generation.number] = self.now_ns
            if isinstance(notice, EndNotice):
                member.is_told = True
                if member.core.is_finishing:  # it does what belongs to an end, and goes
                    self.at(self.draw.randint(0, 1 * S), lambda: self.go(member))
            if isinstance(notice, RefusalNotice):
                member.next_address += 1
                if notice.is_void:
                    self.at(0, lambda: self._rejoin(member))
        self._flush(member)

    def _renew(self, member: Member) -> None:
        if not member.is_told:  # then there is nothing to come back to
            self.come_back(member)

    def _rejoin(self, member: Member) -> None:
        """Kills a member and brings its replica group back as a new incarnation."""
        if not member.is_dead:
            self.kill(member)
            self.add_member(member.name, host=member.host, wants=member.core.wants, is_ready=True)

    def _flush(self, member: Member) -> None:
        outbox, member.core.outbox = member.core.outbox, []
        if member.line is not None:
            for message in outbox:
                self._up(member.line, message)
