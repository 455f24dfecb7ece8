"""Brings the members of a new generation to the same step with the same state, over their lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from farstep.engine import EngineError
from farstep.train.elastic.alignment import Alignment, KeptDeal, Report, align, float_of
from farstep.train.elastic.lane import Lane
from farstep.train.elastic.recall import Recall
from farstep.train.elastic.state import ReplicaState
from farstep.train.elastic.step import StepRunner
from farstep.train.elastic.transfer import broadcast_state, state_word
from farstep.train.errors import ConfigError, RunFailed

__all__ = ["Leveller"]

logger = logging.getLogger("farstep.train")

CATCH_UP_S = 1.0
"""Longest time a newcomer may take for the last steps it is short of; then it gets the whole state."""


class Leveller:
    """One member's part in coming to the same step.

    Args:
        link: the line to the coordinator.
        state: the replica.
        runner: knows of the attempt under way, and who heals.
        recall: takes states back from the members' memory; None: there is nothing in it.
        load_older: loads the newest checkpoint on the disk, if there is one, when every newer state is lost.

    Attributes:
        is_newcomer: this member has not been compared with the others yet.
        deal_seats, deal_seat: the batch in hand, as in :class:`~farstep.train.elastic.alignment.Report`.
    """

    def __init__(
        self,
        link: Any,
        state: ReplicaState,
        runner: StepRunner,
        *,
        recall: Recall | None = None,
        load_older: Callable[[], bool] = lambda: False,
    ) -> None:
        self._link = link
        self._state = state
        self._runner = runner
        self._recall = recall
        self._load_older = load_older
        self.is_newcomer = True
        self.deal_seats = 0
        self.deal_seat = -1

    def note_deal(self, seats: int, seat: int) -> None:
        """Notes among how many seats the batch in hand was dealt, and to which this one; 0 and -1 for none."""
        self.deal_seats, self.deal_seat = seats, seat

    def begin_anew(self) -> None:
        """This member is another incarnation: nothing it had in hand counts."""
        self.is_newcomer = True
        self.note_deal(0, -1)

    def standing_still(self) -> AbstractContextManager[Any]:
        """While the context lasts the state does not change, and may be given to others."""
        healing = self._runner.healing
        return healing.standstill() if healing is not None else nullcontext()

    def level(self, lane: Lane) -> tuple[KeptDeal | None, bool]:
        """Brings all members to the same step.

        Returns:
            The deal that the next step goes by, unless it is a new one; whether the one in hand holds no sample.

        Raises:
            EngineError: somebody is gone, or a newer generation has come.
            ConfigError: this member does not fit the run, or cannot be given its state.
            RunFailed: there is no state left.
        """
        state = self._state
        lane.wait_open()
        reports = self._gather(lane)
        plan = align(reports)
        newest = max(report.memory_step for report in reports)
        if self._recall is not None and newest > plan.target:
            plan = self._take_back(lane, plan, self._recall, newest)
        if lane.seat in plan.forward:
            self._runner.commit(
                norm=float_of(plan.norm_words[lane.seat]), is_applied=plan.is_applied[lane.seat]
            )
        if plan.is_compared or plan.behind:
            self._equalize(lane, plan)
        if state.committed != plan.target:
            raise AssertionError(f"aligned to {plan.target} committed steps, but has {state.committed}")
        self.is_newcomer = False
        if plan.kept_deal is not None and self._is_empty(plan.kept_deal):
            self.note_deal(0, -1)
            return None, True
        return plan.kept_deal, False

    def _is_empty(self, deal: KeptDeal) -> bool:
        """Whether those who hold a part of a deal hold no sample of it."""
        if (data := self._state.data) is None:
            return False
        data.keep(deal.seats, deal.holders)
        is_empty = sum(data.counts()) == 0
        data.forget()
        return is_empty

    def _take_back(self, lane: Lane, plan: Alignment, recall: Recall, newest: int) -> Alignment:
        """The members' memory holds a newer state than anybody who is left: all take it, or the disk's, if they can."""
        state = self._state
        recalled = recall.recall(lane.generation.number, lambda: lane.broken_because is not None)
        steps = lane.gather(np.array([recalled.step], dtype=np.int64))[:, 0].tolist()
        is_taken = min(steps) == max(steps) > plan.target and recalled.image is not None
        if is_taken and recalled.image is not None:
            state.restore(recalled.image.state())
        elif plan.target == 0 and not self._load_older():
            logger.warning("no state of the run is left, neither in members nor on a disk")
        self._runner.forget()
        self.note_deal(0, -1)
        plan = align(self._gather(lane))
        if plan.target == 0:
            lane.close()  # in good order, so that the others come to the same
            self._link.finish(newest)
            raise RunFailed("every copy of the state is lost, and there is no checkpoint to go on from")
        return plan

    def _gather(self, lane: Lane) -> list[Report]:
        report = self._runner.report(
            is_newcomer=self.is_newcomer, deal_seats=self.deal_seats, deal_seat=self.deal_seat
        )
        if self._recall is not None:
            report = replace(report, memory_step=self._recall.newest_step)
        row = report.to_row()
        return [Report.from_row(values) for values in lane.gather(row).tolist()]

    # -- the same state -------------------------------------------------------------------------------

    def _equalize(self, lane: Lane, plan: Alignment) -> None:
        """Those that are behind make the missing steps from what others kept; who then differs gets the whole state."""
        healing = self._runner.healing
        if lane.seat in plan.behind and healing is not None:
            sources = [m.member_id for seat, m in enumerate(lane.generation.seats) if seat not in plan.behind]
            healing.catch_up(
                plan.target, sources, CATCH_UP_S, is_over=lambda: lane.broken_because is not None
            )
        with self.standing_still():  # those that are behind may need the whole state from the others
            differing, behind = self._differing(lane, plan)
        if not differing:
            return
        wrong = [seat for seat in differing if seat not in behind]
        if wrong and self._state.committed:
            names = ", ".join(lane.generation.seats[seat].name for seat in wrong)
            self._link.membership.event("state_differs", step=self._state.committed, members=names)
            logger.error("the state of %s differs at step %d; it is replaced", names, self._state.committed)
        self._share(lane, plan, differing)
        differing, _ = self._differing(lane, plan)
        if not differing:
            return
        text = f"cannot be given the state of seat {plan.reference}: after loading it, its hash still differs"
        if lane.seat in differing:
            raise ConfigError(f"this member {text}")
        raise EngineError(f"rank {differing[0]} {text}")

    def _differing(self, lane: Lane, plan: Alignment) -> tuple[list[int], list[int]]:
        """Returns which seats stand elsewhere than the reference, and which of them are behind."""
        is_there = self._state.committed == plan.target
        row = [self._state.committed, state_word(self._state) if is_there else 0]
        rows = lane.gather(np.array(row, dtype=np.int64)).tolist()
        behind = [seat for seat, (committed, _) in enumerate(rows) if committed < plan.target]
        differing = [seat for seat, row in enumerate(rows) if row != rows[plan.reference]]
        return differing, behind

    def _share(self, lane: Lane, plan: Alignment, receivers: list[int]) -> None:
        began_s = time.monotonic()
        length_bytes = broadcast_state(lane, self._state, plan.reference, receivers)
        if lane.seat in receivers:
            self._runner.forget()
        if lane.seat == plan.reference:
            self._link.membership.event(
                "state_shared",
                step=self._state.committed,
                members=[lane.generation.seats[seat].name for seat in receivers],
                bytes=length_bytes,
                took_ms=round((time.monotonic() - began_s) * 1e3, 1),
            )
