"""A keyed permutation of range(size), evaluated at the points asked for and nowhere else.

Invariant: for every (size, seed, epoch) the map is one to one, and it is the same on every machine.
No list of the order is ever held, so its memory does not grow with the data set.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["mix", "mix_many", "permute", "permute_many"]

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = 0xFFFFFFFFFFFFFFFF
_ROUNDS = range(1, 5)


def mix(*words: int) -> int:
    """Hashes integers to 64 bits (the finaliser of splitmix64, chained)."""
    state = 0
    for word in words:
        state = (state + word + _GOLDEN) & _MASK
        state = ((state ^ state >> 30) * _MULTIPLIERS[0]) & _MASK
        state = ((state ^ state >> 27) * _MULTIPLIERS[1]) & _MASK
        state ^= state >> 31
    return state


def mix_many(words: tuple[int, ...], last: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns mix(*words, x) for every x of an array."""
    return _finalised(last.astype(np.uint64) + _key(*words))


def permute(position: int, size: int, seed: int, epoch: int) -> int:
    """Returns where the permutation sends one position.

    A four-round Feistel network permutes the next even power of two; points that fall outside
    the range are sent through it again, which keeps the map one to one.
    """
    half_bits = _half_bits(size)
    mask = (1 << half_bits) - 1
    while True:
        left, right = position >> half_bits, position & mask
        for round_index in _ROUNDS:
            left, right = right, left ^ (mix(seed, epoch, round_index, right) & mask)
        position = left << half_bits | right
        if position < size:
            return position


def permute_many(positions: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns where the permutation sends each of many positions: `permute`, element by element.

    Args:
        positions: int64 of any shape, each within range(size).
        size: number of elements permuted.
        seed: of the run.
        epoch: each has a permutation of its own.
    """
    half_bits = np.uint64(_half_bits(size))
    mask = np.uint64((1 << int(half_bits)) - 1)
    keys = [_key(seed, epoch, round_index) for round_index in _ROUNDS]
    result = positions.astype(np.uint64)
    outside = np.ones(result.shape, dtype=np.bool_)
    while outside.any():
        points = result[outside]
        left, right = points >> half_bits, points & mask
        for key in keys:
            left, right = right, left ^ (_finalised(right + key) & mask)
        result[outside] = left << half_bits | right
        outside = result >= size
    return result.astype(np.int64)


def _half_bits(size: int) -> int:
    return max(1, (max(1, size - 1).bit_length() + 1) // 2)


def _key(*words: int) -> np.uint64:
    """Returns what `mix` adds to the word that comes after these."""
    return np.uint64((mix(*words) + _GOLDEN) & _MASK)


def _finalised(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ state >> np.uint64(30)) * np.uint64(_MULTIPLIERS[0])
    state = (state ^ state >> np.uint64(27)) * np.uint64(_MULTIPLIERS[1])
    return state ^ state >> np.uint64(31)
