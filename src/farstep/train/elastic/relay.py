"""Membership for the ranks of a replica group that have no line to the coordinator: rank 0 passes everything on."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farstep.membership import (
    Evicted,
    Generation,
    MemberInfo,
    MembershipClosed,
    MembershipError,
    MembershipTimeout,
    RunEnded,
)
from farstep.membership.beacon import Lamp
from farstep.train.elastic.inner import Line, TogetherInside
from farstep.train.elastic.seams import InnerRankLost

__all__ = ["MembershipRelay", "RelayedMembership"]

REBORN_TIMEOUT_S = 60.0
"""Longest wait for rank 0 to come back under a new identity after an eviction."""

LOOK_S = 0.2
"""How often a rank looks whether its training thread is stuck."""

STORE_SLICE_S = 1.0
"""Rank 0 waits for an entry of the store so long at a time."""


class MembershipRelay:
    """Rank 0's side: tells the others what it hears, and says for them what they have to say.

    Args:
        inner: the ranks of the group.
    """

    def __init__(self, inner: TogetherInside) -> None:
        self._inner = inner
        self._membership: Any = None
        self._ready: dict[int, int | None] = {}
        self._lock = threading.Lock()
        self._on_drain: list[Callable[[str], None]] = []
        self._drain_reason: str | None = None
        self._lamp: Lamp | None = None
        self._stuck_ns: dict[int, int] = {}

    def wrap(self, membership: Any) -> RelayingMembership:
        """Takes a new incarnation's membership into use."""
        relaying = RelayingMembership(membership, self)
        self._membership = membership
        self._ready = {}
        with self._lock:
            self._on_drain.clear()
            self._drain_reason = None
        self.broadcast({"kind": "info", "info": membership.member.model_dump(mode="json")})
        membership.on_generation(self._on_generation)
        membership.on_request(
            lambda sender, payload: self.broadcast({"kind": "request", "from": sender, "payload": payload})
        )
        membership.on_drain(self.drain)
        current = membership.current()
        if current is not None:
            self._on_generation(current)
        for line in self._inner.lines.values():
            line.listen(self._on_message)
        return relaying

    def broadcast(self, message: dict[str, Any]) -> None:
        """Sends a message to every other rank."""
        for line in self._inner.lines.values():
            line.send(message)

    def drain(self, reason: str) -> None:
        """The group is to leave: all its ranks are told, each of which may be waiting for something."""
        self.broadcast({"kind": "drain", "reason": reason})
        with self._lock:
            self._drain_reason = reason
            callbacks = list(self._on_drain)
        for callback in callbacks:
            callback(reason)

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Has a callback called when the group is to leave, whichever of its ranks was told so."""
        with self._lock:
            self._on_drain.append(callback)
            reason = self._drain_reason
        if reason is not None:
            callback(reason)

    def watch(self, lamp: Lamp) -> None:
        """The group is stuck if any of its ranks is."""
        self._lamp = lamp
        self._membership.watch(self)

    def stuck_ns(self, now_ns: int) -> int | None:
        """Returns for how long the training thread of some rank has been stuck."""
        own_ns = self._lamp.stuck_ns(now_ns) if self._lamp is not None else None
        return max([*list(self._stuck_ns.values()), *([own_ns] if own_ns is not None else [])], default=None)

    def announce_ready(self, rank: int, step: int | None) -> None:
        """The group is ready once all its ranks are."""
        with self._lock:
            self._ready[rank] = step
            steps = [self._ready.get(other) for other in range(self._inner.size)]
        known = [step for step in steps if step is not None]
        self._membership.announce_ready(min(known) if len(known) == len(steps) else None)

    def _on_generation(self, generation: Generation) -> None:
        self.broadcast({"kind": "generation", "generation": generation.model_dump(mode="json")})

    def _on_message(self, line: Line, message: dict[str, Any]) -> None:
        membership = self._membership
        match message["kind"]:
            case "set":
                value = base64.b64decode(message["value"])
                membership.store(message["scope"], message["generation"]).set(message["key"], value)
            case "get":
                threading.Thread(target=self._get, args=(line, message), daemon=True).start()
            case "report_failure":
                membership.report_failure(
                    message["generation"], message["suspects"], message["reason"], late=message["late"]
                )
            case "stuck":
                if message["ns"] is None:
                    self._stuck_ns.pop(line.peer, None)
                else:
                    self._stuck_ns[line.peer] = message["ns"]
            case "event":
                membership.event(message["event"], **message["fields"])
            case "ready":
                self.announce_ready(line.peer, message["step"])
            case "send_request":
                membership.request(message["to"], message["payload"])
            case "leave":
                membership.leave(message["reason"])
                self.drain(message["reason"])

    def _get(self, line: Line, message: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"kind": "got", "number": message["number"], "value": None}
        try:
            store = self._membership.store(message["scope"], message["generation"])
            value = store.get(message["key"], min(message["timeout_s"], STORE_SLICE_S))
            answer["value"] = base64.b64encode(value).decode()
        except (TimeoutError, MembershipError):
            pass  # no value: the asker decides how long to go on
        line.send(answer)


class RelayingMembership:
    """Rank 0's membership: the coordinator's, whose endings are told to the other ranks."""

    def __init__(self, membership: Any, relay: MembershipRelay) -> None:
        self._membership = membership
        self._relay = relay

    def __getattr__(self, name: str) -> Any:
        return getattr(self._membership, name)

    def announce_ready(self, step: int | None) -> None:
        """Rank 0 holds the state."""
        self._relay.announce_ready(0, step)

    def watch(self, lamp: Lamp) -> None:
        """Has heartbeats say whether the training thread of any rank is stuck."""
        self._relay.watch(lamp)

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Has a callback called with the reason when this group is to leave."""
        self._relay.on_drain(callback)

    def leave(self, reason: str, *, finished: bool = False, step: int | None = None) -> None:
        """Asks for a generation without this group, or says that the run is finished."""
        self._membership.leave(reason, finished=finished, step=step)
        if not finished:
            self._relay.broadcast({"kind": "drain", "reason": reason})

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """As the coordinator's; the other ranks hear of an end too."""
        try:
            generation: Generation = self._membership.wait_generation(after, timeout_s)
        except Evicted as error:
            self._relay.broadcast({"kind": "evicted", "text": str(error), "was_asked": error.was_asked})
            raise
        except MembershipTimeout:
            raise
        except RunEnded as error:
            ending = {"text": str(error), "step": error.step, "was_evicted": error.was_evicted}
            self._relay.broadcast({"kind": "ended", **ending})
            raise
        return generation


