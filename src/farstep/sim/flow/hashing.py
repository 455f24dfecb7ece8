"""The paths that hashed connections take in the packet engine, so that both levels see the same collisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draws", "PathHashes", "first_appearance"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_RNG_SALT = np.uint64(0x6A09E667F3BCC909)
_ANSWERS = 2
"""Draw of a connection that the ways of its answers begin with."""


def first_appearance(number: IntArray) -> IntArray:
    """Numbers groups anew, in the order in which a column first names them."""
    _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


@dataclass(frozen=True, slots=True, eq=False)
class PathHashes:
    """What the paths of hashed connections are made of, one row for each of their queue pairs.

    Attributes:
        word: uint64 (rows,), seed of the paths of the row's connection.
        place: int64 (rows,), which of its connection's queue pairs it is.
        ports: int64 (rows,), ports of its source.
        queue_pairs: of each connection; 0: a connection without such, which has one path.
        answers: uint64 (rows,), what the ways of a connection's answers are drawn of.
    """

    word: Words
    place: IntArray
    ports: IntArray
    queue_pairs: int
    answers: Words

    @classmethod
    def of(cls, connection: IntArray, ports: IntArray, queue_pairs: int, seed: int) -> PathHashes:
        """Draws what the paths of connections are made of.

        Args:
            connection: int64 (n,), number of each connection in the packet engine.
            ports: int64 (n,), ports of its source.
            queue_pairs: queue pairs of each; 0: a connection without such, which has one path.
            seed: of the run.
        """
        each = max(queue_pairs, 1)
        with np.errstate(over="ignore"):
            stream = np.uint64(seed) * _GOLDEN + connection.astype(np.uint64)
        draws = Draws(stream)
        word, answers = draws.at(0), draws.at(_ANSWERS)
        place = np.tile(np.arange(each, dtype=np.int64), len(word))
        return cls(
            np.repeat(word, each), place, np.repeat(ports, each), queue_pairs, np.repeat(answers, each)
        )

    def choose(self, is_usable: BoolArray | None = None) -> tuple[IntArray, Words]:
        """Ports and path numbers of the rows.

        A hash takes each to a port of its NIC, and to one of the others when that one cannot be used. The number of a
        path picks, least significant digit first, a link at every hop.

        Args:
            is_usable: bool (rows, ports), which ports can be used; None: all of them.

        Returns:
            int64 (rows,) and uint64 (rows,). Where no port can be used it is that of the hash.
        """
        each, place = np.uint64(max(self.queue_pairs, 1)), self.place.astype(np.uint64)
        with np.errstate(over="ignore"):
            salt = ~place if self.queue_pairs else np.ones_like(self.word)
            bond = _mix(self.word ^ _mix(salt))
            port = bond % self.ports.astype(np.uint64)
            if is_usable is not None:
                port = _among(bond, port, is_usable)
            path = port * each + place
            return port.astype(np.int64), _mix(self.word ^ _mix(path + np.uint64(1)))


class Draws:
    """Streams of draws of the packet engine.

    Args:
        seed: uint64 (n,), of each.
    """

    def __init__(self, seed: Words) -> None:
        self._seed = _finish(seed ^ _RNG_SALT)

    def at(self, counter: IntArray | int, which: IntArray | None = None) -> Words:
        """A draw of each stream, or of some of them, by its number."""
        seed = self._seed if which is None else self._seed[which]
        with np.errstate(over="ignore"):
            return _finish(seed + np.asarray(counter).astype(np.uint64) * _GOLDEN)


def _among(bond: Words, port: Words, is_usable: BoolArray) -> Words:
    """The port of each hash where that can be used, else another one that can."""
    row = np.arange(len(bond))
    count = is_usable.sum(axis=1)
    turn = (bond % np.maximum(count, 1).astype(np.uint64)).astype(np.int64)
    nth = np.argmax(np.cumsum(is_usable, axis=1) == turn[:, None] + 1, axis=1)
    stays = is_usable[row, port.astype(np.int64)] | (count == 0)
    return np.where(stays, port, nth.astype(np.uint64))


def _finish(word: NDArray[Any]) -> Words:
    """Finaliser of SplitMix64, without the step before it."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)), np.uint64)


def _mix(word: NDArray[Any]) -> Words:
    return _finish(word + _GOLDEN)
