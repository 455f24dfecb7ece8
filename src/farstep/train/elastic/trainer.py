"""The trainer: one call per step, which returns once the step is committed on all replica groups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from farstep.engine import EngineError
from farstep.fabric.expected import expect
from farstep.membership import Generation, MembershipError
from farstep.membership.beacon import Beacon
from farstep.train.arguments import expect_functions, expect_loss, expect_replica, expect_run
from farstep.train.elastic.alignment import KeptDeal
from farstep.train.elastic.figures import StepFigures
from farstep.train.elastic.formation import Formation, Regrouped
from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.recall import Recall
from farstep.train.elastic.seams import CheckpointPort, RunOver, Thresholds
from farstep.train.elastic.state import ReplicaState
from farstep.train.elastic.step import Closure, StepBroken, StepRunner, Vote
from farstep.train.errors import ConfigError, RunFailed, reason_of
from farstep.train.healing import HealingError
from farstep.train.place import Place

if TYPE_CHECKING:
    from farstep.train.checkpoint.memory import PeerMemory
    from farstep.train.run import Run

__all__ = ["StepReport", "Trainer"]

logger = logging.getLogger("farstep.train")

StepFunction = Callable[..., Tensor]

END_FOLLOW_S = 10.0
"""Longest time that a spare takes for the last steps of a run that has ended; nobody waits for it."""

END_LINGER_S = 3.0
"""Longest time that a member stays at the end of the run for spares that lack its last steps. They need some
milliseconds; one that cannot keep up is not waited for."""


class _Nothing:
    """Stands for a batch that was not given."""


_NOTHING = _Nothing()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The last step as all replica groups saw it.

    Attributes:
        step: index, from 0.
        loss: mean over all samples of the step, before it was applied.
        samples: samples of the step on all replica groups; without a shard, the number of replica groups.
        num_groups: replica groups that took part.
        generation: number of their membership.
        is_applied: False if it was left out because its gradient was not finite.
        is_own: False if this member had no part in it because it came back just now.
        attempts: 1 plus the failures it took.
        step_time_ns: from the call until the commit, failures included.
        waited_ns: part of the last attempt spent waiting for the network: what backward did not hide.
        stalled_ns: part spent on regrouping.
    """

    step: int
    loss: float
    samples: int
    num_groups: int
    generation: int
    is_applied: bool
    is_own: bool
    attempts: int
    step_time_ns: int
    waited_ns: int
    stalled_ns: int


