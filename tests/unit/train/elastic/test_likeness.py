"""A state that does not fit is refused with a word that names both sides, and nothing of the member is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, RAdam
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.state import ReplicaState
from farstep.train.errors import ConfigError
from farstep.train.healing import state_digest

Maker = Callable[[nn.Module], Optimizer]


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.1)


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def radam(model: nn.Module) -> Optimizer:
    return RAdam(model.parameters(), lr=0.1)


def two_groups(model: nn.Module) -> Optimizer:
    first, second = model.children()
    return AdamW([{"params": first.parameters()}, {"params": second.parameters()}], lr=0.1)


def half(model: nn.Module) -> Optimizer:
    return AdamW(next(model.children()).parameters(), lr=0.1)


class Note:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError("refused before")


def make(
    maker: Maker = adamw,
    *,
    schedule: Callable[[Optimizer], Any] | None = None,
    width: int = 4,
    bias: bool = True,
    policy: Synchronous | None = None,
    **options: Any,
) -> ReplicaState:
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2, bias=bias))
    optimizer = maker(model)
    scheduler = schedule(optimizer) if schedule is not None else None
    return ReplicaState(model, optimizer, policy=policy or Synchronous(), scheduler=scheduler, **options)


def step_lr(optimizer: Optimizer) -> Any:
    return StepLR(optimizer, 2)


def cosine(optimizer: Optimizer) -> Any:
    return CosineAnnealingLR(optimizer, 10)


OTHERS = [
    (make, lambda: make(sgd), ["optimizer", "AdamW", "SGD"]),
    (lambda: make(sgd), make, ["optimizer", "SGD", "AdamW"]),
    (make, lambda: make(radam), ["optimizer", "AdamW", "RAdam"]),
    (make, lambda: make(two_groups), ["groups of 4 parameters", "of 2, 2"]),
    (make, lambda: make(half), ["groups of 4 parameters", "of 2"]),
    (make, lambda: make(bias=False), ["1.bias is only there"]),
    (lambda: make(bias=False), make, ["1.bias is only here"]),
    (make, lambda: make(width=5), ["0.weight", "(4, 3) there", "(5, 3) here"]),
    (make, lambda: make(schedule=step_lr), ["scheduler", "none", "StepLR"]),
    (lambda: make(schedule=step_lr), make, ["scheduler", "StepLR", "none"]),
    (
        lambda: make(schedule=step_lr),
        lambda: make(schedule=cosine),
        ["scheduler", "StepLR", "CosineAnnealingLR"],
    ),
    (lambda: make(extras={"x": Note()}), make, ["keeps the state of ['x']", "this member of []"]),
]


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(("there", "here", "words"), OTHERS)
def test_the_state_of_something_else_is_refused(
    there: Callable[[], ReplicaState], here: Callable[[], ReplicaState], words: list[str], is_resumed: bool
) -> None:
    source, target = there(), here()
    before = state_digest(target.capture())
    with pytest.raises(ConfigError) as caught:
        (target.resuming() if is_resumed else target).restore(source.capture())
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    assert state_digest(target.capture()) == before


def test_a_checkpoint_from_before_classes_were_noted_is_compared_by_its_groups() -> None:
    state = make(sgd).capture()
    del state["kinds"]
    with pytest.raises(ConfigError, match=r"another optimizer than AdamW: group 0 has .*momentum.*betas"):
        make().resuming().restore(state)
    state = make().capture()
    del state["kinds"]
    make().resuming().restore(state)


SETTINGS = [
    ({"clip_norm": 0.5}, ["clip_norm", "None in the run", "0.5 here"]),
    ({"seed": 4}, ["seed", "0 in the run", "4 here"]),
    ({"policy": Synchronous(batch="per_group")}, ["policy.batch", "'global'", "'per_group'"]),
    ({"policy": Synchronous(lr_scaling="sqrt")}, ["policy.lr_scaling", "'none'", "'sqrt'"]),
    ({"policy": Synchronous(bucket_bytes=8192)}, ["policy.bucket_bytes", "4194304", "8192"]),
    ({"policy": Synchronous(skip_not_finite=False)}, ["policy.skip_not_finite", "True", "False"]),
    ({"policy": Synchronous(refused_steps_max=3)}, ["policy.refused_steps_max", "10", "3"]),
]


@pytest.mark.parametrize(("options", "words"), SETTINGS)
def test_members_by_other_rules_are_refused(options: dict[str, Any], words: list[str]) -> None:
    source, target = make(), make(**options)
    with pytest.raises(ConfigError) as caught:
        target.restore(source.capture())
    assert all(word in str(caught.value) for word in words), caught.value
    target.resuming().restore(source.capture())  # who goes on from a checkpoint may change them


def test_a_frozen_layer_is_a_setting() -> None:
    source, target = make(), make()
    frozen = make()
    for parameter in next(frozen.model.children()).parameters():
        parameter.requires_grad_(False)
    target = ReplicaState(frozen.model, frozen.optimizer, policy=Synchronous())
    with pytest.raises(ConfigError, match=r"requires_grad=True"):
        target.restore(source.capture())


class Position:
    """Where a data source stands, and by which settings."""

    def __init__(self, **settings: Any) -> None:
        self.values = {"batch_size": 32, "seed": 0, "step": 0, **settings}

    def state(self) -> dict[str, Any]:
        return dict(self.values)

    def load_state(self, state: dict[str, Any]) -> None:
        self.values["step"] = state["step"]


@pytest.mark.parametrize("is_attached_later", [False, True])
def test_another_batch_size_is_refused_but_a_run_may_go_on_with_one(is_attached_later: bool) -> None:
    source, target = make(), make()
    source.attach_data(Position(step=5))  # type: ignore[arg-type]
    other: Any = Position(batch_size=16)

    def give(receiver: Any) -> None:
        if not is_attached_later:
            target.attach_data(other)
        receiver.restore(source.capture())
        target.attach_data(other)

    with pytest.raises(ConfigError, match=r"run\.shard: batch_size is 32 in the run and 16 here"):
        give(target)
    give(target.resuming())
    assert other.values["step"] == 5
