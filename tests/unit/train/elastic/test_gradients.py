"""The gradient of a model in flat buckets."""

import math

import pytest
import torch

from farstep.train.config import ModelConfig
from farstep.train.elastic.gradients import Bucket, FlatGradients
from farstep.train.model import ByteTransformer, next_byte_loss

TINY = ModelConfig(layers=2, width=32, heads=2, context_bytes=16)


def windows() -> torch.Tensor:
    return torch.randint(0, 256, (4, 17), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make(parameters, bucket_bytes: int) -> tuple[FlatGradients, list[Bucket]]:
    """Returns buckets, and a list to note down in which order they are handed on."""
    return FlatGradients(parameters, bucket_bytes=bucket_bytes, num_extra=1), []


@pytest.mark.parametrize("bucket_bytes", [1, 4096, 20_000, 1 << 30])
def test_buckets_hold_the_gradient_and_come_in_order(bucket_bytes: int):
    model = ByteTransformer(TINY, seed=1)
    next_byte_loss(model, windows()).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model = ByteTransformer(TINY, seed=1)
    buckets, came = make(model.parameters(), bucket_bytes)
    for _ in range(2):  # the second round must not add to the first
        came.clear()
        buckets.begin()
        buckets.arm(came.append)
        next_byte_loss(model, windows()).backward()
        buckets.flush()
        assert came == list(buckets.buckets)
    actual = [parameter.grad for parameter in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
    assert all(bucket.flat.data_ptr() % 4096 == 0 for bucket in buckets.buckets)
    expected_norm = math.sqrt(sum(float(part.double().square().sum()) for part in expected))
    buckets.extra.fill_(1e9)  # the reserved float is no gradient
    assert math.sqrt(buckets.square_sum()) == pytest.approx(expected_norm, rel=1e-5)
    numbers = 1 + len(expected)  # the reserved one, and for each parameter whether it has a gradient
    assert buckets.length_bytes == 4 * (numbers + sum(part.numel() for part in expected))


def test_a_bucket_is_handed_on_while_backward_still_runs():
    model = ByteTransformer(TINY, seed=1)
    buckets, _ = make(model.parameters(), 4096)
    first_weight = model.byte_table.weight
    unfinished: list[bool] = []
    buckets.begin()
    buckets.arm(lambda bucket: unfinished.append(bool((first_weight.grad == 0).all())))
    next_byte_loss(model, windows()).backward()
    assert unfinished[0]
    assert len(unfinished) > 3


def test_a_parameter_without_part_in_the_loss_does_not_keep_its_bucket():
    used, unused = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    buckets, came = make([used, unused], 1)
    buckets.begin()
    buckets.arm(came.append)
    used.sum().backward()
    assert came == []
    buckets.flush()
    assert came == list(buckets.buckets)
