"""The model, its buckets and its hash."""

import math

import pytest
import torch

from farstep.train.config import ModelConfig, OptimizerConfig
from farstep.train.learning_rate import learning_rate_at
from farstep.train.model import ByteTransformer, next_byte_loss
from farstep.train.state_hash import state_hash

TINY = ModelConfig(layers=2, width=32, heads=4, context_bytes=16)


def windows(count: int = 4, length: int = 17) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, length), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )


def test_the_default_model_has_one_to_two_million_parameters():
    model = ByteTransformer(ModelConfig(), seed=1)
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000


def test_logits_have_one_row_per_position():
    model = ByteTransformer(TINY, seed=1)
    assert model(windows()[:, :-1].long()).shape == (4, 16, 256)
    assert model(windows()[:, :5].long()).shape == (4, 5, 256)


def test_the_first_loss_is_that_of_a_guess():
    assert next_byte_loss(ByteTransformer(TINY, seed=1), windows()).item() == pytest.approx(
        math.log(256), abs=0.1
    )


def test_no_position_sees_what_comes_after_it():
    model = ByteTransformer(TINY, seed=1).eval()
    text = windows()[:, :-1].long()
    changed = text.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 256
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10], after[:, 10])


def test_equal_seeds_give_equal_bits_and_others_do_not():
    hashes = []
    for seed in (1, 1, 2):
        model = ByteTransformer(TINY, seed=seed)
        hashes.append(state_hash(model, torch.optim.AdamW(model.parameters())))
    assert hashes[0] == hashes[1] != hashes[2]


def test_it_learns_one_batch_by_heart():
    model = ByteTransformer(TINY, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = windows()
    for _ in range(80):
        optimizer.zero_grad()
        loss = next_byte_loss(model, batch)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


def test_the_hash_sees_one_bit_of_a_parameter_and_of_the_optimizer():
    model = ByteTransformer(TINY, seed=1)
    optimizer = torch.optim.AdamW(model.parameters())
    fresh = state_hash(model, optimizer)
    next_byte_loss(model, windows()).backward()
    optimizer.step()
    trained = state_hash(model, optimizer)
    weight = model.blocks[1].contract.weight
    moment = optimizer.state[weight]["exp_avg"]
    seen = {fresh, trained}
    for tensor in (weight.data, moment):
        bits = tensor.view(-1).view(torch.int32)
        bits[5] ^= 1
        seen.add(state_hash(model, optimizer))
        bits[5] ^= 1
    assert len(seen) == 4
    assert state_hash(model, optimizer) == trained


def test_the_learning_rate_rises_then_falls_to_its_floor():
    config = OptimizerConfig(learning_rate=1.0, final_fraction=0.1, warmup_steps=10)
    rates = [learning_rate_at(step, 100, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate_at(0, 1, OptimizerConfig(warmup_steps=0)) == pytest.approx(3e-3)