class Trainer:
    """Trains a model together with other replica groups, whatever happens to them.

    ```python
    run = farstep.join()
    trainer = farstep.Trainer(run, model, optimizer)
    for batch in run.shard(loader):
        loss = trainer.step(lambda: loss_fn(model, batch))
    ```

    All replica groups start from the state of the one with the lowest seat, or from the newest checkpoint. A model
    given to the trainer must be changed by it alone.

    Args:
        run: from :func:`farstep.join`.
        model: a module, also one that `fully_shard` has split over the ranks of this replica group.
        optimizer: over parameters of the model; its `step` is called once per committed step.
        policy: how steps are agreed on.
        scheduler: a learning-rate scheduler, stepped once per committed step, wherever the step was computed.
        state: further objects with `state_dict` and `load_state_dict` that belong to the replica, by name.
        clip_norm: the gradient of a step is scaled down to this norm.
        seed: of the random numbers that steps draw: each step of each seat starts from its own.
        checkpoint: writes the state now and then, and is where a new run starts from.
        memory: keeps the state in the memory of all seats and spares now and then, in shards of which some may be
            lost; the newest one is taken back when nobody is left with a newer state. The same on all members.

    Attributes:
        report: the last step; None before the first.

    Raises:
        ConfigError: an argument does not fit, or the run has a trainer already.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Synchronous | None = None,
        scheduler: Any = None,
        state: Mapping[str, Any] | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        checkpoint: CheckpointPort | None = None,
        memory: PeerMemory | None = None,
    ) -> None:
        expect_run(run)
        if policy is not None:
            expect("policy", policy, Synchronous, "a farstep.Synchronous, or None")
        expect_replica(
            model,
            optimizer,
            scheduler=scheduler,
            state=state,
            clip_norm=clip_norm,
            seed=seed,
            checkpoint=checkpoint,
            memory=memory,
        )
        self.policy = policy if policy is not None else Synchronous()
        self.report: StepReport | None = None
        self._run = run
        self._checkpoint = checkpoint if not run.is_replay else None
        self._state = ReplicaState(
            model,
            optimizer,
            policy=self.policy,
            scheduler=scheduler,
            extras=state,
            clip_norm=clip_norm,
            seed=seed,
        )
        self._inner = run.inner
        if self._inner.size > 1:
            _check_is_shared(model)
        self._runner = StepRunner(self._state, self._inner, Beacon(self.policy.stall_s))
        self._figures = StepFigures(run.endpoint)
        self._wants_end = False
        self._is_formed = False
        run.bind(self)
        self._recall: Recall | None = None
        if memory is not None and not run.is_replay:
            self._recall = Recall(memory, run.endpoint, self._state, lane=self._inner.rank)
        self._formation = Formation(
            run.link,
            run.endpoint,
            self._state,
            self._runner,
            lane_index=self._inner.rank,
            thresholds=Thresholds(),
            step_deadline_s=self.policy.step_deadline_s,
            make_healing=run.healing_factory(self._state, self._recall),
            recall=self._recall,
            load_older=self._load_older,
            looks_ahead=not run.is_replay,
        )

    # -- facts ----------------------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """Steps committed by the run so far, as known here."""
        return self._state.committed

    @property
    def state(self) -> ReplicaState:
        """The state that replicas have in common."""
        return self._state

    @property
    def place(self) -> Place | None:
        """Seat, number of seats and generation; None without a seat."""
        return self._formation.place() if self._formation.lane is not None else None

    @property
    def generation(self) -> Generation | None:
        """The membership in force; None without a seat."""
        return self._formation.lane.generation if self._formation.lane is not None else None

    # -- the step -------------------------------------------------------------------------------------

    def step(self, function: StepFunction | Sequence[StepFunction], batch: Any = _NOTHING) -> float:
        """Makes one step together with all replica groups and returns its loss, once it is committed.

        If another replica group fails meanwhile, the step is run again with those that are left; `function` is then
        called again. It must compute the loss and nothing else: the trainer calls backward, steps the optimizer and
        the scheduler, and zeroes gradients.

        Args:
            function: returns the loss, the mean over the batch: a tensor of one element. Called with the batch if one
                is given, else without arguments. Several functions: the batch in parts of equal weight, whose
                gradients are accumulated.
            batch: from the run's shard. If the members change in mid-step, the samples are then dealt anew so that
                the global batch stays whole; without it, what the lost member held is used in the next step.

        Returns:
            The mean loss over all samples of the step.

        Raises:
            RunOver: the run has ended, or this member has left it; a loop over `run.shard` ends by itself.
            RunFailed: training has diverged.
            Exception: what the function raised; this member then leaves, and the others go on without it.
        """
        try:
            return self._step(function, batch)
        except RunOver:
            self._run.on_over()
            if self._state.data is None:
                raise
            return self._state.loss  # the loop over the shard ends by itself
        except BaseException as error:
            self.abandon(error)
            raise

    def _step(self, function: StepFunction | Sequence[StepFunction], batch: Any) -> float:
        began_ns = time.monotonic_ns()
        functions = expect_functions(function)
        if self._formation.lane is None:
            self.ready()
        stalled_ms, attempts = 0.0, 0
        self._runner.beacon.begin_step()
        while True:
            attempts += 1
            self._note_deal(can_redeal=batch is not _NOTHING)
            vote: Vote | None = None
            try:
                vote = self._try(_closures(functions, batch))
                break
            except StepBroken as broken:
                regrouped = self._regroup(broken)
            stalled_ms += regrouped.took_ms
            if regrouped.is_rolled_forward:
                break
            if (regrouped.is_reborn or regrouped.is_void) and batch is _NOTHING:
                self._idle_as_needed(regrouped)
                return self._missed(began_ns, stalled_ms, attempts)
            batch = self._deal_again(regrouped, batch)
        self._runner.beacon.end_step()
        self._tell(began_ns, stalled_ms, attempts)
        with self._runner.beacon.resting():
            self._boundary(vote)
        return self._state.loss

    def ready(self) -> None:
        """Takes a seat if there is none yet: returns once this member stands where the run stands.

        The loop over the shard and :meth:`step` do this by themselves. A spare waits here until it is needed.

        Raises:
            RunOver: the run has ended, or this member has left it.
            Exception: this member does not fit the run, or its checkpoint cannot be read; it then leaves.
        """
        try:
            self._ready()
        except RunOver:
            raise
        except BaseException as error:
            self.abandon(error)
            raise

    def _ready(self) -> None:
        if not self._is_formed:
            self._is_formed = True
            if self._checkpoint is not None:
                self._open_checkpoint(self._checkpoint)
        self._idle_as_needed(self._formation.enter())
        lane = self._formation.lane
        while lane is not None and lane.broken_because is not None:
            # Nothing is in hand between two steps, so the next one is dealt when it is known who is left.
            broken = StepBroken(lane.broken_because, is_own_finding=False)
            self._idle_as_needed(self._formation.regroup(broken))
            lane = self._formation.lane

    def _open_checkpoint(self, checkpoint: CheckpointPort) -> None:
        """Starts from the newest checkpoint, unless the run is under way: then the others have newer state."""
        checkpoint.attach(
            ranks=self._inner.size,
            on_event=lambda kind, fields: self._formation.membership.event(kind, **fields),
            info={"run": self._run.environment.run, "group": self._run.name},
        )
        current = self._formation.membership.current()
        is_under_way = current is not None and current.number > 1
        if not any(row[0] for row in self._inner.gather([float(is_under_way)])):
            checkpoint.load_newest(self._state.resuming())

    def _load_older(self) -> bool:
        """Every newer state is lost: loads the newest checkpoint there is."""
        return self._checkpoint is not None and self._checkpoint.load_newest(self._state.resuming())

    def _try(self, closures: Sequence[Closure]) -> Vote:
        """Runs one attempt at the next step, up to the commit."""
        lane = self._formation.lane
        if lane is None:
            raise RunOver("this member has no seat")
        if lane.broken_because is not None:
            raise StepBroken(lane.broken_because, is_own_finding=False)
        self._runner.attempt(lane, closures)
        vote = self._runner.vote(
            lane,
            goes_on=not self._wants_end,
            planned=self._formation.planned,
            must_go=self._run.must_go,
        )
        self._runner.commit(norm=vote.norm, is_applied=vote.is_applied)
        self._formation.note_deal(0, -1)
        return vote

    def _regroup(self, broken: StepBroken) -> Regrouped:
        regrouped = self._formation.regroup(broken)
        if regrouped.is_rolled_forward or regrouped.is_reborn:
            self._formation.note_deal(0, -1)
        return regrouped

    def _note_deal(self, *, can_redeal: bool) -> None:
        """Notes what the batch in hand was dealt for, so that all can agree on it after a failure."""
        data = self._state.data
        lane = self._formation.lane
        if data is None or can_redeal:
            self._formation.note_deal(0, -1)
        elif self._formation.deal_seats == 0 and lane is not None:
            self._formation.note_deal(lane.num_seats, lane.seat)

    def _deal_again(self, regrouped: Regrouped, batch: Any) -> Any:
        """Gives the step under way a deal among the members of now; returns the batch to go on with."""
        data = self._state.data
        if data is None:
            return batch
        if regrouped.kept_deal is not None:
            data.keep(regrouped.kept_deal.seats, regrouped.kept_deal.holders)
            return batch
        data.forget()
        if batch is _NOTHING or regrouped.is_same_seat:
            return batch
        return data.redeal()

    def _idle_as_needed(self, regrouped: Regrouped | None) -> None:
        """Takes part in a step that was dealt before this member came, with nothing of its own."""
        while regrouped is not None and regrouped.kept_deal is not None:
            kept: KeptDeal = regrouped.kept_deal
            data = self._state.data
            if data is None:
                raise RunFailed("the other members iterate over run.shard(...); this one must do the same")
            data.keep(kept.seats, kept.holders)
            try:
                vote = self._try([])
            except StepBroken as broken:
                data.forget()
                regrouped = self._regroup(broken)
            else:
                self._boundary(vote)
                return

    def _missed(self, began_ns: int, stalled_ms: float, attempts: int) -> float:
        """This member was given up and is back: the batch in hand belongs to a step that is long over."""
        if self._formation.lane is not None:  # it may have left the run in the step that it idled in
            self._tell(began_ns, stalled_ms, attempts, is_own=False)
        return self._state.loss

    # -- after the step -------------------------------------------------------------------------------

    def _tell(self, began_ns: int, stalled_ms: float, attempts: int, *, is_own: bool = True) -> None:
        lane = self._formation.lane
        assert lane is not None, "a step ends with a lane in force"
        state = self._state
        step_time_ns = time.monotonic_ns() - began_ns
        self.report = StepReport(
            step=state.committed - 1,
            loss=state.loss,
            samples=sum(self._runner.last_counts),
            num_groups=lane.num_seats,
            generation=lane.generation.number,
            is_applied=state.last_is_applied,
            is_own=is_own,
            attempts=attempts,
            step_time_ns=step_time_ns,
            waited_ns=self._runner.waited_ns,
            stalled_ns=int(stalled_ms * 1e6),
        )
        self._formation.membership.report_progress(
            state.committed,
            self._figures.step(step_time_ns, self._runner.waited_ns, state.loss, self.report.samples),
        )
        if not state.last_is_applied:
            self._formation.membership.event(
                "step_skipped", step=state.committed - 1, cause="the gradient was not finite"
            )
        if state.refused_in_a_row >= self.policy.refused_steps_max:
            raise RunFailed(
                f"{state.refused_in_a_row} steps in a row had no finite gradient (the last was step "
                f"{state.committed - 1}); a lower learning rate may help"
            )

    def _boundary(self, vote: Vote | None) -> None:
        """Does what belongs between two steps."""
        formation = self._formation
        step = self._state.committed
        if formation.healing is not None:
            formation.healing.at_boundary(step)
        if self._recall is not None:
            self._recall.at_boundary(step)
        lane = formation.lane
        if self._checkpoint is not None and lane is not None:
            self._checkpoint.at_boundary(step, self._state, is_writer=lane.seat == 0)
        if vote is None or lane is None:
            return
        if vote.must_go:
            if self._checkpoint is not None and lane.num_seats == 1:
                self._checkpoint.demand()  # nobody else holds what was reached
            formation.finish()
            self._run.on_over()
            return
        if not vote.goes_on:
            self._run.on_over(is_end=True)
            return
        if vote.planned > lane.generation.number:
            try:
                regrouped = formation.switch()
            except RunOver:
                self._run.on_over()
                return
            self._idle_as_needed(regrouped)

    def follow_to_end(self, final_step: int) -> None:
        """Makes the last steps of a run that has ended without this member, if there is anybody left to ask."""
        healing, state = self._formation.healing, self._state
        lacked = final_step - state.committed
        if lacked <= 0:
            return
        if healing is not None:
            try:
                healing.catch_up(final_step, (), END_FOLLOW_S, is_over=lambda: False)
            except (HealingError, EngineError, MembershipError) as error:
                logger.debug("not followed to the end: %s", error)
            healing.close()  # those who serve this member wait for it
        self._formation.membership.event("end_followed", step=state.committed, final_step=final_step)
        if state.committed != final_step:
            logger.warning(
                "the run has ended after %d steps, and nobody is left to give this member the last %d: it holds the "
                "state after step %d, and run.is_complete is False",
                final_step,
                final_step - state.committed,
                state.committed,
            )

    def linger(self) -> None:
        """The run is over: lets spares that follow get the last steps, before this process ends."""
        if self._formation.healing is not None:
            self._formation.healing.linger(END_LINGER_S)

    @property
    def is_alone(self) -> bool:
        """Whether nobody could go on without this member: no other seat, no spare, and nobody who heals from here."""
        lane, healing = self._formation.lane, self._formation.healing
        if lane is None or lane.num_seats > 1 or lane.generation.spares:
            return False
        return healing is None or not healing.num_receivers

    def end(self) -> None:
        """Asks all replica groups to end the run after the step under way."""
        self._wants_end = True

    @property
    def wants_end(self) -> bool:
        """Whether :meth:`end` was called."""
        return self._wants_end

    def abandon(self, error: BaseException) -> None:
        """Goes away because of an exception, at once, so that the others need not find out by themselves."""
        if self._checkpoint is not None:
            self._checkpoint.forget()
        if self._run.is_over:
            return
        reason = reason_of(error)
        logger.error("leaving the run: %s", reason)
        self._run.abandon(reason)

    def give_up(self, reason: str) -> None:
        """Breaks off whatever is under way; called by the run."""
        self._formation.give_up(reason)

    def interrupt(self, reason: str) -> None:
        """Has the step under way fail, from any thread; called by the run."""
        self._formation.interrupt(reason)

    def close(self) -> None:
        """Ends this member's part; called by the run."""
        self._formation.close()
        self._state.gradients.close()
        if self._checkpoint is not None:
            self._checkpoint.close()


def _check_is_shared(model: nn.Module) -> None:
    """The ranks of a replica group hold one model together, or there would be no saying which copy counts."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            raise ConfigError(
                f"this replica group has several ranks, but {name} is not distributed over them; apply "
                "torch.distributed.fsdp.fully_shard(model) first, or start one replica group per process with "
                "FARSTEP_RANKS_PER_GROUP=1"
            )


def _closures(functions: Sequence[StepFunction], batch: Any) -> list[Closure]:
    arguments = () if batch is _NOTHING else (batch,)
    return [lambda function=function: expect_loss(function(*arguments)) for function in functions]  # type: ignore[misc]
