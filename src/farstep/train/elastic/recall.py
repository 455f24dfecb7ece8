"""Checkpoints in the memory of the members of a run: stored beside the training, recalled when no live state is left.

All seats and spares of a generation hold shards. A thread of every member does what they do together, on a
communicator of its own, so that a step waits for nothing but the copy of its state.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from farstep.collectives import Communicator, CommunicatorSettings
from farstep.collectives.transport import Endpoint
from farstep.engine import EngineError
from farstep.membership import Generation, MembershipError
from farstep.train.checkpoint.errors import CheckpointError
from farstep.train.checkpoint.memory import PeerMemory, gather_json
from farstep.train.checkpoint.placement import Domain
from farstep.train.elastic.lane import BreakableStore
from farstep.train.elastic.seams import StateAdapter
from farstep.train.healing.errors import ImageRejected, StateNotPortable
from farstep.train.healing.image import ImagePlan, Manifest, StateImage, allocate

__all__ = ["Recall", "Recalled"]

logger = logging.getLogger("farstep.train")

AHEAD_STEPS = 2
"""Steps that members may differ by when they agree on the next one to store."""

FOREVER_S = 1e7
"""Members wait for the next due step as long as steps take; a member that is gone ends the generation."""

TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Recalled:
    """What came of a generation's look at the memory of its members.

    Attributes:
        step: of the state that was taken back; -1 if there was no need, or none can be rebuilt.
        image: the state.
        failure: why there was no look; others may have had theirs.
    """

    step: int = -1
    image: StateImage | None = None
    failure: str | None = None


class Recall:
    """Stores the state in the members' memory now and then, and takes it back if it is the newest there is.

    Args:
        memory: this member's shards.
        endpoint: of this process.
        state: the replica.
        lane: rank within the replica group; each lane keeps its own part of the state.
    """

    def __init__(self, memory: PeerMemory, endpoint: Endpoint, state: StateAdapter, *, lane: int) -> None:
        self._memory = memory
        self._endpoint = endpoint
        self._state = state
        self._lane = lane
        self._changed = threading.Condition()
        self._membership: Any = None
        self._generation: Generation | None = None
        self._communicator: Communicator | None = None
        self._over_event = threading.Event()
        self._wanted = -1
        self._passed = -1
        self._plan: ImagePlan | None = None
        self._buffer: np.ndarray[Any, Any] | None = None
        self._done_number = 0
        self._recalled = Recalled()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="farstep-memory", daemon=True)

    @property
    def newest_step(self) -> int:
        """Step of the newest state of which this member holds a part; -1 if it holds none."""
        return self._memory.newest_step

    def listen(self, membership: Any) -> None:
        """Follows the generations of a membership; called again for each incarnation."""
        with self._changed:
            self._membership = membership
        membership.on_generation(self._on_generation)
        if (current := membership.current()) is not None:
            self._on_generation(current)
        if not self._thread.is_alive():
            self._thread.start()

    def _on_generation(self, generation: Generation) -> None:
        with self._changed:
            newest = self._generation
            is_other_run = newest is not None and newest.run_id != generation.run_id
            if newest is not None and generation.number <= newest.number and not is_other_run:
                return
            self._generation = generation
            self._over_event.set()
            communicator = self._communicator
            self._changed.notify_all()
        if communicator is not None:
            communicator.abort(f"generation {generation.number} has followed")

    # -- the thread that trains -----------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Between two steps: copies the state if all have agreed to store this one."""
        if self._wanted < 0:
            return
        with self._changed:
            is_due = step == self._wanted and self._plan is None
        if is_due:
            self._copy(step)
        with self._changed:
            self._passed = step
            self._changed.notify_all()

    def _copy(self, step: int) -> None:
        try:
            plan = ImagePlan(self._state.capture(), step)
        except StateNotPortable as error:
            logger.warning("the state of step %d cannot be kept in memory: %s", step, error)
            return
        buffer = self._buffer
        if buffer is None or buffer.nbytes != plan.length_bytes:
            buffer = self._buffer = allocate(plan.length_bytes)
        plan.copy_into(buffer)
        with self._changed:
            self._plan = plan

    def recall(self, number: int, is_over: Callable[[], bool]) -> Recalled:
        """What the look at the memory of a generation's members came to; blocks until it has.

        Args:
            number: of the generation.
            is_over: polled; True ends the wait.

        Raises:
            EngineError: it failed, or the generation ended first.
        """
        with self._changed:
            while self._done_number != number:
                if is_over() or self._is_closed:
                    raise EngineError(f"generation {number} ended before its members' memory was looked at")
                self._changed.wait(TICK_S)
            if self._recalled.failure is not None:
                raise EngineError(f"the members' memory could not be looked at: {self._recalled.failure}")
            return self._recalled

    def close(self) -> None:
        """Ends the thread; what is held is freed with this object."""
        with self._changed:
            self._is_closed = True
            self._over_event.set()
            communicator = self._communicator
            self._changed.notify_all()
        if communicator is not None:
            communicator.abort("this member ends")
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    # -- the thread beside it -------------------------------------------------------------------------

    def _run(self) -> None:
        handled: tuple[str, int] | None = None
        while True:
            with self._changed:
                while not self._is_closed and self._is_handled(handled):
                    self._changed.wait(TICK_S)
                if self._is_closed:
                    return
                generation, membership = self._generation, self._membership
                self._over_event = threading.Event()
                self._wanted, self._plan = -1, None
            assert generation is not None, "waited for"
            handled = (generation.run_id, generation.number)
            ids = [member.member_id for member in (*generation.seats, *generation.spares)]
            if membership.member.member_id not in ids:
                continue
            try:
                self._serve(generation, membership, ids.index(membership.member.member_id))
            except (EngineError, MembershipError, TimeoutError) as error:
                logger.debug("memory checkpoints of generation %d end: %s", generation.number, error)
            except CheckpointError as error:
                logger.warning("memory checkpoints stop until members change: %s", error)
                membership.event("memory_failed", cause=str(error))
            finally:
                self._drop()

    def _is_handled(self, handled: tuple[str, int] | None) -> bool:
        generation = self._generation
        return generation is None or (generation.run_id, generation.number) == handled

    def _drop(self) -> None:
        with self._changed:
            communicator, self._communicator = self._communicator, None
            self._wanted = -1
        if communicator is not None:
            communicator.abort("members have changed")
            with contextlib.suppress(EngineError):
                communicator.close()

    def _serve(self, generation: Generation, membership: Any, rank: int) -> None:
        members = [*generation.seats, *generation.spares]
        over = self._over_event
        scope = f"g{generation.number}/memory{self._lane}"
        communicator = Communicator(
            self._endpoint,
            rank=rank,
            size=len(members),
            store=BreakableStore(membership.store(scope, generation.number), over, lambda: None),
            name=f"{generation.run_id}/{scope}",
            settings=CommunicatorSettings(timeout_s=FOREVER_S),
            identities=[member.name for member in members],
        )
        with self._changed:
            self._communicator = communicator
            if over.is_set():
                return
        domains = [Domain(member.name, member.site, member.host) for member in members]
        is_seat = rank < len(generation.seats)
        try:
            recalled = self._look(communicator, membership, is_seat=is_seat)
        except CheckpointError as error:  # what is left of it is no good
            logger.warning("no memory checkpoint can be taken back: %s", error)
            recalled = Recalled()
        except EngineError as error:
            self._tell(generation, Recalled(failure=str(error)))
            raise
        self._tell(generation, recalled)
        self._memory.repair(communicator, domains)
        ahead = AHEAD_STEPS
        while not over.is_set():
            ahead = self._store_next(communicator, domains, membership, ahead, is_seat=is_seat)

    def _tell(self, generation: Generation, recalled: Recalled) -> None:
        with self._changed:
            self._done_number, self._recalled = generation.number, recalled
            self._changed.notify_all()

    def _look(self, communicator: Communicator, membership: Any, *, is_seat: bool) -> Recalled:
        """Takes back the newest state if it is newer than any that lives."""
        live = max(gather_json(communicator, self._state.committed))
        newest = self._memory.newest_whole(communicator)
        if newest is None or newest <= live:
            return Recalled()
        restored = self._memory.restore(communicator, step=newest, is_wanted=is_seat)
        if restored is None:
            return Recalled(newest)
        try:
            manifest = Manifest.parse(restored.meta["manifest"].encode())
        except (ImageRejected, KeyError, AttributeError) as error:
            raise CheckpointError(f"the state of step {newest} cannot be read: {error}") from error
        membership.event("memory_recalled", step=newest, bytes=restored.image.nbytes)
        return Recalled(newest, StateImage(restored.image, manifest))

    def _store_next(
        self,
        communicator: Communicator,
        domains: list[Domain],
        membership: Any,
        ahead: int,
        *,
        is_seat: bool,
    ) -> int:
        """Stores the state of the next due step; returns how far ahead to agree on the one after it."""
        every = self._memory.every_steps
        reached = max(gather_json(communicator, self._state.committed if is_seat else -1))
        step = -(-(reached + ahead) // every) * every
        began_s = time.monotonic()
        image = self._await_copy(step) if is_seat else None
        if not all(gather_json(communicator, image is not None or not is_seat)):
            return min(2 * ahead, 64)  # somebody was past it already
        meta = {"manifest": image.manifest.encoded.decode()} if image is not None else None
        survived = self._memory.protect(
            communicator, domains, step, image.buffer if image is not None else None, meta
        )
        with self._changed:
            self._plan = None
        if communicator.rank == 0:
            membership.event(
                "memory_checkpoint",
                step=step,
                members_lost_max=survived.members,
                took_ms=round((time.monotonic() - began_s) * 1e3, 1),
            )
        return AHEAD_STEPS

    def _await_copy(self, step: int) -> StateImage | None:
        """Waits for the copy of a step; None if that was missed, or the generation is over."""
        with self._changed:
            self._wanted, self._passed, self._plan = step, -1, None
            if self._state.committed < step:
                self._changed.wait_for(lambda: self._passed >= step or self._over_event.is_set())
            self._wanted = -1
        return self._sealed(step)

    def _sealed(self, step: int) -> StateImage | None:
        plan, buffer = self._plan, self._buffer
        if plan is None or buffer is None or plan.step != step:
            return None
        return plan.seal(buffer)
