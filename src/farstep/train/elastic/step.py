"""One attempt at a step: backward, reduction, vote.

A step is a transaction. Until it is committed, nothing of the replica changes that an attempt does not put back; once
anybody has committed it, everybody can.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from farstep.engine import EngineError
from farstep.membership.beacon import Beacon
from farstep.train.elastic.alignment import Report, float_of, word_of
from farstep.train.elastic.gradients import Bucket
from farstep.train.elastic.inner import InnerRanks
from farstep.train.elastic.lane import Lane
from farstep.train.elastic.seams import HealingPort, StepMeta
from farstep.train.elastic.state import LOSS_INDEX, ReplicaState

__all__ = ["Closure", "StepBroken", "StepRunner", "Vote"]

Closure = Callable[[], Tensor]
"""Computes the loss of this replica's batch: a tensor of one element, the mean over its samples."""


class StepBroken(Exception):
    """The members under way could not finish the step together; nothing has changed.

    Attributes:
        is_own_finding: a transport error found here, rather than heard of from others.
    """

    def __init__(self, message: str, *, is_own_finding: bool) -> None:
        super().__init__(message)
        self.is_own_finding = is_own_finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What all members decided together about a step whose gradient is in.

    Attributes:
        is_applied: whether the step is applied rather than refused.
        norm: of the gradient.
        goes_on: False once a member has asked to end the run.
        planned: newest membership that all members know of.
        must_go: whether this replica group goes now, without being let go.
    """

    is_applied: bool
    norm: float
    goes_on: bool
    planned: int
    must_go: bool


class StepRunner:
    """Runs attempts at steps and commits them.

    Args:
        state: the replica.
        inner: the ranks that share it.
        beacon: shows what this thread is at.

    Attributes:
        beacon: as given.
        waited_ns: time the last attempt spent waiting for the network.
        last_counts: samples per seat of the last committed step.
        healing: is told every committed gradient, if there is one.
    """

    def __init__(self, state: ReplicaState, inner: InnerRanks, beacon: Beacon | None = None) -> None:
        self._state = state
        self._inner = inner
        self.beacon = beacon if beacon is not None else Beacon()
        self._attempt_generation = 0
        self._is_prepared = False
        self._may_apply = False
        self._norm = 0.0
        self._loss = 0.0
        self._counts: tuple[int, ...] = ()
        self._words = np.zeros(4, dtype=np.int64)
        self.waited_ns = 0
        self.last_counts: tuple[int, ...] = ()
        self.healing: HealingPort | None = None

    def report(self, *, is_newcomer: bool, deal_seats: int, deal_seat: int) -> Report:
        """Where this replica stands, for the alignment of a new generation."""
        state = self._state
        return Report(
            committed=state.committed,
            attempt_generation=self._attempt_generation,
            is_prepared=self._is_prepared,
            may_apply=self._may_apply,
            norm_word=word_of(self._norm) if self._is_prepared else 0,
            last_is_applied=state.last_is_applied,
            last_norm_word=word_of(state.last_norm),
            is_newcomer=is_newcomer,
            deal_seats=deal_seats,
            deal_seat=deal_seat,
        )

    def forget(self) -> None:
        """No attempt at the next step counts any more."""
        self._attempt_generation = 0
        self._is_prepared = False

    # -- the attempt ----------------------------------------------------------------------------------

    def attempt(self, lane: Lane, closures: Sequence[Closure]) -> None:
        """Computes the gradient of the next step and reduces it over all members.

        Args:
            lane: the members.
            closures: each gives the loss of one part of the batch; the parts count the same. Without any, this member
                has no part of the step and its gradient is zero.

        Raises:
            StepBroken: a peer or the network failed; the replica is as before, and the attempt may be repeated.
            Exception: what a closure raised.
        """
        state = self._state
        counts = state.data.counts() if state.data is not None else (1,) * lane.num_seats
        if len(counts) != lane.num_seats:
            raise AssertionError(f"a step dealt to {len(counts)} seats cannot run on {lane.num_seats}")
        self._counts = counts
        self._attempt_generation = lane.generation.number
        self._is_prepared = False
        self.waited_ns = 0
        state.begin_attempt(lane.seat)
        try:
            self._backward(closures, _Sender(lane, counts, can_break=self._inner.size == 1))
        except BaseException:
            lane.drain()
            state.settle()
            raise
        self._finish_reduction(lane)

    def _backward(self, closures: Sequence[Closure], sender: _Sender) -> None:
        gradients = self._state.gradients
        data = self._state.data
        if not closures:  # nor, perhaps, was anything ever dealt to this member
            gradients.arm(sender.send)
            gradients.flush()
            return
        factor = (data.inner_scale if data is not None else 1.0) / len(closures)
        total = 0.0
        for index, closure in enumerate(closures):
            loss = closure()
            check_loss(loss)
            total += float(loss.detach()) * factor
            if index == len(closures) - 1:
                self._state.put_extra(total)
                gradients.arm(sender.send)
            if loss.requires_grad:  # otherwise the closure has done its own backward
                (loss if factor == 1.0 else loss * factor).backward()  # type: ignore[no-untyped-call]
        gradients.flush()

    def _finish_reduction(self, lane: Lane) -> None:
        began_ns = time.monotonic_ns()
        failure: EngineError | None = None
        try:
            with self.beacon.resting():
                lane.wait_all()
        except EngineError as error:
            failure = error
        gradients = self._state.gradients
        loss = float(gradients.extra[LOSS_INDEX])
        square_sum = gradients.square_sum() if failure is None else 0.0
        with self.beacon.resting():
            rows = self._inner.gather([float(failure is None), square_sum, loss])
        if failure is not None or not all(row[0] for row in rows):
            cause = str(failure) if failure is not None else "another rank of this replica group was cut off"
            raise StepBroken(
                cause, is_own_finding=failure is not None and lane.broken_because is None
            ) from failure
        self._norm = math.sqrt(sum(row[1] for row in rows))
        self._loss = sum(row[2] for row in rows) / len(rows)
        is_finite = math.isfinite(self._norm) and math.isfinite(self._loss)
        self._may_apply = is_finite or not self._state.policy.skip_not_finite
        self._is_prepared = True
        self.waited_ns += time.monotonic_ns() - began_ns

    def vote(self, lane: Lane, *, goes_on: bool, planned: int, must_go: bool) -> Vote:
        """Lets all members decide on the step; the least word of all counts.

        Args:
            lane: the members.
            goes_on: False asks all to end the run.
            planned: newest membership known here.
            must_go: this replica group is about to go by itself.

        Raises:
            StepBroken: a peer or the network failed. Others may have committed the step.
        """
        began_ns = time.monotonic_ns()
        if self._inner.size > 1:
            with self.beacon.resting():
                rows = self._inner.gather([float(goes_on), float(planned), float(must_go)])
            goes_on = all(row[0] for row in rows)
            planned = int(min(row[1] for row in rows))
            must_go = any(row[2] for row in rows)
        words = self._words
        words[:] = (self._may_apply, goes_on, planned, word_of(self._norm))
        try:
            with self.beacon.resting():
                lane.minimum(words)
        except EngineError as error:
            raise StepBroken(str(error), is_own_finding=lane.broken_because is None) from error
        self.waited_ns += time.monotonic_ns() - began_ns
        return Vote(
            is_applied=bool(words[0]),
            goes_on=bool(words[1]),
            planned=int(words[2]),
            norm=float_of(int(words[3])),
            must_go=must_go,
        )

    @property
    def is_prepared(self) -> bool:
        """Whether the reduced gradient of the next step is in the buckets."""
        return self._is_prepared

    # -- the commit -----------------------------------------------------------------------------------

    def commit_prepared(self) -> StepMeta:
        """Commits the step whose gradient is in, by what this member itself found."""
        return self.commit(norm=self._norm, is_applied=self._may_apply)

    def commit(self, *, norm: float, is_applied: bool) -> StepMeta:
        """Makes the step whose gradient is in the buckets part of the state."""
        state = self._state
        meta = StepMeta(
            step=state.committed,
            generation=self._attempt_generation,
            loss=self._loss,
            norm=norm,
            counts=self._counts,
            data=state.data.commit() if state.data is not None else {},
            is_applied=is_applied,
        )
        if self.healing is not None:
            self.healing.on_committed(state.flats if is_applied else (), meta.to_json())
        state.apply(meta)
        self.last_counts = self._counts
        self.forget()
        return meta


class _Sender:
    """Hands buckets to the network while backward runs."""

    def __init__(self, lane: Lane, counts: Sequence[int], *, can_break: bool) -> None:
        self._lane = lane
        self._can_break = can_break
        self._is_even = len(set(counts)) == 1 and counts[0] > 0
        total = sum(counts)
        self._weight = counts[lane.seat] / total if total else 0.0

    def send(self, bucket: Bucket) -> None:
        lane = self._lane
        if lane.broken_because is not None and self._can_break:
            # Ends backward at once: the gradient would be thrown away. Where several ranks compute together they
            # must all come to the end, or they would wait for each other.
            raise StepBroken(lane.broken_because, is_own_finding=False)
        if self._is_even:
            op: Any = "mean"
        else:
            op = "sum"
            if self._weight == 0.0:
                bucket.flat.zero_()
            else:
                bucket.flat.mul_(self._weight)
        try:
            lane.start_reduce(bucket.vector, op)
        except EngineError as error:  # the lane was closed meanwhile
            raise StepBroken(str(error), is_own_finding=False) from error


def check_loss(loss: object) -> None:
    """Raises TypeError unless this is a loss to go on from."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the step's function returned a {type(loss).__name__}; it must return the loss, a tensor"
        )
    if loss.numel() != 1:
        raise TypeError(
            f"the step's function returned a tensor of shape {tuple(loss.shape)}; "
            "it must return one number, the mean over the batch"
        )
