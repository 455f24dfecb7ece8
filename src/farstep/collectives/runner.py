"""Runs a plan over links: sends what may be sent, consumes what has arrived, waits for the rest.

One thread runs one plan at a time. The order in which bytes arrive changes nothing in the result, because
every chunk of memory is accessed in the order of its turns.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farstep import _native
from farstep.collectives.errors import CollectiveMismatch, CommunicatorTimeout
from farstep.collectives.link import CHECK_BITS, PLACED_SLOT, Link
from farstep.collectives.plan import Access, LinkPlan, Plan
from farstep.collectives.reduction import ElementType
from farstep.collectives.schedule import Action
from farstep.collectives.transport import Completion, RemoteKey
from farstep.collectives.vector import Space, Vector
from farstep.engine import WaitTimeout

OUTSTANDING_MAX = 256
"""Unacknowledged writes per link. Below the 1024 a connection queues, above what any window holds."""
POLL_INTERVAL_S = 0.0002
"""How long to listen to one link before looking at the next when several may speak."""
EAGER_CREDIT_BATCH = 8
DIRECT_CREDIT_BATCH = 2
"""Credits given back at a time: few where the sender may be waiting for them, more where it is not."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to run a plan on.

    Attributes:
        name: the collective as the caller knows it, for errors.
        operation: number of the operation modulo 256, the same on all ranks.
        check: 10 bits all ranks must agree on: what was called, with which sizes and types.
        source: input of this rank; may be the work space itself.
        work: where the result goes.
        element_type: type of the elements.
        kernel: number of the reduction kernel.
        divisor: divides values once they are reduced over all ranks; 1 divides nothing.
        own_blocks: pairs (target, source) of memory this rank copies within itself.
        deadline_s: time on the monotonic clock at which to give up.
    """

    name: str
    operation: int
    check: int
    source: Space
    work: Space
    element_type: ElementType
    kernel: int
    divisor: int
    own_blocks: Sequence[tuple[Vector, Vector]]
    deadline_s: float


@dataclass(slots=True)
class _LinkState:
    """Progress on one link."""

    link: Link
    sends: Sequence[Access]
    receives: Sequence[Access]
    num_placed_sends: int
    sent: int = 0
    received: int = 0
    outstanding: int = 0

    def is_done(self) -> bool:
        return self.sent == len(self.sends) and self.received == len(self.receives)


class Run:
    """One run of one plan."""

    def __init__(self, plan: Plan, task: Task, links: Mapping[int, Link]) -> None:
        self._plan = plan
        self._task = task
        self._tag = task.operation << CHECK_BITS | task.check
        self._itemsize_bytes = task.element_type.itemsize_bytes
        self._turns = [0] * len(plan.next_access)
        self._states = {peer: self._make_state(links[peer], part) for peer, part in plan.links.items()}
        self._is_eager = plan.is_eager
        self._credit_batch = EAGER_CREDIT_BATCH if self._is_eager else DIRECT_CREDIT_BATCH
        self._completions: list[Completion] = []

    @staticmethod
    def _make_state(link: Link, part: LinkPlan) -> _LinkState:
        return _LinkState(link, part.sends, part.receives, part.num_placed_sends)

    def run(self) -> None:
        """Runs the plan to its end; the result is then in place and all memory is the caller's again.

        Raises:
            CommunicatorTimeout: the deadline has passed.
            CollectiveMismatch: a peer runs something else.
            EngineError: a connection failed.
        """
        if not self._is_eager:
            self._say_ready()
        pending = list(self._states.values())
        for state in pending:
            self._advance(state)
        for target, source in self._task.own_blocks:
            _native.copy_bytes(target.address, source.address, target.length_bytes)
        while True:
            pending = [state for state in pending if not state.is_done()]
            if not pending:
                break
            self._advance(self._wait(pending))
        for completion in self._completions:
            completion.wait(max(self._task.deadline_s - time.monotonic(), 0.001))
        for state in self._states.values():
            state.link.ready.pop(self._task.operation, None)

    def _say_ready(self) -> None:
        operation = self._task.operation
        for peer, part in self._plan.links.items():
            if part.placed_offsets_bytes:
                places = [self._task.work.locate(offset) for offset in part.placed_offsets_bytes]
                self._states[peer].link.send_ready(places, operation)

    # -- progress -------------------------------------------------------------------------------------

    def _advance(self, first: _LinkState) -> None:
        """Does everything that has become possible on one link, and what that makes possible on others."""
        todo = [first]
        turns, next_access = self._turns, self._plan.next_access
        while todo:
            state = todo.pop()
            for access in (*self._consume(state), *self._send(state)):
                accesses = next_access[access.chunk]
                turn = turns[access.chunk]
                if turn < len(accesses):
                    todo.append(self._states[accesses[turn].peer])

    def _consume(self, state: _LinkState) -> list[Access]:
        """Consumes arrived chunks as far as it is their turn."""
        done = []
        arrivals, turns = state.link.arrivals, self._turns
        while arrivals and state.received < len(state.receives):
            access = state.receives[state.received]
            if turns[access.chunk] != access.turn:
                break
            slot, tag = arrivals.popleft()
            if tag != self._tag or (slot == PLACED_SLOT) != access.is_placed:
                raise mismatch(self._task, state.link.peer, tag)
            if slot != PLACED_SLOT:
                self._take(access, state.link.slot_address(slot))
                state.link.release(slot, self._credit_batch)
            state.received += 1
            turns[access.chunk] += 1
            done.append(access)
        return done

    def _take(self, access: Access, arrived: int) -> None:
        """Copies or reduces an arrived chunk into the work space."""
        task = self._task
        out = task.work.address(access.offset_bytes)
        if access.action is Action.COPY:
            _native.copy_bytes(out, arrived, access.length_bytes)
            return
        own = task.source.address(access.offset_bytes) if access.is_fresh else out
        left, right = (arrived, own) if access.action is Action.REDUCE_LEFT else (own, arrived)
        count = access.length_bytes // self._itemsize_bytes
        _native.reduce_into(out, left, right, count, task.element_type, task.kernel)
        if access.completes and task.divisor != 1:
            _native.divide_in_place(out, count, task.element_type, task.divisor)

    def _send(self, state: _LinkState) -> list[Access]:
        """Sends chunks as far as it is their turn and the peer can take them."""
        done = []
        turns, link = self._turns, state.link
        while state.sent < len(state.sends):
            access = state.sends[state.sent]
            if turns[access.chunk] != access.turn:
                break
            if access.is_placed:
                places = link.ready.get(self._task.operation)
                if places is None:
                    break
                if len(places) != state.num_placed_sends:
                    raise mismatch(self._task, link.peer, self._tag)
                self._send_to_place(state, access, places)
            elif not link.free_slots:
                break
            elif self._is_eager:
                space = self._task.source if access.is_fresh else self._task.work
                link.send_copy(space.address(access.offset_bytes), access.length_bytes, self._tag)
            else:
                region, offset = self._locate(access)
                self._completions.append(link.send_to_slot(region, offset, access.length_bytes, self._tag))
            state.sent += 1
            turns[access.chunk] += 1
            done.append(access)
        return done

    def _send_to_place(self, state: _LinkState, access: Access, places: list[tuple[RemoteKey, int]]) -> None:
        region, offset = self._locate(access)
        if len(self._completions) >= OUTSTANDING_MAX:
            self._completions.pop(0).wait(max(self._task.deadline_s - time.monotonic(), 0.001))
        self._completions.append(
            state.link.send_to_place(
                region,
                offset,
                access.length_bytes,
                places[access.entry],
                access.entry_offset_bytes,
                self._tag,
            )
        )

    def _locate(self, access: Access) -> tuple[object, int]:
        space = self._task.source if access.is_fresh else self._task.work
        return space.locate(access.offset_bytes)

    # -- waiting --------------------------------------------------------------------------------------

    def _is_awaited(self, state: _LinkState) -> bool:
        """Whether the run cannot go on without a word from this peer: one that is through may have left."""
        if state.received + len(state.link.arrivals) < len(state.receives):
            return True
        if state.sent == len(state.sends):
            return False
        access = state.sends[state.sent]
        return self._turns[access.chunk] == access.turn

    def _wait(self, pending: list[_LinkState]) -> _LinkState:
        """Waits until one of the links has something new and takes it in."""
        awaited = [state for state in pending if self._is_awaited(state)]
        assert awaited, "a plan whose accesses are ordered always waits for a peer"
        if len(awaited) == 1:
            state = awaited[0]
            remaining_s = self._task.deadline_s - time.monotonic()
            if remaining_s <= 0:
                raise self._timeout(awaited)
            try:
                state.link.on_immediate(state.link.connection.wait_immediate(remaining_s))
            except WaitTimeout as error:
                raise self._timeout(awaited) from error
            return state
        while True:
            for state in awaited:
                word = state.link.connection.poll_immediate()
                if word is not None:
                    state.link.on_immediate(word)
                    return state
            for state in awaited:
                try:
                    word = state.link.connection.wait_immediate(POLL_INTERVAL_S)
                except WaitTimeout:
                    continue
                state.link.on_immediate(word)
                return state
            if time.monotonic() >= self._task.deadline_s:
                raise self._timeout(awaited)

    def _timeout(self, awaited: Sequence[_LinkState]) -> CommunicatorTimeout:
        return timed_out(
            self._task,
            [(s.link.peer, s.received, len(s.receives), s.sent, len(s.sends)) for s in awaited],
        )


def timed_out(task: Task, awaited: Sequence[tuple[int, int, int, int, int]]) -> CommunicatorTimeout:
    """The error of a task whose time is up: who is waited for, with chunks received, of, sent, of."""
    waiting = [
        f"rank {peer} ({received} of {receives} chunks received, {sent} of {sends} sent)"
        for peer, received, receives, sent, sends in awaited
    ]
    return CommunicatorTimeout(
        f"{task.name} timed out waiting for {', '.join(waiting) or 'acknowledgements'}"
    )


def mismatch(task: Task, peer: int, tag: int) -> CollectiveMismatch:
    """The error of a task whose peer has sent something tagged for another one."""
    ours, theirs = task.operation, tag >> CHECK_BITS
    what = (
        f"operation {theirs} where this rank runs operation {ours} (both modulo 256)"
        if ours != theirs
        else "the same operation with other sizes, types or arguments"
    )
    return CollectiveMismatch(f"{task.name}: rank {peer} runs {what}; calls must match on all ranks")
