"""A member's mind: its vote, what it has published, what it has been told. Pure, like the coordinator's.

Everything a coordinator needs is in the hello, so a member can lose its coordinator at any moment and go on
with another that has never heard of the run.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

from farstep.membership import messages as wire
from farstep.membership.acceptor import Acceptor, TwoHistories
from farstep.membership.beacon import Lamp
from farstep.membership.process import has_exited
from farstep.membership.records import TEXT_CHARACTERS_MAX, Generation, MemberInfo, Record, Wants

__all__ = [
    "DrainNotice",
    "EndNotice",
    "EntryNotice",
    "GenerationNotice",
    "MemberCore",
    "Notice",
    "RefusalNotice",
    "RequestNotice",
    "SplitNotice",
]

OWN_SCOPES_MAX = 32
"""Scopes of its own entries that a member says again after a reconnect; older ones are of past generations."""

EVENTS_MAX = 1000
"""Events kept while no coordinator is there; older ones are dropped and counted."""

REQUESTS_MAX = 64
"""Requests kept while no coordinator is there."""


@dataclass(frozen=True, slots=True)
class GenerationNotice:
    """A generation was committed."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class EntryNotice:
    """Somebody has published a value."""

    entry: wire.StoreEntry


@dataclass(frozen=True, slots=True)
class RequestNotice:
    """Another member has asked something."""

    sender: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """This member is to leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndNotice:
    """The run has ended."""

    reason: str
    step: int | None


@dataclass(frozen=True, slots=True)
class RefusalNotice:
    """A coordinator does not serve this member."""

    reason: str
    is_final: bool
    is_void: bool = False


@dataclass(frozen=True, slots=True)
class SplitNotice:
    """Two histories of the run have met here."""

    text: str


Notice = (
    GenerationNotice | EntryNotice | RequestNotice | DrainNotice | EndNotice | RefusalNotice | SplitNotice
)


class MemberCore:
    """One member.

    Args:
        info: who this is.
        run: name of the run it belongs to.
        wants: what it came for.
        ask_kernel: tells whether a process of this host has exited.

    Attributes:
        was_member: whether it has ever been part of a generation.
        waiting: what the coordinator waits for, in words.
        lamp: tells whether the training thread moves.
        is_lonely: the coordinator sees too few voters to decide anything.
        is_welcome: a coordinator has answered the hello on the current connection.
    """

    def __init__(
        self,
        info: MemberInfo,
        run: str,
        wants: Wants = "seat",
        *,
        ask_kernel: Callable[[str], bool | None] = has_exited,
    ) -> None:
        self.info = info
        self._ask_kernel = ask_kernel
        self.run = run
        self.wants = wants
        self.acceptor = Acceptor(info.member_id)
        self.was_member = False
        self.waiting: str | None = None
        self.is_lonely = False
        self.is_welcome = False
        self.run_id: str | None = None
        self.coordinator: str | None = None
        self.silence_s = 1.2
        self.heartbeat_s = 0.1
        self.ready_step: int | None = None
        self.leaving: str | None = None
        self.step: int | None = None
        self.figures: dict[str, float] = {}
        self.lamp: Lamp | None = None
        self.rtt_ns: int | None = None
        self.outbox: list[Record] = []
        self.notices: list[Notice] = []
        self.num_events_dropped = 0
        self._certified: list[str] = []
        self._entries: OrderedDict[str, dict[str, wire.StoreEntry]] = OrderedDict()
        self._events: deque[tuple[int, wire.EventRecord]] = deque()  # until a coordinator has noted them
        self._event_serial = 0
        self._told_serial = 0
        self._requests: deque[wire.Request] = deque(maxlen=REQUESTS_MAX)
        self._report: wire.FailureReport | None = None
        self._finish: wire.Leave | None = None
        self._sequence = 0
        self._sent_ns: dict[int, int] = {}

    @property
    def generation(self) -> Generation | None:
        """Latest committed generation known here."""
        return self.acceptor.generation

    @property
    def is_evicted(self) -> bool:
        """Whether the run has gone on without this member."""
        generation = self.generation
        return self.was_member and generation is not None and self.info.member_id not in generation

    @property
    def is_finishing(self) -> bool:
        """Whether this member has said that the run is finished, or was told so."""
        return self._finish is not None

    # ---- connections ----

    def hello(self) -> wire.Hello:
        """Returns the first message of a connection, and starts it."""
        self.is_welcome = False
        self.is_lonely = False
        self.outbox.clear()
        self._sent_ns.clear()
        self._told_serial = 0
        return wire.Hello(
            run=self.run,
            info=self.info,
            wants=self.wants,
            run_id=self.run_id,
            generation=self.generation,
            promised=self.acceptor.promised,
            was_member=self.was_member,
            ready_step=self.ready_step,
            leaving=self.leaving,
            step=self.step,
            certified=tuple(self._certified),
        )

    def heartbeat(self, now_ns: int) -> wire.Heartbeat:
        """Returns the next sign of life."""
        self._sequence += 1
        if len(self._sent_ns) > 64:
            self._sent_ns.clear()
        self._sent_ns[self._sequence] = now_ns
        return wire.Heartbeat(
            sequence=self._sequence,
            rtt_ns=self.rtt_ns,
            step=self.step,
            figures=self.figures,
            stuck_ns=self.lamp.stuck_ns(now_ns) if self.lamp is not None else None,
        )

    def disconnected(self) -> None:
        """Notes that the connection is gone."""
        self.is_welcome = False
        self.is_lonely = False
        self.outbox.clear()

    # ---- what this member has to say ----

    def publish(self, scope: str, key: str, value: str) -> None:
        """Publishes a value (base64) to all members; it is said again to every new coordinator."""
        entry = wire.StoreEntry(scope=scope, key=key, value=value)
        self._entries.setdefault(scope, {})[key] = entry
        self._entries.move_to_end(scope)
        while len(self._entries) > OWN_SCOPES_MAX:
            self._entries.popitem(last=False)
        self._say(wire.StoreSet(entry=entry))

    def announce_ready(self, step: int | None) -> None:
        """Says that the state of `step` is complete here; None takes it back."""
        self.ready_step = step
        self._say(wire.Ready(step=step))

    def leave(self, reason: str, *, finished: bool = False, step: int | None = None) -> None:
        """Says that this member wants out, or that the run is at its end.

        Whoever wanted to leave and was let go does not know the end of the run: the others go on without it.
        """
        text = reason[:TEXT_CHARACTERS_MAX] or "leaves"
        was_let_go = self.is_evicted and self.leaving is not None and not self.is_finishing
        if finished and was_let_go:
            return
        if self.leaving is None or not finished:  # every coordinator has to hear what it wanted first
            self.leaving = text
        message = wire.Leave(reason=text, finished=finished, step=step)
        if finished:
            self._finish = message
        self._say(message)

    def report_failure(self, report: wire.FailureReport) -> None:
        """Says that a step failed; said again until a later generation has settled it."""
        self._report = report
        self._say(report)

    def certify_death(self, member_id: str) -> None:
        """Says that a process of this host has exited."""
        if member_id not in self._certified:
            self._certified.append(member_id)
            del self._certified[: -wire.CERTIFICATES_MAX]
        self._say(wire.DeathCertificate(member_id=member_id))

    def request(self, to: str, payload: dict[str, Any]) -> None:
        """Sends a small message to another member; best effort."""
        message = wire.Request(to=to, payload=payload)
        if self.is_welcome:
            self.outbox.append(message)
        else:
            self._requests.append(message)

    def event(self, kind: str, fields: dict[str, Any], now_ns: int) -> None:
        """Adds to the coordinator's event log, now or when there is a coordinator again."""
        if len(self._events) >= EVENTS_MAX:
            self._events.popleft()
            self.num_events_dropped += 1
        self._event_serial += 1
        self._events.append((now_ns, wire.EventRecord(event=kind, fields=fields, serial=self._event_serial)))
        if self.is_welcome:
            self._flush_events(now_ns)

    # ---- what it is told ----

    def on_message(self, message: wire.FromCoordinator, now_ns: int) -> None:
        """Takes a coordinator's message; answers are in `outbox`, news in `notices`."""
        self._handle(message, now_ns)

    @singledispatchmethod
    def _handle(self, message: Record, now_ns: int) -> None:
        raise AssertionError(f"no handler for {type(message).__name__}")

    @_handle.register
    def _(self, message: wire.Welcome, now_ns: int) -> None:
        self.is_welcome = True
        self.coordinator = message.coordinator
        self.silence_s = message.silence_s
        self.heartbeat_s = message.heartbeat_s
        if not self.was_member:
            self.run_id = message.run_id
        self.waiting = None
        if message.generation is not None:
            self._commit(message.generation)
        for entries in self._entries.values():
            self.outbox.extend(wire.StoreSet(entry=entry) for entry in entries.values())
        if self._report is not None:
            self.outbox.append(self._report)
        if self._finish is not None:
            self.outbox.append(self._finish)
        self.outbox.extend(self._requests)
        self._requests.clear()
        self._flush_events(now_ns)

    @_handle.register
    def _(self, message: wire.HeartbeatReply, now_ns: int) -> None:
        self.is_lonely = message.is_lonely
        while self._events and self._events[0][1].serial <= message.event_serial:
            self._events.popleft()
        sent_ns = self._sent_ns.pop(message.sequence, None)
        if sent_ns is not None:
            self.rtt_ns = max(0, now_ns - sent_ns)

    @_handle.register
    def _(self, message: wire.Waiting, now_ns: int) -> None:
        self.waiting = message.text

    @_handle.register
    def _(self, message: wire.Prepare, now_ns: int) -> None:
        self._answer(self.acceptor.on_prepare(message))

    @_handle.register
    def _(self, message: wire.Accept, now_ns: int) -> None:
        self._answer(self.acceptor.on_accept(message))

    @_handle.register
    def _(self, message: wire.Commit, now_ns: int) -> None:
        self._commit(message.value)

    @_handle.register
    def _(self, message: wire.StoreValue, now_ns: int) -> None:
        self.notices.append(EntryNotice(message.entry))

    @_handle.register
    def _(self, message: wire.Requested, now_ns: int) -> None:
        self.notices.append(RequestNotice(message.sender, dict(message.payload)))

    @_handle.register
    def _(self, message: wire.Drain, now_ns: int) -> None:
        if self.leaving is None:
            self.leaving = message.reason or "drained"
            self.notices.append(DrainNotice(self.leaving))

    @_handle.register
    def _(self, message: wire.Witness, now_ns: int) -> None:
        if self._ask_kernel(message.info.process):
            self.certify_death(message.info.member_id)

    @_handle.register
    def _(self, message: wire.Ended, now_ns: int) -> None:
        if self._finish is None and self.was_member:
            # As long as it is there it tells every later coordinator, which may know it from nobody else.
            self._finish = wire.Leave(reason=message.reason, finished=True, step=message.step)
            self.leaving = message.reason
        self.notices.append(EndNotice(message.reason, message.step))

    @_handle.register
    def _(self, message: wire.Refused, now_ns: int) -> None:
        self.waiting = message.reason
        self.notices.append(RefusalNotice(message.reason, message.is_final, message.is_void))

    def _commit(self, generation: Generation) -> None:
        known = self.generation
        if known is not None and known.run_id != generation.run_id and not self.was_member:
            self.acceptor = Acceptor(self.info.member_id)  # it has no part yet in the run it had heard of
        try:
            is_news = self.acceptor.on_commit(generation)
        except TwoHistories as error:
            self.notices.append(SplitNotice(str(error)))
            return
        if not is_news:
            return
        self.run_id = generation.run_id
        if self.info.member_id in generation:
            self.was_member = True
        if self._report is not None and generation.is_urgent and generation.number > self._report.generation:
            self._report = None
        self.notices.append(GenerationNotice(generation))

    def _answer(self, answer: Record | None) -> None:
        if answer is not None:
            self.outbox.append(answer)

    def _say(self, message: Record) -> None:
        if self.is_welcome:
            self.outbox.append(message)

    def _flush_events(self, now_ns: int) -> None:
        num_untold = self._event_serial - self._told_serial
        for at_ns, event in list(self._events)[-num_untold:] if num_untold else ():
            self.outbox.append(event.model_copy(update={"age_ns": max(0, now_ns - at_ns)}))
        self._told_serial = self._event_serial
