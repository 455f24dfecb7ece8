"""Runs schedules in plain Python: the oracle they are proved with, and a model of how a runner may run them.

:func:`execute` gives a schedule its meaning, step by step. :func:`execute_interleaved` runs it as the
communicator does, without steps: links deliver in order but at any time, and a rank orders only the accesses
to one and the same range. It raises :class:`HazardError` where memory would be overwritten too early.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from farstep.collectives.schedule.model import Action, Schedule, Transfer

T = TypeVar("T")
Link = tuple[int, int]


class HazardError(Exception):
    """A range is overwritten while an earlier access to it is still to come."""


def _apply(action: Action, own: Sequence[T], received: Sequence[T], combine: Callable[[T, T], T]) -> list[T]:
    if action is Action.COPY:
        return list(received)
    if action is Action.REDUCE_LEFT:
        return [combine(r, o) for o, r in zip(own, received, strict=True)]
    return [combine(o, r) for o, r in zip(own, received, strict=True)]


def execute(
    schedule: Schedule,
    inputs: Sequence[Sequence[T]],
    combine: Callable[[T, T], T],
    *,
    work: Sequence[Sequence[T]] | None = None,
) -> list[list[T]]:
    """Runs a schedule step by step and returns every rank's work vector.

    Args:
        schedule: all transfers of a collective.
        inputs: one vector per rank.
        combine: the reduction; its first argument is the left operand.
        work: initial work vectors, needed if the schedule has a separate input; by default the inputs.

    Raises:
        ValueError: the number of vectors is not the number of ranks.
    """
    if len(inputs) != schedule.size:
        raise ValueError(f"{len(inputs)} inputs given for {schedule.size} ranks")
    state = [list(vector) for vector in (inputs if work is None else work)]
    sources = [list(vector) for vector in inputs] if schedule.separate_input else state
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in schedule.transfers:
        by_step[transfer.step].append(transfer)
    for step in sorted(by_step):
        payloads = [sources[t.source][t.source_offset : t.source_offset + t.length] for t in by_step[step]]
        for t, payload in zip(by_step[step], payloads, strict=True):
            stop = t.target_offset + t.length
            own = state[t.target][t.target_offset : stop]
            state[t.target][t.target_offset : stop] = _apply(t.action, own, payload, combine)
    return state


@dataclass(slots=True)
class _Access:
    """One read or write of a range, in the order the rank has to do them."""

    transfer: Transfer
    is_send: bool
    is_done: bool = False
    is_arrived: bool = False


@dataclass(slots=True)
class _Links(Generic[T]):
    """Queues of one link: to be posted, on the wire, arrived."""

    to_post: deque[_Access] = field(default_factory=deque)
    wire: deque[tuple[_Access, list[T]]] = field(default_factory=deque)
    arrived: deque[tuple[_Access, list[T]]] = field(default_factory=deque)


class _Interleaved(Generic[T]):
    """The state of one interleaved run."""

    def __init__(
        self, schedule: Schedule, inputs: Sequence[Sequence[T]], work: Sequence[Sequence[T]], zero_copy: bool
    ) -> None:
        self.work = [list(vector) for vector in work]
        self.sources = [list(vector) for vector in inputs] if schedule.separate_input else self.work
        self.zero_copy = zero_copy
        self.links: dict[Link, _Links[T]] = defaultdict(_Links)
        self.receives: dict[int, _Access] = {}
        self.ranges: dict[tuple[int, bool, int], list[_Access]] = defaultdict(list)
        ordered = sorted(
            [(t.step, 0, t) for t in schedule.transfers] + [(t.step, 1, t) for t in schedule.transfers],
            key=lambda entry: entry[:2],
        )
        for _, order, t in ordered:
            access = _Access(t, is_send=order == 0)
            if access.is_send:
                self.links[t.source, t.target].to_post.append(access)
                self.ranges[t.source, schedule.separate_input, t.source_offset].append(access)
            else:
                self.receives[id(t)] = access
                self.ranges[t.target, False, t.target_offset].append(access)
        self.separate_input = schedule.separate_input

    def peers_of(self, access: _Access) -> list[_Access]:
        t = access.transfer
        if access.is_send:
            return self.ranges[t.source, self.separate_input, t.source_offset]
        return self.ranges[t.target, False, t.target_offset]

    def is_turn(self, access: _Access) -> bool:
        """Whether everything before this access to its range is done."""
        for earlier in self.peers_of(access):
            if earlier is access:
                return True
            if not earlier.is_done:
                return False
        raise AssertionError("an access must be listed with its range")

    def enabled(self) -> list[tuple[str, Link]]:
        moves = []
        for link, queues in self.links.items():
            if queues.to_post and self.is_turn(queues.to_post[0]):
                moves.append(("post", link))
            if queues.wire:
                moves.append(("deliver", link))
            if queues.arrived and self.is_turn(queues.arrived[0][0]):
                moves.append(("process", link))
        return moves

    def read_source(self, t: Transfer) -> list[T]:
        return self.sources[t.source][t.source_offset : t.source_offset + t.length]

    def post(self, link: Link) -> None:
        access = self.links[link].to_post.popleft()
        access.is_done = True
        self.links[link].wire.append((access, self.read_source(access.transfer)))

    def deliver(self, link: Link) -> None:
        send, payload = self.links[link].wire.popleft()
        send.is_arrived = True
        t = send.transfer
        receive = self.receives[id(t)]
        if self.zero_copy:
            if self.read_source(t) != payload:
                raise HazardError(f"{t} was still being sent when its range was overwritten")
            if t.action is Action.COPY:
                for earlier in self.peers_of(receive):
                    if earlier is receive:
                        break
                    if not (earlier.is_arrived if earlier.is_send else earlier.is_done):
                        raise HazardError(f"{t} overwrites a range before {earlier.transfer} is through")
                self.work[t.target][t.target_offset : t.target_offset + t.length] = payload
        self.links[link].arrived.append((receive, payload))

    def process(self, link: Link, combine: Callable[[T, T], T]) -> None:
        receive, payload = self.links[link].arrived.popleft()
        t = receive.transfer
        if not (self.zero_copy and t.action is Action.COPY):
            vector = self.work[t.target]
            stop = t.target_offset + t.length
            vector[t.target_offset : stop] = _apply(
                t.action, vector[t.target_offset : stop], payload, combine
            )
        receive.is_done = True


def execute_interleaved(
    schedule: Schedule,
    inputs: Sequence[Sequence[T]],
    combine: Callable[[T, T], T],
    *,
    seed: int,
    work: Sequence[Sequence[T]] | None = None,
    zero_copy: bool = False,
) -> list[list[T]]:
    """Runs a schedule in a random legal order of events and returns every rank's work vector.

    Args:
        schedule: all transfers of a collective.
        inputs: one vector per rank.
        combine: the reduction; its first argument is the left operand.
        seed: fixes the order of events.
        work: initial work vectors, by default the inputs.
        zero_copy: sends read their range when they are delivered instead of when they are posted, and copies
            land in place; only for schedules with ``is_zero_copy``.

    Raises:
        HazardError: an access came too early, or nothing can proceed.
    """
    run: _Interleaved[T] = _Interleaved(schedule, inputs, inputs if work is None else work, zero_copy)
    chooser = random.Random(seed)
    while moves := run.enabled():
        kind, link = chooser.choice(moves)
        if kind == "post":
            run.post(link)
        elif kind == "deliver":
            run.deliver(link)
        else:
            run.process(link, combine)
    stuck = [link for link, queues in run.links.items() if queues.to_post or queues.arrived]
    if stuck:
        raise HazardError(f"links {stuck} cannot proceed")
    return run.work