class RelayedMembership:
    """Another rank's membership.

    Args:
        inner: the ranks of the group.
        before: identity of the incarnation that was given up; None for the first.

    Raises:
        InnerRankLost: rank 0 did not say who the group is.
    """

    def __init__(self, inner: TogetherInside, state: RelayState) -> None:
        self._line = inner.lines[0]
        self._state = state
        self._is_closed = threading.Event()
        self.member: MemberInfo = state.take_info()

    def current(self) -> Generation | None:
        """Latest generation known here."""
        return self._state.generation

    def wait_generation(self, after: int, timeout_s: float | None = None) -> Generation:
        """Blocks until there is a later generation that this group is part of."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        state = self._state
        with state.changed:
            while True:
                latest = state.generation
                if latest is not None and latest.number > after and self.member.member_id in latest:
                    return latest
                if state.ending is not None:
                    raise state.ending
                rest_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
                if rest_s <= 0:
                    raise MembershipTimeout(f"{self.member.name}: rank 0 knows no generation after {after}")
                state.changed.wait(min(rest_s, 1.0))

    def on_generation(self, callback: Callable[[Generation], None]) -> None:
        """Has a callback called for every generation."""
        self._state.on_generation.append(callback)

    def on_request(self, callback: Callable[[str, dict[str, Any]], None]) -> None:
        """Has a callback called for every request to the group."""
        self._state.on_request.append(callback)

    def store(self, scope: str, generation: int | None = None) -> _RelayedStore:
        """Values published under a scope."""
        return _RelayedStore(self._line, self._state, scope, generation)

    def watch(self, lamp: Lamp) -> None:
        """Tells rank 0 whether this rank's training thread is stuck."""
        threading.Thread(target=self._look, args=(lamp,), name="farstep-beacon", daemon=True).start()

    def _look(self, lamp: Lamp) -> None:
        was_stuck = False
        while not self._is_closed.wait(LOOK_S):
            stuck_ns = lamp.stuck_ns(time.monotonic_ns())
            if stuck_ns is not None or was_stuck:
                self._line.send({"kind": "stuck", "ns": stuck_ns})
            was_stuck = stuck_ns is not None

    def report_failure(
        self,
        generation: int,
        suspects: Sequence[str],
        reason: str,
        *,
        evict: bool = False,
        late: bool = False,
    ) -> None:
        """Says that a step failed."""
        self._line.send(
            {
                "kind": "report_failure",
                "generation": generation,
                "suspects": list(suspects),
                "reason": reason,
                "late": late,
            }
        )

    def report_progress(self, step: int, figures: Mapping[str, float] | None = None, **more: float) -> None:
        """Rank 0 does so for the group."""

    def event(self, kind: str, **fields: Any) -> None:
        """Adds to the coordinator's log."""
        self._line.send({"kind": "event", "event": kind, "fields": fields})

    def announce_ready(self, step: int | None) -> None:
        """This rank holds the state of a step."""
        self._line.send({"kind": "ready", "step": step})

    def request(self, to: str, payload: Mapping[str, Any]) -> None:
        """Sends a small message to another member."""
        self._line.send({"kind": "send_request", "to": to, "payload": dict(payload)})

    def on_drain(self, callback: Callable[[str], None]) -> None:
        """Has a callback called with the reason when this group is to leave, at once if it is already."""
        with self._state.changed:
            self._state.on_drain.append(callback)
            reason = self._state.drain_reason
        if reason is not None:
            callback(reason)

    def certify_death(self, member_id: str) -> None:
        """Rank 0 does so for the group."""

    def leave(self, reason: str, *, finished: bool = False, step: int | None = None) -> None:
        """Asks for a generation without this group; its end is said by rank 0 alone."""
        if not finished:
            self._line.send({"kind": "leave", "reason": reason})

    def close(self) -> None:
        """Ends the look at this rank's thread."""
        self._is_closed.set()


