"""From one generation to the next: waiting for it, opening its lane, and bringing all members to the same step.

Nothing here gives up because somebody else is gone: a worker waits for the next generation, says once in a while what
it waits for, and goes on when there is one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from farstep.collectives.transport import Endpoint
from farstep.engine import EngineError
from farstep.membership import (
    Evicted,
    Generation,
    MembershipClosed,
    MembershipError,
    MembershipTimeout,
    RunEnded,
)
from farstep.train.elastic.ahead import LaneAhead
from farstep.train.elastic.alignment import KeptDeal
from farstep.train.elastic.blame import is_late, suspects_of
from farstep.train.elastic.lane import Lane
from farstep.train.elastic.levelling import Leveller
from farstep.train.elastic.recall import Recall
from farstep.train.elastic.seams import HealingPort, RunOver, Thresholds
from farstep.train.elastic.state import ReplicaState
from farstep.train.elastic.step import StepBroken, StepRunner
from farstep.train.errors import ConfigError, RunFailed
from farstep.train.place import Place

__all__ = ["Formation", "Regrouped"]

logger = logging.getLogger("farstep.train")

WAIT_SLICE_S = 0.1
"""How often a wait for a generation looks whether the user wants to end; it ends at once when there is one."""

LEAVE_OUTSIDE_S = 0.3
"""A member that is in no generation is missed by nobody: it goes as soon as the coordinator has had time to hear that
it does, and so will not give it a seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """How a new generation was formed.

    Attributes:
        took_ms: from the failure, or the decision to switch, until the members stood at the same step.
        is_rolled_forward: the step under way was committed with the gradient that was in already.
        kept_deal: the deal among earlier seats that the step is run again with, if it is not dealt anew.
        is_same_seat: this member's seat and the number of seats are as before.
        is_reborn: this member was given up and came back; what it had under way is void.
        is_void: the batches in hand hold no sample between them, so the step is dealt anew.
    """

    took_ms: float
    is_rolled_forward: bool
    kept_deal: KeptDeal | None
    is_same_seat: bool
    is_reborn: bool
    is_void: bool


