"""The training loop of one rank.

Given the same configuration, text and members, every step is bit-identical on all ranks and in all
runs, whatever the network did. What leaves the loop leaves through the `Observer`.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from farstep.train.buckets import GradientBuckets
from farstep.train.collective import Collective
from farstep.train.config import OptimizerConfig, RunConfig
from farstep.train.data import Corpus, Sampler, held_out_windows
from farstep.train.errors import RunFailed
from farstep.train.learning_rate import learning_rate_at
from farstep.train.model import ByteTransformer, next_byte_loss
from farstep.train.policies.synchronous import Decision, SynchronousPolicy
from farstep.train.state_hash import state_hash

__all__ = ["Keeper", "LoopState", "Observer", "Outcome", "StepReport", "Trainer"]

REFUSED_STEPS_MAX = 10
"""So many steps in a row that no replica could apply mean that training has diverged for good."""

EVAL_BATCH = 32
"""Windows per forward pass of an evaluation; bounds its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step as all ranks saw it."""

    step: int
    loss: float
    """Mean over all replicas, nats per byte, before the step was applied."""
    tokens: int
    """Of all replicas together."""
    step_time_ns: int
    allreduce_ns: int
    """Part of the step time spent waiting for the network: what backward did not hide."""
    is_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How training ended on this rank."""

    steps: int
    """Steps run."""
    is_interrupted: bool
    final_loss: float | None
    held_out_loss: float | None
    state_hash: str


class Observer(Protocol):
    """Is told what happens, in the training thread; must return quickly."""

    def on_step_begin(self, step: int) -> None:
        """A step begins."""

    def on_step(self, report: StepReport) -> None:
        """A step is over."""

    def on_eval(self, step: int, loss: float) -> None:
        """The held-out loss was measured after so many steps."""

    def should_stop(self) -> bool:
        """Whether this rank was asked to end the run after the current step."""


class Keeper(Protocol):
    """Keeps the state of the loop, now and then, so that a run can be resumed."""

    def resume(self, state: "LoopState") -> None:
        """Restores what was kept last, if the run is to be resumed."""

    def at_boundary(self, state: "LoopState", *, is_last: bool) -> None:
        """So many steps are done; may keep the state."""


