"""What a forward pass leaves in buffers, and parameters that a step does not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from farstep.train.elastic.options import Synchronous
from farstep.train.elastic.seams import StepMeta
from farstep.train.elastic.state import ReplicaState
from farstep.train.healing import state_digest


class Counting(nn.Module):
    """Keeps a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.seen, torch.Tensor)
        self.seen += 1
        return values


def make(momentum: float | None = 0.1, *, unused: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=momentum), Counting(), nn.Linear(6, 2))
    if unused:
        model.register_module("unused", nn.Linear(3, 3, dtype=dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    return ReplicaState(model, optimizer, policy=Synchronous(bucket_bytes=4096))


def loss_of(state: ReplicaState, part: int) -> torch.Tensor:
    values = torch.randn(8, 4, generator=torch.Generator().manual_seed(part))
    model = state.model
    assert isinstance(model, nn.Sequential)
    for layer in list(model)[:4]:
        values = layer(values)
    return values.square().mean()


def attempt(state: ReplicaState, parts: int = 1) -> None:
    state.begin_attempt(0)
    for part in range(parts):
        loss = loss_of(state, 10 * state.committed + part) / parts
        if part == parts - 1:
            state.put_extra(float(loss.detach()))
            state.gradients.arm(lambda bucket: None)
        loss.backward()
    state.gradients.flush()


def meta(state: ReplicaState) -> StepMeta:
    return StepMeta(step=state.committed, generation=1, loss=0.5, norm=1.0, counts=(8,))


def test_nobody_sees_half_a_step() -> None:
    state = make()
    attempt(state)
    state.apply(meta(state))
    before = state_digest(state.capture())
    attempt(state)
    assert state_digest(state.capture()) == before
    state.begin_attempt(0)
    loss_of(state, 1)
    state.begin_attempt(0)
    loss_of(state, 1)
    state.settle()
    assert state_digest(state.capture()) == before


def test_a_step_can_be_committed_after_the_state_was_looked_at() -> None:
    looked_at, other = make(), make()
    for state in (looked_at, other):
        for number in range(3):
            attempt(state)
            if state is looked_at and number == 1:
                state.capture()
            state.apply(meta(state))
    for state in (looked_at, other):
        own = state.model[2].seen  # other buffers are put back, not brought forward
        own.zero_()
    assert state_digest(looked_at.capture()) == state_digest(other.capture())


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("parts", [1, 3])
def test_who_follows_counts_as_many_batches(parts: int, momentum: float | None) -> None:
    source, target, plain = make(momentum), make(momentum), make(momentum)
    for number in range(3):
        attempt(source, parts)
        flats = [flat.clone() for flat in source.flats]
        record = meta(source)
        source.apply(record)
        target.apply_reduced(flats, record.to_json())
        for part in range(parts):
            loss_of(plain, 10 * number + part)
    norms = [state.model[1] for state in (source, target)]
    assert [int(norm.num_batches_tracked) for norm in norms] == [3 * parts] * 2
    assert torch.equal(norms[0].running_var, norms[1].running_var)
    assert int(plain.model[1].num_batches_tracked) == 3 * parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_without_gradient_is_left_alone(dtype: torch.dtype) -> None:
    state, follower, plain = (make(unused=True, dtype=dtype) for _ in range(3))
    before = [parameter.clone() for parameter in state.model.unused.parameters()]
    for number in range(3):
        attempt(state, 2)
        flats = [flat.clone() for flat in state.flats]
        record = meta(state)
        state.apply(record)
        follower.apply_reduced(flats, record)
        plain.optimizer.zero_grad()
        for part in range(2):
            (loss_of(plain, 10 * number + part) / 2).backward()
        plain.optimizer.step()
    for one in (state, follower):
        assert all(torch.equal(a, b) for a, b in zip(one.model.unused.parameters(), before, strict=True))
        assert [parameter.grad for parameter in one.model.unused.parameters()] == [None, None]
        for (name, ours), theirs in zip(one.model.named_parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(ours, theirs), name
        assert set(one.optimizer.state_dict()["state"]) == set(plain.optimizer.state_dict()["state"])


def test_gradients_of_a_closures_own_making_count() -> None:
    state = make(unused=True)
    unused = list(state.model.unused.parameters())
    state.begin_attempt(0)
    unused[0].grad = torch.ones_like(unused[0])
    unused[1].grad.fill_(2.0)
    state.put_extra(0.0)
    state.gradients.arm(lambda bucket: None)
    state.gradients.flush()
    state.apply(meta(state))
    assert [float(parameter.grad.mean()) for parameter in unused] == [1.0, 2.0]