class Formation:
    """Holds the lane of the generation in force, and replaces it.

    Args:
        link: the line to the coordinator, which can be renewed after an eviction.
        endpoint: carries everything of this process.
        state: the replica.
        runner: knows of the attempt under way.
        lane_index: rank within the replica group.
        thresholds: time limits.
        make_healing: makes what brings newcomers up to date, for a membership; None: the state is broadcast.
        step_deadline_s: how long one collective of a step may take.
        recall: takes states back from the members' memory; None: there is nothing in it.
        load_older: loads the newest checkpoint on the disk, if there is one, when every newer state is lost.
        looks_ahead: whether lanes of planned generations are opened before they come into force; not in a replay, where
            a generation begins at the step it began at.
    """

    def __init__(
        self,
        link: Any,
        endpoint: Endpoint,
        state: ReplicaState,
        runner: StepRunner,
        *,
        lane_index: int,
        thresholds: Thresholds,
        step_deadline_s: float,
        make_healing: Callable[[Any], HealingPort] | None = None,
        recall: Recall | None = None,
        load_older: Callable[[], bool] = lambda: False,
        looks_ahead: bool = True,
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._state = state
        self._runner = runner
        self._lane_index = lane_index
        self._thresholds = thresholds
        self._step_deadline_s = step_deadline_s
        self._make_healing = make_healing
        self._recall = recall
        self._leveller = Leveller(link, state, runner, recall=recall, load_older=load_older)
        self._looks_ahead = looks_ahead
        self._ahead = LaneAhead(self._make_lane)
        self._healing: HealingPort | None = None
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._is_forming = False
        self._newest = 0
        self._is_waiting = False
        self._is_over = False
        self._reborn_count = 0
        self._listen()

    def note_deal(self, seats: int, seat: int) -> None:
        """Notes among how many seats the batch in hand was dealt, and to which this one; 0 and -1 for none."""
        self._leveller.note_deal(seats, seat)

    @property
    def deal_seats(self) -> int:
        """Among how many seats the batch in hand was dealt; 0 if it can be dealt anew, or there is none."""
        return self._leveller.deal_seats

    # -- what is in force -----------------------------------------------------------------------------

    @property
    def lane(self) -> Lane | None:
        """The lane of the generation in force; None before the first."""
        return self._lane

    @property
    def healing(self) -> HealingPort | None:
        """What brings newcomers up to date, if anything does."""
        return self._healing

    @property
    def is_over(self) -> bool:
        """Whether this member has nothing more to do."""
        return self._is_over

    @property
    def planned(self) -> int:
        """Number of the newest generation that this member could go over to at once."""
        newest, lane = self._newest, self._lane
        if lane is not None and self._ahead.is_opening(newest):
            return lane.generation.number
        return newest

    @property
    def membership(self) -> Any:
        """The line to the coordinator in use."""
        return self._link.membership

    def place(self) -> Place:
        """Where this member stands; it has a seat."""
        lane = self._lane
        assert lane is not None, "a place is asked for after a generation was entered"
        return Place(
            seat=lane.seat,
            num_seats=lane.num_seats,
            step=self._state.committed,
            generation=lane.generation.number,
        )

    def _listen(self) -> None:
        membership = self._link.membership
        membership.on_generation(self._on_generation)
        self._healing = self._make_healing(membership) if self._make_healing is not None else None
        self._runner.healing = self._healing
        if self._recall is not None:
            self._recall.listen(membership)
        membership.watch(self._runner.beacon)
        membership.on_drain(self._on_drain)

    def _on_drain(self, reason: str) -> None:
        """This member is to leave; from the membership's thread.

        With a seat it does so at a step boundary, once the others have agreed on it. Without one there is no step to
        wait for, and whatever it is doing to get a seat is in vain.
        """
        membership = self.membership
        generation = membership.current()
        if generation is None or generation.seat_of(membership.member.member_id) is None:
            self._link.leave(reason)
            if self._healing is not None:
                self._healing.wake()

    def _on_generation(self, generation: Generation) -> None:
        """A new membership was decided; from the membership's thread."""
        with self._lock:
            self._newest = max(self._newest, generation.number)
            lane = self._lane
            is_old = lane is not None and lane.generation.number < generation.number
            if lane is not None and is_old and (generation.is_urgent or self._is_forming):
                lane.abort(f"generation {generation.number}: {generation.reason or 'members changed'}")
            self._look_ahead(
                generation, is_old and not self._is_forming if lane is not None else self._is_waiting
            )
        if self._healing is not None:
            self._healing.wake()

    def _look_ahead(self, generation: Generation, is_next: bool) -> None:
        """Opens the lane of a planned generation while something else goes on that it may follow at any time."""
        seat = generation.seat_of(self.membership.member.member_id)
        if generation.is_urgent or seat is None or self._is_over:
            self._ahead.drop(f"generation {generation.number}: {generation.reason or 'members changed'}")
        elif is_next and self._looks_ahead:
            self._ahead.begin(generation, seat)

    # -- entering and changing ------------------------------------------------------------------------

    def enter(self) -> Regrouped | None:
        """Takes a seat, however long that takes; a spare waits here, keeping up with the run.

        Returns:
            None if this member had one already.

        Raises:
            RunOver: the run has ended, or this member has left it.
        """
        if self._is_over:
            raise RunOver
        if self._lane is not None:
            return None
        with self._runner.beacon.resting():
            return self._form(0, time.monotonic())

    def regroup(self, cause: StepBroken) -> Regrouped:
        """Replaces the generation under way after a failure.

        Raises:
            RunOver: the run has ended, or this member has left it.
        """
        began_s = time.monotonic()
        lane = self._lane
        assert lane is not None, "a step runs on a lane"
        number = lane.generation.number
        if cause.is_own_finding and self._newest <= number:
            self._accuse(lane.generation, cause)
        self._drop_lane(str(cause))
        self._state.settle()
        self.membership.event(
            "step_failed", step=self._state.committed, generation=number, cause=str(cause)[:300]
        )
        with self._runner.beacon.resting():
            return self._form(number, began_s, old=lane.generation)

    def switch(self) -> Regrouped:
        """Goes over to a planned generation that all members know of, between two steps.

        Raises:
            RunOver: the new generation is without this member, as it had asked.
        """
        began_s = time.monotonic()
        lane = self._lane
        assert lane is not None, "a switch follows a step"
        with self._lock:
            self._lane = None
        with self._runner.beacon.resting():
            lane.close()
            return self._form(lane.generation.number, began_s, old=lane.generation)

    def give_up(self, reason: str) -> None:
        """Ends the lane at once; the other members go on without this one."""
        self._is_over = True
        self._ahead.drop(reason)
        self._drop_lane(reason)

    def interrupt(self, reason: str) -> None:
        """Has whatever is under way fail at once, and nothing follow. From any thread."""
        self._is_over = True
        self._ahead.drop(reason)
        if (lane := self._lane) is not None:
            lane.abort(reason)

    def finish(self) -> None:
        """Ends the lane after all that was sent has arrived."""
        self._is_over = True
        self._ahead.drop("this member has finished")
        with self._lock:
            lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()

    def close(self) -> None:
        """Ends everything."""
        self.finish()
        self._ahead.close()
        if self._recall is not None:
            self._recall.close()
        if self._healing is not None:
            self._healing.close()

    def _drop_lane(self, reason: str) -> None:
        with self._lock:
            lane, self._lane = self._lane, None
        if lane is not None:
            lane.abort(reason)
            lane.drain()
            lane.close()

    # -- forming --------------------------------------------------------------------------------------

    def _form(self, after: int, began_s: float, old: Generation | None = None) -> Regrouped:
        """Waits for a generation with a seat for this member and aligns with its members."""
        with self._healing.waiting() if self._healing is not None else nullcontext():
            return self._form_unhurried(after, began_s, old)

    def _form_unhurried(self, after: int, began_s: float, old: Generation | None) -> Regrouped:
        reborn_before = self._reborn_count
        committed_before = self._state.committed
        while True:
            generation = self._await_seat(after)
            after = generation.number
            seat = generation.seat_of(self.membership.member.member_id)
            assert seat is not None, "only generations with a seat for this member are waited for"
            lane = self._open(generation, seat)
            try:
                kept_deal, is_void = self._leveller.level(lane)
            except RunFailed:
                self.finish()
                raise
            except ConfigError as error:  # this member does not fit: the others go on without it
                self._is_over = True
                self._link.leave(str(error)[:200])
                self._drop_lane(str(error))
                raise
            except EngineError as error:
                logger.info("generation %d did not come about: %s", generation.number, error)
                if lane.broken_because is None:
                    self._accuse(generation, error)
                self._drop_lane(str(error))
                continue
            with self._lock:
                self._is_forming = False
            break
        if self._healing is not None:
            self._healing.on_generation(generation, seat)
        took_ms = (time.monotonic() - began_s) * 1e3
        is_reborn = self._reborn_count != reborn_before
        is_rolled_forward = old is not None and not is_reborn and self._state.committed > committed_before
        self.membership.event(
            "regroup",
            number=generation.number,
            generation=generation.number,
            step=self._state.committed,
            took_ms=round(took_ms, 1),
            cause=generation.reason[:300],
            is_urgent=generation.is_urgent,
            rolled_forward=is_rolled_forward,
            keeps_deal=kept_deal is not None,
        )
        if is_rolled_forward:
            self.membership.event("rolled_forward", step=self._state.committed - 1)
        if generation.is_urgent and old is not None and self._lane_index == 0:
            why = generation.reason or "the members start the step again"
            logger.warning("%s, as %s; went on after %.0f ms", generation.describe(), why, took_ms)
        return Regrouped(
            took_ms=took_ms,
            is_rolled_forward=is_rolled_forward,
            kept_deal=kept_deal,
            is_same_seat=_is_same_seat(old, generation, self.membership.member.member_id),
            is_reborn=is_reborn,
            is_void=is_void,
        )

    def _open(self, generation: Generation, seat: int) -> Lane:
        with self._lock:
            lane = self._lane = self._ahead.take(generation, seat)
            self._is_forming = True
            if self._newest > generation.number:
                lane.abort(f"generation {self._newest} has followed already")
        return lane

    def _make_lane(self, generation: Generation, seat: int) -> Lane:
        return Lane(
            self._endpoint,
            self.membership.store(f"g{generation.number}", generation.number),
            generation,
            seat,
            index=self._lane_index,
            timeout_s=self._step_deadline_s,
            has_ended=lambda: self._has_ended(generation.number),
            on_opened=self._on_opened,
        )

    def _on_opened(self, lane: Lane) -> None:
        """All links of a lane are there, or cannot be made; from another thread.

        The members do not go over to a lane that cannot be opened. So those who are still under way, and wait for
        nothing, say so, that another generation may come.
        """
        error = lane.open_failure
        if error is not None and lane.broken_because is None and not self._is_over:
            self._accuse(lane.generation, error)
        if self._healing is not None:
            self._healing.wake()

    def _accuse(self, generation: Generation, error: BaseException) -> None:
        suspects = suspects_of(error, generation, self.membership.member.member_id)
        self.membership.report_failure(generation.number, suspects, str(error)[:500], late=is_late(error))

    def _has_ended(self, number: int) -> bool:
        """Whether the run has ended, or this member was given up, since a generation."""
        try:
            self.membership.wait_generation(number, timeout_s=0.0)
        except MembershipTimeout:
            return False
        except MembershipError:
            return True
        return False

    def _await_seat(self, after: int) -> Generation:
        """Waits for a generation later than `after` that has a seat for this member."""
        self._is_waiting = True
        try:
            return self._await_seat_somehow(after)
        finally:
            self._is_waiting = False

    def _await_seat_somehow(self, after: int) -> Generation:
        said_s = time.monotonic()
        while True:
            try:
                generation = self._wait(after)
            except MembershipTimeout as error:
                if time.monotonic() - said_s > self._thresholds.membership_report_s:
                    said_s = time.monotonic()
                    logger.warning("waiting: %s", error)
                self._check_wish()
                is_under_way = self.membership.current() is not None
                if self._leveller.is_newcomer and is_under_way and not self._link.is_leaving:
                    self._stand_by()  # the run is under way: what it has reached is needed before a seat
            except Evicted as error:
                if error.was_asked or self._link.is_leaving:
                    self._end(str(error))
                self._be_reborn(str(error))
                after = 0  # a new incarnation looks at whatever there is
            except RunEnded as error:
                # The others have committed the last step, so its gradient is in here too if it was under way.
                # Not so if they had gone on without this member: then they have made it among themselves.
                is_same_step = error.step == self._state.committed + 1 and not error.was_evicted
                if is_same_step and self._runner.is_prepared:
                    self._runner.commit_prepared()
                self._link.end(error.step)
                self._end(str(error))
            except MembershipClosed as error:
                self._end(str(error))
            else:
                if generation.seat_of(self.membership.member.member_id) is not None:
                    return generation
                after = generation.number
                if not self._link.is_leaving:
                    self._stand_by()

    def _wait(self, after: int) -> Generation:
        with self._leveller.standing_still():
            generation: Generation = self.membership.wait_generation(after, timeout_s=WAIT_SLICE_S)
        return generation

    def _stand_by(self) -> None:
        """Keeps up with the run without a seat, until there is one or something else to look at."""
        membership = self.membership

        def is_done() -> bool:
            generation = membership.current()
            has_seat = generation is not None and generation.seat_of(membership.member.member_id) is not None
            if generation is not None and has_seat and not self._ahead.is_opening(generation.number):
                return True
            # If evicted, or if the run has ended, whoever waits next is told.
            number = generation.number if generation is not None else 0
            return bool(self._link.is_leaving or self._link.is_closed or self._has_ended(number))

        if self._healing is not None:
            self._healing.follow(is_done)
        else:
            membership.announce_ready(self._state.committed)
        self._check_wish()

    def _check_wish(self) -> None:
        generation = self.membership.current()
        is_inside = generation is not None and self.membership.member.member_id in generation
        patience_s = self._thresholds.leave_s if is_inside else LEAVE_OUTSIDE_S
        if self._link.is_closed or (self._link.is_leaving and self._link.leaving_for_s() > patience_s):
            self._end("left")

    def _be_reborn(self, reason: str) -> None:
        logger.warning("this member was given up and joins again: %s", reason)
        if self._healing is not None:
            self._healing.close()
        self._link.renew()
        self._newest = 0
        self._reborn_count += 1
        self._ahead.forget()
        self._leveller.begin_anew()
        self._runner.forget()
        self._runner.beacon.forget()
        self._listen()

    def _end(self, reason: str) -> None:
        logger.info("over: %s", reason)
        if self._link.is_leaving:
            self.membership.event("left", step=self._state.committed, reason=reason[:300])
        self._is_over = True
        raise RunOver(reason)


def _is_same_seat(old: Generation | None, new: Generation, own_id: str) -> bool:
    if old is None or len(old.seats) != len(new.seats):
        return False
    return old.seat_of(own_id) == new.seat_of(own_id)
