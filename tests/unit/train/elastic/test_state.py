from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from farstep.train.elastic.gradients import FlatGradients
from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.seams import StepMeta
from farstep.train.elastic.state import ReplicaState, seed_everything
from farstep.train.errors import ConfigError
from farstep.train.healing import StateImage, state_digest


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def make(seed: int = 0, **options: Any) -> ReplicaState:
    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    options.setdefault("policy", Synchronous(bucket_bytes=4096))
    return ReplicaState(net, optimizer, scheduler=scheduler, extras={"counter": Counter()}, **options)


def backward(state: ReplicaState, loss: torch.Tensor) -> None:
    state.put_extra(float(loss.detach()))
    state.gradients.arm(lambda bucket: None)
    loss.backward()
    state.gradients.flush()


def step(state: ReplicaState, *, is_applied: bool = True, counts: tuple[int, ...] = (1,)) -> StepMeta:
    state.begin_attempt(0)
    loss = state.model(torch.randn(8, 4)).square().mean()
    backward(state, loss)
    meta = StepMeta(
        step=state.committed,
        generation=1,
        loss=float(loss.detach()),
        norm=state.gradients.square_sum() ** 0.5,
        counts=counts,
        is_applied=is_applied,
    )
    state.apply(meta)
    return meta


def test_a_state_goes_over_the_wire_bit_for_bit() -> None:
    source, target = make(0), make(1)
    for _ in range(3):
        step(source)
    source.extras["counter"].value = 7
    image = StateImage.of(source.capture())
    target.restore(image.state())
    assert state_digest(target.capture()) == state_digest(source.capture())
    assert target.committed == 3
    assert target.extras["counter"].value == 7
    step(source)
    step(target)
    assert state_digest(target.capture()) == state_digest(source.capture()), "both go on alike"
    assert target.optimizer.param_groups[0]["lr"] == source.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_a_replayed_step_gives_the_same_bits() -> None:
    source, target = make(0, clip_norm=0.01), make(0, clip_norm=0.01)
    for is_applied in (True, False, True):
        source.begin_attempt(0)
        loss = source.model(torch.randn(8, 4)).square().mean()
        backward(source, loss)
        flats = [flat.clone() for flat in source.flats]
        meta = StepMeta(
            step=source.committed,
            generation=1,
            loss=0.5,
            norm=source.gradients.square_sum() ** 0.5,
            counts=(8,),
            is_applied=is_applied,
        )
        source.apply(meta)
        target.apply_reduced(flats if is_applied else (), meta.to_json())
        assert state_digest(target.capture()) == state_digest(source.capture())


def test_a_repeated_attempt_leaves_statistics_as_the_first_found_them() -> None:
    state = make()
    batch_norm = state.model[1]
    assert isinstance(batch_norm, nn.BatchNorm1d)
    state.begin_attempt(0)
    state.model(torch.randn(8, 4))
    once = batch_norm.running_mean.clone()
    state.begin_attempt(0)
    state.model(torch.randn(8, 4))
    assert torch.equal(batch_norm.running_mean, once), "the same draw, from the same statistics"
    assert int(batch_norm.num_batches_tracked) == 1


def test_random_numbers_are_those_of_run_step_and_seat() -> None:
    def draw(*place: int) -> list[float]:
        seed_everything(*place)
        return torch.randn(3).tolist()

    assert draw(0, 5, 1) == draw(0, 5, 1)
    assert len({tuple(draw(*place)) for place in ((0, 5, 1), (0, 5, 2), (0, 6, 1), (1, 5, 1))}) == 4


def test_the_state_of_another_model_is_refused_with_a_word() -> None:
    other = nn.Linear(4, 2)
    foreign = ReplicaState(other, torch.optim.AdamW(other.parameters()), policy=Synchronous())
    with pytest.raises(ConfigError, match="same `state`"):
        make().restore(foreign.capture())
    optimizer = torch.optim.AdamW(other.parameters())
    third = ReplicaState(
        other,
        optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        policy=Synchronous(),
        extras={"counter": Counter()},
    )
    with pytest.raises(ConfigError, match="another model"):
        make().restore(third.capture())


def test_the_learning_rate_follows_the_batch_only_if_asked() -> None:
    assert Synchronous().lr_factor(30, 20) == 1.0
    assert Synchronous(lr_scaling="linear").lr_factor(30, 20) == 1.5
    assert Synchronous(lr_scaling="sqrt").lr_factor(80, 20) == 2.0
    state = make(policy=Synchronous(batch="per_group", lr_scaling="linear"))
    step(state, counts=(4, 4))
    rate = state.optimizer.param_groups[0]["lr"]
    step(state, counts=(4,))
    assert state.optimizer.param_groups[0]["lr"] in (rate, rate * 0.5), "what was scaled is put back"
    assert state.reference_samples == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": "local"}, ["batch", '"local"', "global", "per_group"]),
        ({"lr_scaling": "cubic"}, ["lr_scaling", '"cubic"', "sqrt"]),
        ({"bucket_bytes": 1}, ["bucket_bytes", "4096"]),
        ({"step_deadline_s": 0}, ["step_deadline_s", "above 0"]),
        ({"stall_s": 0}, ["stall_s", "above 0"]),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Synchronous(**options)
    for word in words:
        assert word in str(caught.value)


def test_gradients_of_all_types_share_one_set_of_buckets() -> None:
    parameters = [
        nn.Parameter(torch.zeros(5)),
        nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)),
        nn.Parameter(torch.zeros(2, dtype=torch.float64)),
    ]
    gradients = FlatGradients(parameters, bucket_bytes=1 << 20, num_extra=2)
    assert [bucket.flat.dtype for bucket in gradients.buckets] == [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float32,
    ]
    gradients.begin()
    sent: list[int] = []
    gradients.arm(lambda bucket: sent.append(bucket.index))
    sum((parameter * 2).sum().float() for parameter in parameters).backward()
    gradients.flush()
    assert sent == [0, 1, 2, 3]
    assert gradients.square_sum() == pytest.approx(4 * 10)
    assert parameters[1].grad is not None
    gradients.close()


def test_gradients_somebody_has_dropped_are_views_again() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    gradients = FlatGradients([parameter], bucket_bytes=4096, num_extra=1)
    parameter.grad = None
    gradients.begin()
    gradients.arm(lambda bucket: None)
    parameter.sum().backward()
    assert gradients.buckets[0].flat.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0], (
        "loss, who has a gradient, gradient"
    )


def test_a_model_without_parameters_to_train_is_named() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        FlatGradients([nn.Parameter(torch.zeros(1), requires_grad=False)], bucket_bytes=4096, num_extra=1)