class RelayState:
    """What a rank has heard from rank 0; outlives the incarnations of its group."""

    def __init__(self, inner: TogetherInside) -> None:
        self.changed = threading.Condition()
        self.generation: Generation | None = None
        self.ending: MembershipError | None = None
        self.on_generation: list[Callable[[Generation], None]] = []
        self.on_request: list[Callable[[str, dict[str, Any]], None]] = []
        self.on_drain: list[Callable[[str], None]] = []
        self.drain_reason: str | None = None
        self.answers: dict[int, bytes | None] = {}
        self.number = 0
        self._infos: list[MemberInfo] = []
        inner.lines[0].listen(self._on_message)

    def take_info(self) -> MemberInfo:
        """Waits for the next identity of the group."""
        with self.changed:
            if not self.changed.wait_for(lambda: self._infos, REBORN_TIMEOUT_S):
                raise InnerRankLost("rank 0 did not say which member this replica group is")
            self.on_generation.clear()
            self.on_request.clear()
            self.on_drain.clear()
            if isinstance(self.ending, Evicted):
                self.ending = None
            return self._infos.pop(0)

    def lose(self, reason: str) -> None:
        """Rank 0 is gone."""
        with self.changed:
            self.ending = MembershipClosed(reason)
            self.changed.notify_all()

    def _on_message(self, line: Line, message: dict[str, Any]) -> None:
        calls: list[Callable[[], None]] = []
        with self.changed:
            match message["kind"]:
                case "info":
                    self.drain_reason = None
                    self._infos.append(MemberInfo.model_validate(message["info"]))
                case "generation":
                    generation = Generation.model_validate(message["generation"])
                    if self.generation is None or generation.number > self.generation.number:
                        self.generation = generation
                    calls = [_bound(callback, generation) for callback in self.on_generation]
                case "request":
                    sender, payload = message["from"], message["payload"]
                    calls = [_bound(callback, sender, payload) for callback in self.on_request]
                case "drain":
                    if self.drain_reason is None:
                        self.drain_reason = message["reason"]
                        calls = [_bound(callback, self.drain_reason) for callback in self.on_drain]
                case "evicted":
                    self.ending = Evicted(message["text"], was_asked=message["was_asked"])
                case "ended":
                    self.ending = RunEnded(
                        message["text"], step=message["step"], was_evicted=message["was_evicted"]
                    )
                case "got":
                    value = message["value"]
                    self.answers[message["number"]] = None if value is None else base64.b64decode(value)
            self.changed.notify_all()
        for call in calls:
            call()


class _RelayedStore:
    """A store that rank 0 asks."""

    def __init__(self, line: Line, state: RelayState, scope: str, generation: int | None) -> None:
        self._line = line
        self._state = state
        self._scope = scope
        self._generation = generation

    def set(self, key: str, value: bytes) -> None:
        self._line.send(
            {
                "kind": "set",
                "scope": self._scope,
                "generation": self._generation,
                "key": key,
                "value": base64.b64encode(value).decode(),
            }
        )

    def get(self, key: str, timeout_s: float) -> bytes:
        state = self._state
        with state.changed:
            state.number += 1
            number = state.number
        question = {"kind": "get", "scope": self._scope, "generation": self._generation, "key": key}
        self._line.send({**question, "number": number, "timeout_s": timeout_s})
        with state.changed:
            # The answer comes when there is one, or when rank 0 has waited so long in vain.
            state.changed.wait_for(
                lambda: number in state.answers or state.ending is not None, timeout_s + 5.0
            )
            value = state.answers.pop(number, None)
        if value is None:
            raise TimeoutError(f"nobody published {key!r} of {self._scope!r}")
        return value


def _bound(callback: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: callback(*arguments)
