"""What a rank of `farstep train` trains and how: the loop of the library, and what it tells the supervisor."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import farstep
from farstep.train.config import OptimizerConfig, RunConfig
from farstep.train.data import Corpus, held_out_windows, training_windows
from farstep.train.elastic.seams import CheckpointPort
from farstep.train.errors import RunFailed
from farstep.train.held_out import shares_of
from farstep.train.learning_rate import learning_rate_at
from farstep.train.model import ByteTransformer, next_byte_loss
from farstep.train.state_hash import state_hash

__all__ = ["TrainingLoop"]

EVAL_BATCH = 32
"""Windows per forward pass of an evaluation; bounds its memory."""

Send = Callable[..., None]
"""Tells the supervisor: kind, and fields by name."""


class TrainingLoop:
    """Trains one replica of the model.

    Args:
        config: the run.
        corpus: the text, the same on every rank.
        send: tells the supervisor what happens.

    Attributes:
        trainer: once :meth:`begin` was called.
    """

    trainer: farstep.Trainer

    def __init__(self, config: RunConfig, corpus: Corpus, send: Send) -> None:
        torch.set_num_threads(config.run.threads_per_rank)
        self._config = config
        self._send = send
        context = config.model.context_bytes
        self.model = ByteTransformer(config.model, seed=config.run.seed)
        self.optimizer = _make_optimizer(self.model, config.optimizer)
        self._windows = TensorDataset(torch.from_numpy(training_windows(corpus, context)))
        held_out = torch.from_numpy(held_out_windows(corpus, context, config.run.eval_windows))
        self._shares = [held_out[share :: config.num_ranks] for share in range(config.num_ranks)]
        self._generation = 0
        self._loss: float | None = None

    @property
    def num_parameters(self) -> int:
        """Trained numbers of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def begin(self, run: farstep.Run, checkpoint: CheckpointPort | None) -> None:
        """Takes a seat in the run, from its newest checkpoint if there is one to load.

        Raises:
            RunFailed: it is to be resumed, and cannot be.
        """
        config = self._config
        self._run = run
        self.trainer = farstep.Trainer(
            run,
            self.model,
            self.optimizer,
            policy=farstep.Synchronous(
                bucket_bytes=config.transport.bucket_kib * 1024, step_deadline_s=config.transport.timeout_s
            ),
            scheduler=_make_scheduler(self.optimizer, config),
            clip_norm=config.optimizer.clip_norm,
            seed=config.run.seed,
            checkpoint=checkpoint,
        )
        self._shard = run.shard(
            self._windows, batch_size=config.global_batch, seed=config.run.seed, steps=config.run.steps
        )
        self.trainer.ready()
        self._generation = self._number()

    def train(self) -> None:
        """Trains to the last step, or until the run ends otherwise.

        Raises:
            RunFailed: training has diverged.
        """
        trainer, run = self.trainer, self._config.run
        self._measure_held_out()
        for batch in self._shard:
            self._send("step_begin", step=trainer.committed)
            try:
                self._loss = trainer.step(self._batch_loss, batch)
            except RunFailed as error:
                rate = self._config.optimizer.learning_rate
                raise RunFailed(f"{error} (optimizer.learning_rate = {rate:g})") from error
            self._tell_step()
            is_due = trainer.committed % run.eval_every_steps == 0 and not self._run.is_over
            if is_due or trainer.committed == run.steps:
                self._measure_held_out()

    def outcome(self) -> dict[str, Any]:
        """How it ended for this rank."""
        steps = self.trainer.committed
        return {
            "steps": steps,
            "is_interrupted": steps < self._config.run.steps,
            "final_loss": self._loss,
            "state_hash": state_hash(self.model, self.optimizer),
        }

    def _batch_loss(self, batch: list[Tensor]) -> Tensor:
        return next_byte_loss(self.model, batch[0])

    def _number(self) -> int:
        generation = self.trainer.generation
        return generation.number if generation is not None else 0

    def _tell_step(self) -> None:
        report = self.trainer.report
        if report is None or not report.is_own:  # what this rank was out for, the others tell
            return
        generation = self.trainer.generation
        if generation is not None and report.generation == generation.number != self._generation:
            self._generation = generation.number
            self.tell(
                "members_changed",
                generation=generation.number,
                step=report.step,
                groups=[member.name for member in generation.seats],
                is_urgent=generation.is_urgent,
                reason=generation.reason,
                changes=list(generation.changes),
                stalled_ns=report.stalled_ns,
            )
        self.tell(
            "step",
            step=report.step,
            loss=report.loss,
            tokens=report.samples * self._config.model.context_bytes,
            step_time_ns=report.step_time_ns,
            allreduce_ns=report.waited_ns,
        )

    def tell(self, kind: str, at_ns: int | None = None, **fields: Any) -> None:
        """Tells the supervisor of an event for the log, by default of now."""
        self._send("event", event=kind, at_ns=time.monotonic_ns() if at_ns is None else at_ns, fields=fields)

    @torch.no_grad()
    def _measure_held_out(self) -> None:
        """Measures the held-out loss on the shares of this seat; the supervisor adds up those of all."""
        place = self.trainer.place
        if place is None:
            return
        measured: dict[int, tuple[float, int]] = {}
        for share in shares_of(place.seat, place.num_seats, len(self._shares)):
            windows = self._shares[share]
            parts = [part for part in torch.split(windows, EVAL_BATCH) if len(part)]
            total = math.fsum(next_byte_loss(self.model, part).item() * len(part) for part in parts)
            measured[share] = (total, len(windows))
        self._send("held_out", step=self.trainer.committed, shares=measured)


def _make_optimizer(model: ByteTransformer, config: OptimizerConfig) -> torch.optim.AdamW:
    """Makes AdamW that decays matrices but neither norms nor biases."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def _make_scheduler(optimizer: torch.optim.Optimizer, config: RunConfig) -> LambdaLR:
    peak = config.optimizer.learning_rate

    def part_of_peak(step: int) -> float:
        return learning_rate_at(step, config.run.steps, config.optimizer) / peak

    return LambdaLR(optimizer, part_of_peak)