class LoopState:
    """Everything that steps change, as checkpoints see it.

    Args:
        model: the replica.
        optimizer: its optimizer.
    """

    def __init__(self, model: ByteTransformer, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.committed = 0
        """Steps done."""
        self.refused = 0
        """How many of the last steps in a row no replica could apply."""

    def capture(self) -> dict[str, Any]:
        """Returns the state; tensors are not copied."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "progress": {"committed": self.committed, "refused": self.refused},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by a captured one."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.committed = int(state["progress"]["committed"])
        self.refused = int(state["progress"]["refused"])


class Trainer:
    """Trains one replica in lockstep with the others.

    Args:
        config: the run.
        corpus: the text, the same on every rank.
        collective: all ranks.
        observer: is told what happens.
        keeper: keeps the state now and then, and has what an earlier run kept; None keeps nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        corpus: Corpus,
        collective: Collective,
        observer: Observer,
        keeper: Keeper | None = None,
    ) -> None:
        torch.set_num_threads(config.run.threads_per_rank)
        self._config = config
        self._collective = collective
        self._observer = observer
        self.model = ByteTransformer(config.model, seed=config.run.seed)
        self.optimizer = _make_optimizer(self.model, config.optimizer)
        self._buckets = GradientBuckets(
            self.model.parameters(), bucket_bytes=config.transport.bucket_kib * 1024, num_extra=1
        )
        self._sampler = Sampler(corpus.train, seed=config.run.seed, context_bytes=config.model.context_bytes)
        windows = held_out_windows(corpus, config.model.context_bytes, config.run.eval_windows)
        self._held_out = torch.from_numpy(windows[collective.rank :: collective.num_ranks].copy())
        self._keeper = keeper
        self._state = LoopState(self.model, self.optimizer)
        if keeper is not None:
            keeper.resume(self._state)

    @property
    def first_step(self) -> int:
        """Step with which the run goes on: 0, unless it was resumed."""
        return self._state.committed

    @property
    def gradient_bytes(self) -> int:
        """Bytes every rank hands to the network in each step."""
        return self._buckets.length_bytes

    @property
    def num_parameters(self) -> int:
        """Trained numbers of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def run(self) -> Outcome:
        """Trains to the last step, or until the ranks agree to stop.

        Raises:
            farstep.engine.EngineError: the network failed or was aborted.
            RunFailed: the loss diverged.
        """
        num_steps = self._config.run.steps
        steps, loss, goes_on = self._state.committed, None, True
        held_out_loss = self._evaluate(steps)
        policy = SynchronousPolicy(self._collective)
        while goes_on and steps < num_steps:
            report, goes_on = self._step(policy, steps)
            steps, loss = steps + 1, report.loss
            self._state.committed = steps
            self._observer.on_step(report)
            if self._keeper is not None:
                self._keeper.at_boundary(self._state, is_last=not goes_on or steps == num_steps)
            is_due = steps % self._config.run.eval_every_steps == 0 or steps == num_steps
            if goes_on and is_due:
                held_out_loss = self._evaluate(steps)
        return Outcome(
            steps=steps,
            is_interrupted=steps < num_steps,
            final_loss=loss,
            held_out_loss=held_out_loss,
            state_hash=state_hash(self.model, self.optimizer),
        )

    def _step(self, policy: SynchronousPolicy, step: int) -> tuple[StepReport, bool]:
        began_ns = time.monotonic_ns()
        self._observer.on_step_begin(step)
        self.model.train()
        self._buckets.begin(policy.bucket_ready)
        loss = next_byte_loss(self.model, self._batch(step))
        # The loss travels in the first bucket, so its mean costs no message of its own.
        self._buckets.extra.copy_(loss.detach().reshape(1))
        loss.backward()  # type: ignore[no-untyped-call]
        self._buckets.flush()
        waited_ns = policy.wait()
        norm = self._buckets.norm()
        mean_loss = self._buckets.extra.item()
        before_vote_ns = time.monotonic_ns()
        decision = policy.vote(
            may_apply=math.isfinite(norm) and math.isfinite(mean_loss),
            goes_on=not self._observer.should_stop(),
        )
        waited_ns += time.monotonic_ns() - before_vote_ns
        self._apply(decision, step, norm)
        report = StepReport(
            step=step,
            loss=mean_loss,
            tokens=self._config.num_ranks
            * self._config.data.batch_per_group
            * self._config.model.context_bytes,
            step_time_ns=time.monotonic_ns() - began_ns,
            allreduce_ns=waited_ns,
            is_committed=decision.is_committed,
        )
        return report, decision.goes_on

    def _batch(self, step: int) -> Tensor:
        size = self._config.data.batch_per_group
        first = (step * self._collective.num_ranks + self._collective.rank) * size
        return torch.from_numpy(self._sampler.batch(first, size))

    def _apply(self, decision: Decision, step: int, norm: float) -> None:
        if not decision.is_committed:
            self._state.refused += 1
            if self._state.refused >= REFUSED_STEPS_MAX:
                raise RunFailed(
                    f"{self._state.refused} steps in a row had no finite gradient (the last was step {step}); "
                    f"a lower optimizer.learning_rate than {self._config.optimizer.learning_rate:g} may help"
                )
            return
        self._state.refused = 0
        clip = self._config.optimizer.clip_norm
        if norm > clip:
            self._buckets.scale(clip / norm)
        rate = learning_rate_at(step, self._config.run.steps, self._config.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    @torch.no_grad()
    def _evaluate(self, step: int) -> float:
        """Measures the held-out loss, each rank on its share of the windows."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64)
        for windows in torch.split(self._held_out, EVAL_BATCH):
            if len(windows):
                loss = next_byte_loss(self.model, windows)
                total += torch.tensor([loss.item() * len(windows), len(windows)], dtype=torch.float64)
        self._collective.all_reduce(total, "sum")
        mean = (total[0] / total[1]).item()
        self._observer.on_eval(step, mean)
        return mean


def _make_optimizer(model: ByteTransformer, config: OptimizerConfig) -> torch.optim.AdamW:
    """Makes AdamW that decays matrices but neither norms nor biases."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)
