"""The paths that hashed connections take in the packet engine, so that both levels see the same collisions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["first_appearance", "hashed_paths"]

IntArray = NDArray[np.int64]
Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_RNG_SALT = np.uint64(0x6A09E667F3BCC909)


def first_appearance(number: IntArray) -> IntArray:
    """Numbers groups anew, in the order in which a column first names them."""
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def hashed_paths(
    connection: IntArray, planes: IntArray, queue_pairs: int, seed: int
) -> tuple[IntArray, Words]:
    """Ports and path numbers of the queue pairs of connections.

    Ports are hashed, for each queue pair or for the connection. The number of a path picks, least significant digit
    first, a link at every hop.

    Args:
        connection: int64 (n,), number of each connection in the packet engine.
        planes: int64 (n,), ports of its source.
        queue_pairs: queue pairs of each; 0: a connection without such, which has one path.
        seed: of the run.

    Returns:
        int64 (n, queue pairs) and uint64 (n, queue pairs).
    """
    each = max(queue_pairs, 1)
    with np.errstate(over="ignore"):
        stream = np.uint64(seed) * _GOLDEN + connection.astype(np.uint64)
        word = _finish(_finish(stream ^ _RNG_SALT))[:, None]
        place = np.arange(each, dtype=np.uint64)[None, :]
        ports = planes.astype(np.uint64)[:, None]
        if queue_pairs:
            port = _mix(word ^ _mix(~place)) % ports
            path = port * np.uint64(each) + place
        else:
            port = _mix(word ^ _mix(np.ones_like(word))) % ports
            path = port
        return port.astype(np.int64), _mix(word ^ _mix(path + np.uint64(1)))


def _finish(word: NDArray[Any]) -> Words:
    """Finaliser of SplitMix64, without the step before it."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)), np.uint64)


def _mix(word: NDArray[Any]) -> Words:
    return _finish(word + _GOLDEN)
