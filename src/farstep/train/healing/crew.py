"""The receiver's side of all lines: which healthy members there are, how they are, and who has failed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from farstep.collectives.transport import Endpoint
from farstep.engine import EngineError
from farstep.train.healing.letters import OPEN_KIND, LetterStore, letter
from farstep.train.healing.line import (
    FOLLOWING,
    NOTHING,
    RECEIVER,
    Answer,
    Line,
    Request,
    Status,
    Wish,
    answer_of,
)
from farstep.train.healing.settings import HealingSettings

__all__ = ["Crew", "Membership", "Source"]

FIRST_GRADIENT_SLOT = 128
MANIFEST_SLOT = 127
GOODBYE_S = 0.5
BANNED_S = 60.0
"""How long a member that sent wrong bytes is not asked again."""


class Membership(Protocol):
    """The part of the membership that healing uses; see :mod:`farstep.membership`."""

    member: Any
    """Has ``member_id``."""

    def current(self) -> Any:
        """The newest generation known here, with ``seats``; None if there is none yet."""

    def request(self, to: str, payload: dict[str, Any]) -> None:
        """Sends a small message to a member."""

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        """Calls back with sender and payload of every message."""

    def event(self, kind: str, **fields: Any) -> None:
        """Adds to the event log."""

    def announce_ready(self, step: int | None) -> None:
        """Says that this member holds the state of the newest step, or with None that it no longer does."""


@dataclass(eq=False)
class Source:
    """One healthy member as the receiver sees it. Guarded by the crew's lock, except its line.

    Attributes:
        member_id: who it is.
        name: of the line.
        store: where addresses for the line arrive.
        letter: with which the line was asked for.
        line: to it.
        status: what it said last.
        heard_s: when it last said anything.
        told_s: when it last said how it is.
        free_slots: of chunks.
        on_answer: takes the one answer that a slot waits for.
        on_offer: takes what the source answers about snapshots.
    """

    member_id: str
    name: str
    store: LetterStore
    letter: dict[str, Any] | None = None
    line: Line = field(init=False)
    status: Status | None = None
    heard_s: float = field(default_factory=time.monotonic)
    told_s: float = 0.0
    free_slots: list[int] = field(default_factory=list)
    free_gradient_slots: list[int] = field(default_factory=list)
    on_answer: dict[int, Callable[[Answer], None]] = field(default_factory=dict)
    on_offer: Callable[[Answer], None] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self.line.failure is None


class Crew:
    """Keeps a line to every member that has a seat, pings it, and notices when it is gone.

    Args:
        endpoint: of this member.
        membership: says who has a seat.
        run_id: names the lines.
        lane: which part of a replica group this is.
        settings: intervals and sizes.

    Attributes:
        changed: guards the sources and whatever else the receiver keeps; notified when anything arrives or fails.
        is_following: whether gradients are taken as they come; told to all sources when they are pinged.
        need: first step whose gradient is still needed; told to all sources with every message.
        num_wakes: how often :meth:`wake` was called.
        failures: why members were given up, by member; the newest reason of each.
    """

    def __init__(
        self, endpoint: Endpoint, membership: Membership, run_id: str, lane: int, settings: HealingSettings
    ) -> None:
        self.changed = threading.Condition()
        self.need = NOTHING
        self.is_following = False
        self.failures: dict[str, str] = {}
        self.num_wakes = 0
        self.settings = settings
        self._endpoint = endpoint
        self._membership = membership
        self._run_id = run_id
        self._lane = lane
        self._sources: dict[str, Source] = {}
        self._not_before_s: dict[str, float] = {}
        self._opening: list[Source] = []
        self._seats: tuple[str, ...] = ()
        self._attempts = 0
        self._over = threading.Event()
        self._poke = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="farstep-heal-crew", daemon=True)

    def start(self) -> None:
        """Begins to open lines; whoever delivers letters must know of this crew by then."""
        self._thread.start()

    # -- for the receiver -----------------------------------------------------------------------------------------

    def alive(self) -> list[Source]:
        """The sources that have said how they are, in the order of their seats; call with the lock held."""
        return [source for source in self._sources.values() if source.is_alive and source.told_s]

    def known(self) -> list[Source]:
        """All sources there is a line to, whether they have answered or not; call with the lock held."""
        return list(self._sources.values())

    def event(self, kind: str, **fields: Any) -> None:
        """Adds to the run's event log."""
        self._membership.event(kind, **fields)

    def newest(self) -> int:
        """Steps committed by the most advanced source, as far as heard; call with the lock held."""
        return max((source.status.committed for source in self.alive() if source.status), default=0)

    def follow_cost(self) -> float:
        """By how much the sources' steps are longer because of followers, as a fraction; call with the lock held."""
        return max((source.status.follow_cost for source in self.alive() if source.status), default=0) / 1e3

    def dearest(self) -> Status | None:
        """The status of the source that notices healing most; call with the lock held."""
        statuses = [source.status for source in self.alive() if source.status]
        return max(statuses, key=lambda status: status.excess_ns, default=None)

    def rate_bytes_per_s(self) -> float:
        """At which one source alone can send state if nothing holds it back, 0 if unknown; call with the lock held."""
        return max((source.status.rate_bytes_per_s for source in self.alive() if source.status), default=0)

    def step_s(self) -> float:
        """An ordinary step of the slowest source, 0 if unknown; call with the lock held."""
        return max((source.status.step_time_ns for source in self.alive() if source.status), default=0) / 1e9

    def follow(self, is_following: bool) -> None:
        """Tells all sources whether gradients are taken as they come. Call without the lock."""
        if is_following == self.is_following:
            return
        self.is_following = is_following
        with self.changed:
            sources = self.known()
        for source in sources:
            self.ask(source, Wish.STATUS)

    def rest(self) -> None:
        """Tells all sources that nothing is needed for now; the lines stay. Call without the lock."""
        with self.changed:
            self.need = NOTHING
            self.is_following = False
            sources = self.known()
        for source in sources:
            self.ask(source, Wish.REST)

    def ask(self, source: Source, wish: Wish, slot: int = 0, step: int = 0, chunk: int = 0) -> None:
        """Sends a wish; call without the lock."""
        if wish is Wish.STATUS and self.is_following:
            chunk = FOLLOWING
        source.line.request(Request(wish, slot, step, chunk, self.need))

    def refresh(self, timeout_s: float) -> float:
        """Asks all sources how they are now, and waits for the answers, not for ever.

        Returns:
            Seconds the slowest answer took.
        """
        began_s = time.monotonic()
        with self.changed:
            sources = self.known()
        for source in sources:
            self.ask(source, Wish.STATUS)

        def has_heard() -> bool:
            missing = set(self._seats) - self._sources.keys() - self._not_before_s.keys()
            return not missing and all(
                not source.is_alive or source.told_s > began_s for source in self._sources.values()
            )

        with self.changed:
            self.changed.wait_for(has_heard, timeout_s)
        return time.monotonic() - began_s

    def ban(self, source: Source, reason: str) -> None:
        """Gives up a member that sent what it should not have; it is not asked again for a minute."""
        self._not_before_s[source.member_id] = time.monotonic() + BANNED_S
        self._membership.event("heal_source_rejected", source=source.member_id, reason=reason)
        source.line.fail(reason)

    def wake(self) -> None:
        """Has the membership looked at at once, and ends the waits of whoever waits for sources."""
        self._poke.set()
        with self.changed:
            self.num_wakes += 1
            self.changed.notify_all()

    def describe(self) -> str:
        """Why there is nobody to ask, for people."""
        with self.changed:
            known = "; ".join(f"{member}: {reason}" for member, reason in sorted(self.failures.items()))
        return known or "no member with a seat has answered yet"

    def close(self) -> None:
        """Tells all sources that nothing more is needed and ends the lines."""
        self._over.set()
        self._poke.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        for source in list(self._sources.values()):
            if source.is_alive:
                source.line.say_goodbye(GOODBYE_S)
                source.line.close()
        self._sources.clear()

    # -- lines ----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        pinged_s = 0.0
        while not self._over.is_set():
            self._match_seats()
            self._write_again()
            if time.monotonic() - pinged_s >= self.settings.ping_interval_s:
                pinged_s = time.monotonic()
                self._ping(pinged_s)
            self._poke.wait(self.settings.ping_interval_s / 4)
            self._poke.clear()

    def _match_seats(self) -> None:
        generation = self._membership.current()
        own_id = self._membership.member.member_id
        seats = [seat.member_id for seat in generation.seats] if generation is not None else []
        seats = [member_id for member_id in seats if member_id != own_id]
        for source in self._sources.values():
            if source.member_id not in seats:
                source.line.fail(f"{source.member_id} no longer has a seat")
        with self.changed:
            failed = [source for source in self._sources.values() if not source.is_alive]
            for source in failed:
                del self._sources[source.member_id]
        for source in failed:
            source.line.close()
        now_s = time.monotonic()
        with self.changed:
            self._seats = tuple(seats)
        for member_id in seats:
            if member_id not in self._sources and now_s >= self._not_before_s.get(member_id, 0.0):
                self._open(member_id)
        with self.changed:
            self._sources = {
                member_id: self._sources[member_id] for member_id in seats if member_id in self._sources
            }

    def _open(self, member_id: str) -> None:
        self._attempts += 1
        own_id = self._membership.member.member_id
        name = f"{self._run_id}/heal/{own_id}/{member_id}/{self._lane}/{self._attempts}"
        source = Source(
            member_id, name, LetterStore(lambda key, value: self._send_letter(source, key, value))
        )
        source.free_slots = list(range(self.settings.chunks_in_flight))
        source.free_gradient_slots = [
            FIRST_GRADIENT_SLOT + number for number in range(self.settings.gradients_in_flight)
        ]
        self._opening = [source]  # its answer may arrive before the line is made
        try:
            source.line = Line(
                self._endpoint,
                RECEIVER,
                source.store,
                name,
                lambda words: self._on_control(source, words),
                lambda reason: self._on_failure(source, reason),
            )
        except EngineError as error:
            self._on_failure(source, str(error))
            return
        with self.changed:
            self._sources[member_id] = source

    def _write_again(self) -> None:
        """Repeats the letters to members that have not answered: some may have just been given their seats."""
        for source in list(self._sources.values()):
            if not source.told_s and source.letter is not None:
                self._membership.request(source.member_id, source.letter)

    def _send_letter(self, source: Source, key: str, value: bytes) -> None:
        source.letter = letter(OPEN_KIND, self._lane, source.name, key, value)
        self._membership.request(source.member_id, source.letter)

    def deliver(self, sender: str, name: str, key: str, value: bytes) -> None:
        """Takes the address a source sends for its end of a line."""
        with self.changed:
            sources = self._opening + self.known()
        for source in sources:
            if (source.member_id, source.name) == (sender, name):
                source.store.deliver(key, value)

    def _ping(self, now_s: float) -> None:
        for source in list(self._sources.values()):
            if now_s - source.heard_s > self.settings.silence_s:
                source.line.fail(f"{source.member_id} has not answered for {self.settings.silence_s:g} s")
            else:
                self.ask(source, Wish.STATUS)

    def _on_control(self, source: Source, words: tuple[int, ...]) -> None:
        answer = answer_of(words)
        with self.changed:
            source.heard_s = time.monotonic()
            handler = None
            if isinstance(answer, Status):
                source.status, source.told_s = answer, source.heard_s
                self.failures.pop(source.member_id, None)
            elif isinstance(answer, Answer):
                if source.status is not None and answer.committed > source.status.committed:
                    source.status = source.status._replace(committed=answer.committed)
                is_offer = answer.slot == MANIFEST_SLOT
                handler = source.on_offer if is_offer else source.on_answer.pop(answer.slot, None)
            self.changed.notify_all()
        if isinstance(answer, Status):
            return
        if answer is None or handler is None:
            source.line.fail(f"{source.member_id} sent an answer that nobody asked for")
        else:
            handler(answer)

    def _on_failure(self, source: Source, reason: str) -> None:
        with self.changed:
            self.failures[source.member_id] = reason
            self._not_before_s.setdefault(source.member_id, 0.0)
            again_s = time.monotonic() + self.settings.reconnect_s
            self._not_before_s[source.member_id] = max(self._not_before_s[source.member_id], again_s)
            source.on_answer.clear()
            self.changed.notify_all()
        self._poke.set()
