"""The model, its buckets and its hash."""

import math

import pytest
import torch

from farstep.train.buckets import GradientBuckets
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


def gradient_of(model: ByteTransformer, batch: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    next_byte_loss(model, batch).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("bucket_bytes", [1, 4096, 20_000, 1 << 30])
def test_buckets_hold_the_gradient_and_come_in_order(bucket_bytes: int):
    expected = gradient_of(ByteTransformer(TINY, seed=1), windows())
    model = ByteTransformer(TINY, seed=1)
    buckets = GradientBuckets(model.parameters(), bucket_bytes=bucket_bytes, num_extra=1)
    for _ in range(2):  # the second round must not add to the first
        came: list[int] = []
        buckets.begin(lambda bucket: came.append(bucket.index))  # noqa: B023 (called before the next round)
        next_byte_loss(model, windows()).backward()
        buckets.flush()
        assert came == list(range(len(buckets.buckets)))
    actual = [parameter.grad for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
    memory = [bucket.flat.data_ptr() for bucket in buckets.buckets]
    assert all(address % 4096 == 0 for address in memory)
    expected_norm = math.sqrt(sum(float(part.double().square().sum()) for part in expected))
    buckets.extra.fill_(1e9)  # the reserved float is no gradient
    assert buckets.norm() == pytest.approx(expected_norm, rel=1e-6)
    assert buckets.length_bytes == 4 + sum(4 * part.numel() for part in expected)


def test_a_bucket_is_handed_on_while_backward_still_runs():
    model = ByteTransformer(TINY, seed=1)
    buckets = GradientBuckets(model.parameters(), bucket_bytes=4096)
    first_weight = model.byte_table.weight
    unfinished: list[bool] = []
    buckets.begin(lambda bucket: unfinished.append(bool((first_weight.grad == 0).all())))
    next_byte_loss(model, windows()).backward()
    assert unfinished[0]
    assert len(unfinished) > 3


def test_a_parameter_without_part_in_the_loss_does_not_keep_its_bucket():
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    buckets = GradientBuckets([used, unused], bucket_bytes=1)
    came: list[int] = []
    buckets.begin(lambda bucket: came.append(bucket.index))
    used.sum().backward()
    assert came == []
    buckets.flush()
    assert came == [0, 1]


def test_the_learning_rate_rises_then_falls_to_its_floor():
    config = OptimizerConfig(learning_rate=1.0, final_fraction=0.1, warmup_steps=10)
    rates = [learning_rate_at(step, 100, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate_at(0, 1, OptimizerConfig(warmup_steps=0)) == pytest.approx(3e-3)
