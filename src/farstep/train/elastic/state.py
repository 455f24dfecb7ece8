"""The state of one replica: what a step changes, what a newcomer needs, and what is hashed to compare replicas."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from farstep.fabric.errors import quoted
from farstep.train.elastic.gradients import FlatGradients, local_part
from farstep.train.elastic.likeness import (
    check_data,
    check_kinds,
    check_model,
    check_optimizer,
    check_settings,
    kinds_of,
)
from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.seams import DataSource, StepMeta
from farstep.train.elastic.statistics import Statistics
from farstep.train.errors import ConfigError

__all__ = ["LOSS_INDEX", "NUM_EXTRA_FIXED", "ReplicaState", "Resuming"]

LOSS_INDEX = 0
"""Where the loss of a step lies among the numbers reduced with the gradient."""
NUM_EXTRA_FIXED = 1

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class ReplicaState:
    """Model, optimizer, scheduler, position in the data and whatever else the user wants kept together.

    Args:
        model: trained in place.
        optimizer: over parameters of the model.
        policy: batch and learning-rate rules.
        scheduler: stepped once per committed step, if given.
        extras: further objects with `state_dict` and `load_state_dict`, the same on all members.
        clip_norm: the gradient is scaled down to this norm; None leaves it.
        seed: of the random numbers that a step draws.

    Attributes:
        committed: steps committed so far.
        loss: mean loss of the last committed step.
        last_norm: norm of its gradient.
        last_is_applied: whether it was applied rather than refused.
        data: deals the samples; None until there is one.
        gradients: the gradient in flat pieces.

    Raises:
        ConfigError: an argument does not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Synchronous,
        scheduler: Any = None,
        extras: Mapping[str, Any] | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
    ) -> None:
        for name, item in (extras or {}).items():
            if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
                raise ConfigError(
                    f"state[{quoted(name)}] is a {type(item).__name__}; it needs state_dict() and load_state_dict()"
                )
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm is {clip_norm}; it must be above 0, or None")
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.extras = dict(extras or {})
        self.policy = policy
        self.data: DataSource | None = None
        self.committed = 0
        self.refused_in_a_row = 0
        self.reference_samples = 0
        self.loss = float("nan")
        self.last_norm = 0.0
        self.last_is_applied = True
        self._clip_norm = clip_norm
        self._seed = seed
        self._data_state: Mapping[str, Any] | None = None
        self._is_resumed = False
        self._is_open = False
        self._statistics = Statistics(model)
        num_extra = NUM_EXTRA_FIXED + self._statistics.num_numbers
        self.gradients = FlatGradients(
            [p for group in optimizer.param_groups for p in group["params"]],
            bucket_bytes=policy.bucket_bytes,
            num_extra=num_extra,
        )

    @property
    def flats(self) -> Sequence[Tensor]:
        """The flat buckets, in order."""
        return self.gradients.flats

    def attach_data(self, data: DataSource) -> None:
        """Makes the data source part of the state; a position restored earlier is passed on."""
        if self._data_state is not None:
            if not self._is_resumed:
                check_data(self._data_state, data.state())
            data.load_state(self._data_state)
            self._data_state = None
        self.data = data

    # -- one step -------------------------------------------------------------------------------------

    def begin_attempt(self, seat: int) -> None:
        """Prepares an attempt at the next step: every attempt for a seat starts from the same random state."""
        seed_everything(self._seed, self.committed, seat)
        self.settle()
        self._statistics.keep()
        self._is_open = True
        self.gradients.begin()

    def put_extra(self, loss: float) -> None:
        """Writes what is reduced along with the gradient; before the first bucket is handed on."""
        self.gradients.extra[LOSS_INDEX] = loss
        self._statistics.write(self.gradients.extra[NUM_EXTRA_FIXED:])

    def settle(self) -> None:
        """Undoes what an attempt that was not committed has left in the model's buffers.

        The gradient stays in the buckets, so that the step can still be committed. Everything that looks at the state
        or gives it away comes by here, so that nobody sees half a step.
        """
        if self._is_open:
            self._is_open = False
            self._statistics.put_back()

    def apply(self, meta: StepMeta) -> None:
        """Commits the next step with the reduced gradient that is in the buckets.

        The data source has been told already. Nothing here depends on which member does it.
        """
        if meta.step != self.committed:
            raise AssertionError(f"step {meta.step} cannot follow {self.committed} committed steps")
        self.settle()
        samples = sum(meta.counts)
        if self.reference_samples == 0:
            self.reference_samples = samples
        if meta.is_applied:
            self._apply_gradient(meta.norm, self.policy.lr_factor(samples, self.reference_samples))
            self.refused_in_a_row = 0
        else:
            self.refused_in_a_row += 1
        self.loss = meta.loss
        self.last_norm = meta.norm
        self.last_is_applied = meta.is_applied
        self.committed += 1

    def _apply_gradient(self, norm: float, lr_factor: float) -> None:
        self._statistics.read(self.gradients.extra[NUM_EXTRA_FIXED:])
        if self._clip_norm is not None and norm > self._clip_norm:
            self.gradients.scale(self._clip_norm / norm)
        self.gradients.expose()
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if lr_factor != 1.0:
            for group in groups:
                group["lr"] = group["lr"] * lr_factor
        self.optimizer.step()
        if lr_factor != 1.0:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
        if self.scheduler is not None:
            self.scheduler.step()

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any] | StepMeta) -> None:
        """Makes the next step from a gradient that others reduced, bit for bit as they made it."""
        record = meta if isinstance(meta, StepMeta) else StepMeta.from_json(meta)
        if record.is_applied:
            self.gradients.load(flats)
        if self.data is not None and record.data:
            self.data.replay(record.data)
        self.apply(record)

    # -- the whole state ------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """Returns the state as nested dicts and lists of tensors and plain values; tensors are not copied."""
        self.settle()
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "data": self.data.state() if self.data is not None else self._data_state,
            "user": {name: item.state_dict() for name, item in sorted(self.extras.items())},
            "kinds": kinds_of(self.optimizer, self.scheduler, self.extras),
            "settings": self._settings(),
            "progress": {
                "committed": self.committed,
                "refused_in_a_row": self.refused_in_a_row,
                "reference_samples": self.reference_samples,
                "loss": self.loss.hex(),
                "norm": self.last_norm.hex(),
                "is_applied": self.last_is_applied,
            },
        }

    def _settings(self) -> dict[str, Any]:
        """What all members of a run must go by alike."""
        policy = self.policy
        return {
            "clip_norm": self._clip_norm,
            "seed": self._seed,
            "policy.batch": policy.batch,
            "policy.lr_scaling": policy.lr_scaling,
            "policy.bucket_bytes": policy.bucket_bytes,
            "policy.skip_not_finite": policy.skip_not_finite,
            "policy.refused_steps_max": policy.refused_steps_max,
            "the gradient (of parameters with requires_grad=True)": [
                f"{flat.numel()} x {str(flat.dtype).removeprefix('torch.')}" for flat in self.flats
            ],
        }

    def resuming(self) -> Resuming:
        """This state as it goes on from a checkpoint, by settings that may be other ones than before."""
        return Resuming(self)

    def restore(self, state: Mapping[str, Any], *, is_resumed: bool = False) -> None:
        """Replaces the state by a captured one; tensors are copied.

        Args:
            state: as captured by a member of this run.
            is_resumed: it is that of an earlier run, which may have gone by other settings.

        Raises:
            ConfigError: it is the state of another model or optimizer, or of a member that goes by other settings;
                nothing has changed.
        """
        own = kinds_of(self.optimizer, self.scheduler, self.extras)
        check_kinds(state, own)
        check_model(self.model, state["model"])
        check_optimizer(self.optimizer, state["optimizer"], is_same_kind="kinds" in state)
        if not is_resumed:
            check_settings(state.get("settings", {}), self._settings())
            check_data(state["data"], self.data.state() if self.data is not None else None)
        self._is_open = False  # what an attempt has left is overwritten
        self._is_resumed = is_resumed
        _restore_model(self.model, state["model"])
        _restore_optimizer(self.optimizer, state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, item in self.extras.items():
            item.load_state_dict(state["user"][name])
        if self.data is None:
            self._data_state = state["data"]
        elif state["data"] is not None:
            self.data.load_state(state["data"])
        progress = state["progress"]
        self.committed = int(progress["committed"])
        self.refused_in_a_row = int(progress["refused_in_a_row"])
        self.reference_samples = int(progress["reference_samples"])
        self.loss = float.fromhex(progress["loss"])
        self.last_norm = float.fromhex(progress["norm"])
        self.last_is_applied = bool(progress["is_applied"])


class Resuming:
    """A replica that is to go on from a checkpoint.

    Args:
        state: of the replica.
    """

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.optimizer = state.optimizer

    @property
    def committed(self) -> int:
        """Steps committed so far."""
        return self._state.committed

    @property
    def flats(self) -> Sequence[Tensor]:
        """The flat buckets, in order."""
        return self._state.flats

    def capture(self) -> dict[str, Any]:
        """As the replica's."""
        return self._state.capture()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by a captured one; errors as the replica's."""
        self._state.restore(state, is_resumed=True)

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """As the replica's."""
        self._state.apply_reduced(flats, meta)


def seed_everything(seed: int, step: int, seat: int) -> None:
    """Seeds the global generators of torch, Python and NumPy as a pure function of run, step and seat.

    So an attempt that is repeated draws what the first one drew, and a replacement draws what the member whose seat
    it takes would have drawn, without any generator state being kept or sent.
    """
    mixed = (seed * _GOLDEN + step * 0xBF58476D1CE4E5B9 + seat * 0x94D049BB133111EB + 1) & _MASK
    mixed ^= mixed >> 31
    mixed = mixed * _GOLDEN & _MASK
    mixed ^= mixed >> 29
    torch.default_generator.manual_seed(mixed & 0x7FFFFFFFFFFFFFFF)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(mixed & 0x7FFFFFFFFFFFFFFF)
    random.seed(mixed)
    np.random.seed(mixed & 0xFFFFFFFF)


def _restore_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if isinstance(value, Tensor):
                local_part(value).copy_(local_part(state[name]))


def _restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Loads an optimizer's state, whose tensors may have lost the mark of being shards."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    wrapped = {}
    for index, values in state["state"].items():
        parameter = parameters[int(index)]
        wrapped[int(index)] = {
            name: _like(parameter, value.clone() if isinstance(value, Tensor) else value)
            for name, value in values.items()
        }
    optimizer.load_state_dict({**state, "state": wrapped})


def _like(parameter: Tensor, value: Any) -> Any:
    is_shard = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.dim() > 0
    if not (isinstance(parameter, DTensor) and is_shard and value.shape == local_part(parameter).shape):
        return value
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
