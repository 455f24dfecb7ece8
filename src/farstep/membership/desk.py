"""The blocking half of membership, the same over the network and inside a process.

Everything happens under one lock. Notices of the member's mind are turned into wake-ups and callbacks;
callbacks run without the lock, on the thread that carries messages.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from farstep.membership import messages as wire
from farstep.membership.beacon import Lamp
from farstep.membership.errors import (
    Evicted,
    GenerationOver,
    MembershipClosed,
    MembershipError,
    MembershipTimeout,
    RunEnded,
)
from farstep.membership.member import (
    DrainNotice,
    EndNotice,
    EntryNotice,
    GenerationNotice,
    MemberCore,
    RefusalNotice,
    RequestNotice,
    SplitNotice,
)
from farstep.membership.records import Generation, MemberInfo, Wants

__all__ = ["Desk", "ScopedStore"]

SCOPES_MAX = 64
"""Scopes whose values are kept; those heard of longest ago go first."""

WAIT_SLICE_S = 0.2
"""Longest uninterrupted wait, so that Ctrl-C is noticed."""

EVENT_CHARACTERS_MAX = 64 << 10
"""Longest event, as JSON."""

REQUEST_CHARACTERS_MAX = 512 << 10
"""Longest request, as JSON: half of what fits in a message."""

FAREWELL_S = 3.0
"""Who has finished the run stays so long until a coordinator has heard of it: time for one that has just died to
be started again. Nobody else could ever tell those who come later."""

VALUE_BYTES_MAX = wire.VALUE_CHARACTERS_MAX // 4 * 3
"""Longest value of a store."""

_log = logging.getLogger("farstep.membership")


class ScopedStore:
    """Values published under one scope."""

    def __init__(self, desk: Desk, scope: str, generation: int | None) -> None:
        self._desk = desk
        self._scope = scope
        self._generation = generation

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value of at most 96 KiB to all members.

        Raises:
            ValueError: it is longer.
        """
        self._desk.publish(self._scope, key, bytes(value))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Blocks until a value is published.

        Raises:
            TimeoutError: nobody published it in time.
            GenerationOver: an urgent generation has replaced the one this store was opened for.
        """
        return self._desk.lookup(self._scope, key, timeout_s, self._generation)


class Desk:
    """Implements :class:`farstep.membership.interface.Membership` but for the transport.

    Args:
        info: who this is.
        run: name of the run.
        wants: what it came for.
    """

    def __init__(self, info: MemberInfo, run: str, wants: Wants) -> None:
        self.member = info
        self._core = MemberCore(info, run, wants)
        self._changed = threading.Condition(threading.RLock())
        self._values: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        self._generation_callbacks: list[Callable[[Generation], None]] = []
        self._request_callbacks: list[Callable[[str, dict[str, Any]], None]] = []
        self._drain_callbacks: list[Callable[[str], None]] = []
        self._drain_reason: str | None = None
        self._ended: EndNotice | None = None
        self._fatal: str | None = None
        self._void: str | None = None
        self._last_urgent = 0
        self._is_closed = False
        self._is_reborn = False

    # ---- the transport's part ----

    def _wake(self) -> None:
        """Has the transport send what is in the outbox; called with the lock held."""
        raise NotImplementedError

    def _line_state(self) -> str:
        """Says how the line to the coordinator stands, for messages of timeouts."""
        return ""

    # ---- questions ----

    def current(self) -> Generation | None:
        """Returns the latest committed generation known here, with or without this member."""
        with self._changed:
            return self._core.generation

    @property
    def waiting(self) -> str | None:
        """What the coordinator says the run waits for."""
        with self._changed:
            return self._core.waiting

    @property
    def final_step(self) -> int | None:
        """Number of steps the run has committed, once it has ended and somebody said so."""
        with self._changed:
            return self._ended.step if self._ended else None

    @property
    def is_connected(self) -> bool:
        """Whether a coordinator is there right now."""
        with self._changed:
            return self._core.is_welcome

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """Blocks until there is a generation with a number above `after` that this member is part of.

        Raises:
            MembershipTimeout: none came; says what is being waited for, and for whom.
            Evicted: the run has gone on without this member.
            RunEnded: the run has ended.
            MembershipClosed: this membership was closed.
            MembershipError: the coordinator refuses this member for good, or two histories have met.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while True:
                latest = self._core.generation
                if latest is not None and latest.number > after and self.member.member_id in latest:
                    return latest
                self._check_alive()
                rest_s = WAIT_SLICE_S if deadline_s is None else deadline_s - time.monotonic()
                if rest_s <= 0:
                    raise MembershipTimeout(self._why_waiting(after, timeout_s))
                self._changed.wait(min(rest_s, WAIT_SLICE_S))

    def why_waiting(self, after: int) -> str:
        """Says in one line what a generation after `after` waits for."""
        with self._changed:
            return self._why_waiting(after, None)

    def _why_waiting(self, after: int, timeout_s: float | None) -> str:
        # Shorter ones are slices of a time that only the caller knows.
        waited = f" within {timeout_s:g} s" if timeout_s is not None and timeout_s >= 1.0 else ""
        latest = self._core.generation
        if not self._core.is_welcome:
            cause = self._line_state() or "no coordinator is there"
            if self._core.waiting:
                cause += f"; the last one said: {self._core.waiting}"
        else:
            cause = self._core.waiting or "the coordinator has not said what it waits for"
        missing = (
            f"no generation after {after}{waited} ({latest.describe()})" if latest else "no generation yet"
        )
        return f"{self.member.name}: {missing}: {cause}"

    def _check_alive(self) -> None:
        if self._is_closed:
            raise MembershipClosed(f"{self.member.name}: this membership was closed")
        if self._ended is not None:  # then there is nothing to come back to, even for who was left out before
            raise RunEnded(
                f"{self.member.name}: the run has ended: {self._ended.reason}",
                step=self._ended.step,
                was_evicted=self._core.is_evicted,
            )
        if self._core.is_evicted:
            latest = self._core.generation
            assert latest is not None
            raise Evicted(
                f"{self.member.name} is not in {latest.describe()}: {latest.reason}; "
                "it can come back as a new incarnation",
                was_asked=self._core.leaving is not None,
            )
        if self._void is not None:
            raise Evicted(f"{self.member.name}: {self._void}; it can come back as a new incarnation")
        if self._fatal is not None:
            raise MembershipError(f"{self.member.name}: {self._fatal}")

    # ---- callbacks ----

    def on_generation(self, callback: Callable[[Generation], None]) -> None:
        """Has a callback called for every generation committed from now on; it must return quickly."""
        with self._changed:
            self._generation_callbacks.append(callback)

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        """Has a callback called with sender and payload of every request; it must return quickly."""
        with self._changed:
            self._request_callbacks.append(callback)

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Has a callback called with the reason when this member is to leave, at once if it is already."""
        with self._changed:
            self._drain_callbacks.append(callback)
            reason = self._drain_reason
        if reason is not None:
            callback(reason)

    # ---- the store ----

    def store(self, scope: str, generation: int | None = None) -> ScopedStore:
        """Returns the values published under `scope`.

        Args:
            scope: any name, such as `g3`; the same for all that share it.
            generation: if given, waiting for a value ends as soon as an urgent generation replaces it.
        """
        return ScopedStore(self, scope, generation)

    def publish(self, scope: str, key: str, value: bytes) -> None:
        """Publishes a value to all members."""
        if len(value) > VALUE_BYTES_MAX:
            raise ValueError(
                f"value of {key!r} has {len(value)} bytes; a store takes at most {VALUE_BYTES_MAX}"
            )
        with self._changed:
            self._keep(scope, key, value)
            self._core.publish(scope, key, base64.b64encode(value).decode())
            self._changed.notify_all()
            self._wake()

    def lookup(self, scope: str, key: str, timeout_s: float, generation: int | None) -> bytes:
        """Blocks until a value is published."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                values = self._values.get(scope, {})
                if key in values:
                    return values[key]
                if generation is not None and self._last_urgent > generation:
                    raise GenerationOver(
                        f"{self.member.name}: generation {generation} is over, {key!r} of {scope!r} will not come"
                    )
                if self._is_closed:
                    raise MembershipClosed(f"{self.member.name}: this membership was closed")
                rest_s = deadline_s - time.monotonic()
                if rest_s <= 0:
                    raise TimeoutError(
                        f"{self.member.name}: nobody published {key!r} of {scope!r} within {timeout_s:g} s"
                    )
                self._changed.wait(min(rest_s, WAIT_SLICE_S))

    def _keep(self, scope: str, key: str, value: bytes) -> None:
        self._values.setdefault(scope, {})[key] = value
        self._values.move_to_end(scope)
        while len(self._values) > SCOPES_MAX:
            self._values.popitem(last=False)

    # ---- what this member says ----

    def watch(self, lamp: Lamp) -> None:
        """Has every heartbeat say whether the training thread is stuck."""
        with self._changed:
            self._core.lamp = lamp

    def report_failure(
        self,
        generation: int,
        suspects: Sequence[str],
        reason: str,
        *,
        evict: bool = False,
        late: bool = False,
    ) -> None:
        """Says that a step of `generation` failed.

        Args:
            generation: number of the generation whose communicator failed.
            suspects: identities or names of those that seem to be the cause, if anybody does.
            reason: one line for people.
            evict: the suspects hold wrong state; they are evicted if most other seats say so too.
            late: somebody's part of the step did not come in time; who is stuck, if one is, is evicted at once.
        """
        with self._changed:
            latest = self._core.generation
            ids = []
            for suspect in suspects[:64]:
                members = (*latest.seats, *latest.spares) if latest else ()
                ids += [info.member_id for info in members if suspect in (info.member_id, info.name)]
            report = wire.FailureReport(
                generation=generation, suspects=tuple(ids), reason=reason[:2000], evict=evict, late=late
            )
            self._core.report_failure(report)
            self._wake()

    def report_progress(self, step: int, figures: Mapping[str, float] | None = None, **more: float) -> None:
        """Notes the number of committed steps and at most 64 figures; the newest travel with the heartbeat."""
        pairs = [*(figures or {}).items(), *more.items()][: wire.FIGURES_MAX]
        newest = {name[: wire.NAME_CHARACTERS_MAX]: float(value) for name, value in pairs}
        with self._changed:
            self._core.step = step
            self._core.figures = newest

    def event(self, kind: str, **fields: Any) -> None:
        """Adds to the coordinator's event log; kept (at most 1000) while no coordinator is there.

        Raises:
            ValueError: the fields are more than 64, or too long.
        """
        text = json.dumps(fields, default=str)
        if len(text) > EVENT_CHARACTERS_MAX:
            raise ValueError(f"event {kind!r} has {len(text)} characters; at most {EVENT_CHARACTERS_MAX}")
        with self._changed:
            self._core.event(kind, json.loads(text), time.monotonic_ns())
            self._wake()

    def announce_ready(self, step: int | None) -> None:
        """Says that the state of `step` is complete here; None takes it back."""
        with self._changed:
            if self._core.ready_step is None or step is None:
                self._core.announce_ready(step)
                self._wake()
            else:
                self._core.ready_step = step  # only a change of readiness is worth a message

    def request(self, to: str, payload: Mapping[str, Any]) -> None:
        """Sends a small JSON object to another member by identity or name; best effort.

        Raises:
            ValueError: it has more than 64 fields, or is too long.
            TypeError: it has no JSON form.
        """
        text = json.dumps(dict(payload))
        if len(text) > REQUEST_CHARACTERS_MAX:
            raise ValueError(f"request to {to} has {len(text)} characters; at most {REQUEST_CHARACTERS_MAX}")
        with self._changed:
            self._core.request(to, json.loads(text))
            self._wake()

    def certify_death(self, member_id: str) -> None:
        """Says that the process of a member on this host has exited, as its launcher or agent has seen."""
        with self._changed:
            self._core.certify_death(member_id)
            self._wake()

    def leave(self, reason: str, *, finished: bool = False, step: int | None = None) -> None:
        """Asks for a generation without this member; returns at once.

        Args:
            reason: one line for people.
            finished: the whole run has reached its end: nobody needs a further generation.
            step: how many steps the finished run has committed.
        """
        with self._changed:
            self._core.leave(reason, finished=finished, step=step)
            self._wake()

    def rejoin(self, wants: Wants | None = None) -> None:
        """Comes back as a new incarnation of the same replica group, after an eviction.

        `member` changes; callbacks and values of stores stay. Like every newcomer it is part of a generation
        again only after :meth:`announce_ready`.

        Args:
            wants: what it comes back for; None: the same as before.

        Raises:
            MembershipClosed: this membership was closed.
        """
        with self._changed:
            if self._is_closed:
                raise MembershipClosed(f"{self.member.name}: this membership was closed")
            self.member = self.member.reborn()
            lamp = self._core.lamp
            self._core = MemberCore(self.member, self._core.run, wants or self._core.wants)
            self._core.lamp = lamp
            self._drain_reason = None
            self._fatal = None
            self._void = None
            self._is_reborn = True
            self._changed.notify_all()
            self._wake()

    def close(self) -> None:
        """Ends this membership for good."""
        raise NotImplementedError

    def _await_end(self) -> None:
        """Stays until a coordinator has taken the word that the run is finished, if this member has said so."""
        deadline_s = time.monotonic() + FAREWELL_S
        with self._changed:
            is_known = self._core.coordinator is not None
            while is_known and self._core.is_finishing and self._ended is None and self._fatal is None:
                rest_s = deadline_s - time.monotonic()
                if rest_s <= 0:
                    _log.warning("%s: no coordinator has heard that the run is finished", self.member.name)
                    return
                self._changed.wait(min(rest_s, WAIT_SLICE_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what it is told ----

    def _receive(self, message: wire.FromCoordinator, now_ns: int) -> None:
        """Takes a message of the coordinator; called by the transport without the lock."""
        calls: list[Callable[[], None]] = []
        with self._changed:
            if self._is_reborn:
                return  # it was for the incarnation before
            self._core.on_message(message, now_ns)
            notices, self._core.notices = self._core.notices, []
            for notice in notices:
                self._note(notice, calls)
            if notices:
                self._changed.notify_all()
            if self._core.outbox:
                self._wake()
        for call in calls:
            try:
                call()
            except Exception:
                _log.exception("%s: a membership callback failed", self.member.name)

    def _note(self, notice: Any, calls: list[Callable[[], None]]) -> None:
        match notice:
            case GenerationNotice(generation):
                if generation.is_urgent:
                    self._last_urgent = generation.number
                calls += [_bind(callback, generation) for callback in self._generation_callbacks]
            case EntryNotice(entry):
                try:
                    value = base64.b64decode(entry.value, validate=True)
                except ValueError:
                    _log.warning("%s: value of %r is not base64", self.member.name, entry.key)
                    return
                self._keep(entry.scope, entry.key, value)
            case RequestNotice(sender, payload):
                calls += [_bind(callback, sender, payload) for callback in self._request_callbacks]
            case DrainNotice(reason):
                self._drain_reason = reason
                calls += [_bind(callback, reason) for callback in self._drain_callbacks]
            case EndNotice():
                self._ended = notice
            case RefusalNotice(reason, is_final, is_void):
                if is_void:
                    self._void = reason
                elif is_final:
                    self._fatal = f"refused by the coordinator: {reason}"
            case SplitNotice(text):
                self._fatal = text


def _bind(callback: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: callback(*arguments)
