import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farstep.train.permutation import mix, mix_many, permute, permute_many

SEEDS = st.integers(-(2**70), 2**70)


@given(size=st.integers(1, 700), seed=SEEDS, epoch=st.integers(0, 10**6))
def test_every_point_is_hit_once(size: int, seed: int, epoch: int) -> None:
    images = permute_many(np.arange(size), size, seed, epoch)
    assert sorted(images.tolist()) == list(range(size))


@given(size=st.integers(1, 2**40), seed=SEEDS, epoch=st.integers(0, 10**6), data=st.data())
def test_many_points_are_the_single_points(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), max_size=20))
    images = permute_many(np.array(positions, dtype=np.int64), size, seed, epoch)
    assert images.tolist() == [permute(position, size, seed, epoch) for position in positions]


@pytest.mark.parametrize("size", [64, 1000])
def test_epochs_and_seeds_have_orders_of_their_own(size: int) -> None:
    orders = {
        tuple(permute_many(np.arange(size), size, seed, epoch).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def test_neighbours_are_spread_evenly() -> None:
    """The first tenth of an epoch comes from all of the data: no more than chance would have it."""
    size, tenth = 10_000, 1_000
    for seed in range(5):
        images = permute_many(np.arange(tenth), size, seed, 0)
        per_tenth = np.bincount(images // tenth, minlength=10)
        assert abs(per_tenth - tenth / 10).max() < 50  # five standard deviations of a random draw


@given(words=st.lists(SEEDS, max_size=3), last=st.lists(st.integers(0, 2**62), max_size=10))
def test_hashes_of_many_are_the_single_hashes(words: list[int], last: list[int]) -> None:
    assert mix_many(tuple(words), np.array(last, dtype=np.int64)).tolist() == [mix(*words, x) for x in last]
