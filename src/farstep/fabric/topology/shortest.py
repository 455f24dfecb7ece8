"""All cheapest paths of one part of a network, as sets of links to choose from at each hop.

Breadth-first search from all destinations at once: a bit per destination, 64 to a word, so that one pass over the
links does a level for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farstep.fabric.errors import ConfigError

UNREACHABLE = -1
"""In a route table: no path leads there."""

HERE = -2
"""In a route table: the switch is the destination."""

TABLE_BYTES_MAX = 4_000_000_000
"""Size up to which the tables of one search are built; more would not fit beside a simulation."""

_CHUNK_WORDS = 8_000_000
"""Words gathered at once (64 MB)."""

_HASHES_MAX = 8
"""Hashes tried to tell sets apart; one in 10^13 fails."""

_DIRECT_DEGREE_MAX = 12
"""Neighbours up to which sets are told apart by a table of all subsets instead of by hash."""

_Words = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class NextSets:
    """For each switch and destination, the links that begin a cheapest path.

    Rows are switches and columns destinations, numbered from 0; links are numbered as given to the search.
    """

    next_set: _Ints
    """`int32[rows, columns]`: number of the set, `UNREACHABLE` or `HERE`."""
    set_offset: npt.NDArray[np.int64]
    """First link of each set, `int64[sets + 1]`."""
    set_links: _Ints
    """Links of all sets; ascending within a set."""


def find_next_sets(
    num_rows: int, source: _Ints, target: _Ints, cost: npt.NDArray[np.uint8], destinations: _Ints
) -> NextSets:
    """Finds all cheapest paths.

    Args:
        num_rows: switches.
        source: `int32[links]`, row a link leaves.
        target: `int32[links]`, row it leads to.
        cost: `uint8[links]`, at least 1.
        destinations: rows that are destinations, in order of their columns.

    Raises:
        ConfigError: the tables would be too large.
    """
    cells = num_rows * len(destinations)
    if cells * 4 > TABLE_BYTES_MAX:
        raise ConfigError(
            f"routes between {num_rows} switches and {len(destinations)} switches with NICs need"
            f" {cells * 4 / 1e9:.1f} GB in one plane; valid: up to {TABLE_BYTES_MAX / 1e9:.0f} GB"
        )
    order = np.argsort(source, kind="stable")
    classes = int(cost.max(initial=1)) + 1
    key = (source[order].astype(np.int64) * classes + cost[order]) * num_rows + target[order]
    keys, pair_of = np.unique(key, return_inverse=True)
    pair_source = (keys // num_rows // classes).astype(np.int32)
    on_path = _search(num_rows, _by_cost(keys, num_rows, classes), destinations)
    next_set = np.full((num_rows, len(destinations)), UNREACHABLE, np.int32)
    pair_bounds = np.searchsorted(pair_source, np.arange(num_rows + 1))
    link_bounds = np.searchsorted(source[order], np.arange(num_rows + 1))
    generator = np.random.default_rng(0)
    sizes: list[npt.NDArray[np.int64]] = []
    links: list[_Ints] = []
    num_sets = 0
    for row in range(num_rows):
        first, last = pair_bounds[row], pair_bounds[row + 1]
        if first == last:
            continue
        bits = np.unpackbits(on_path[first:last].view(np.uint8), axis=1, bitorder="little")
        subsets, which = _distinct_columns(bits[:, : len(destinations)], generator)
        if not subsets.shape[1]:
            continue
        next_set[row] = np.where(which < 0, UNREACHABLE, which + num_sets)
        mine = order[link_bounds[row] : link_bounds[row + 1]]
        member = subsets[pair_of[link_bounds[row] : link_bounds[row + 1]] - first]
        place = np.nonzero(member.T)[1]
        sizes.append(member.sum(axis=0, dtype=np.int64))
        links.append(mine[place].astype(np.int32))
        num_sets += subsets.shape[1]
    next_set[destinations, np.arange(len(destinations))] = HERE
    offset = np.zeros(num_sets + 1, np.int64)
    if sizes:
        np.cumsum(np.concatenate(sizes), out=offset[1:])
    return NextSets(next_set, offset, np.concatenate(links) if links else np.zeros(0, np.int32))


def _by_cost(keys: npt.NDArray[np.int64], num_rows: int, classes: int) -> list[_Pairs]:
    source, rest = np.divmod(keys, num_rows * classes)
    cost, target = np.divmod(rest, num_rows)
    pairs = []
    for value in np.unique(cost):
        number = np.flatnonzero(cost == value)
        mine = source[number].astype(np.int32)
        starts = np.flatnonzero(np.r_[True, mine[1:] != mine[:-1]])
        pairs.append(_Pairs(int(value), number, mine, target[number].astype(np.int32), starts))
    return pairs


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Neighbour pairs whose links cost the same, ordered by source."""

    cost: int
    number: npt.NDArray[np.int64]
    """Of each pair, its row in the result."""
    source: _Ints
    target: _Ints
    starts: npt.NDArray[np.int64]
    """First pair of each source."""

    def chunks(self, pairs_max: int) -> Iterator[tuple[slice, slice]]:
        """Yields (sources, pairs) of up to some `pairs_max` pairs each."""
        first = 0
        while first < len(self.starts):
            last = int(np.searchsorted(self.starts, self.starts[first] + pairs_max, side="right")) - 1
            if self.starts[first] + pairs_max >= len(self.source):
                last = len(self.starts)
            last = max(last, first + 1)
            high = self.starts[last] if last < len(self.starts) else len(self.source)
            yield slice(first, last), slice(int(self.starts[first]), int(high))
            first = last


def _search(num_rows: int, pairs: list[_Pairs], destinations: _Ints) -> _Words:
    """Returns per neighbour pair the destinations to which it begins a cheapest path, a bit each."""
    words = (len(destinations) + 63) // 64
    num_pairs = sum(len(same.source) for same in pairs)
    if num_pairs * words * 8 > TABLE_BYTES_MAX:
        raise ConfigError(
            f"routes over {num_pairs} pairs of switches to {len(destinations)} switches with NICs need"
            f" {num_pairs * words * 8 / 1e9:.1f} GB; valid: up to {TABLE_BYTES_MAX / 1e9:.0f} GB"
        )
    column = np.arange(len(destinations))
    first = np.zeros((num_rows, words), np.uint64)
    first[destinations, column // 64] |= np.uint64(1) << (column % 64).astype(np.uint64)
    visited = first.copy()
    on_path = np.zeros((num_pairs, words), np.uint64)
    # Switches by what their way to a destination costs: the latest of these, as far back as a link can cost.
    frontiers = deque([first], maxlen=max((same.cost for same in pairs), default=1))
    pairs_max = max(1, _CHUNK_WORDS // words)
    while any(frontier.any() for frontier in frontiers):
        reached = np.zeros_like(first)
        steps = [(same, frontiers[-same.cost]) for same in pairs if same.cost <= len(frontiers)]
        for same, frontier in steps:
            for sources, inside in same.chunks(pairs_max):
                starts = same.starts[sources]
                found = np.bitwise_or.reduceat(frontier[same.target[inside]], starts - inside.start, axis=0)
                reached[same.source[starts]] |= found
        reached &= ~visited
        for same, frontier in steps:
            for _, inside in same.chunks(pairs_max):
                found = frontier[same.target[inside]]
                found &= reached[same.source[inside]]
                on_path[same.number[inside]] |= found
        visited |= reached
        frontiers.append(reached)
    return on_path


def _distinct_columns(
    bits: npt.NDArray[np.uint8], generator: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Returns the distinct columns that are not all zero, and which of them each column is (-1: all zero)."""
    degree = len(bits)
    if degree <= _DIRECT_DEGREE_MAX:
        key = np.zeros(bits.shape[1], np.int64)
        for bit, row in enumerate(bits):
            key |= row.astype(np.int64) << bit
        is_used = np.zeros(1 << degree, np.bool_)
        is_used[key] = True
        is_used[0] = False
        numbers = np.cumsum(is_used) - 1
        used_keys = np.flatnonzero(is_used)
        subsets = (used_keys[None, :] >> np.arange(degree)[:, None] & 1).astype(np.bool_)
        return subsets, np.where(key == 0, -1, numbers[key])
    packed = np.zeros((bits.shape[1], (degree + 63) // 64 * 8), np.uint8)
    packed[:, : (degree + 7) // 8] = np.packbits(bits, axis=0).T
    words = packed.view(np.uint64)
    for _ in range(_HASHES_MAX):
        keys = _hashes(words, generator) if words.shape[1] > 1 else words[:, 0]
        _, examples, which = np.unique(keys, return_index=True, return_inverse=True)
        if np.array_equal(words[examples][which], words):
            break  # no two columns share a key
    else:
        raise AssertionError("64-bit hashes of distinct sets of links collided again and again")
    used = bits[:, examples].any(axis=0)
    renumbered = np.where(used, np.cumsum(used) - 1, -1)
    return bits[:, examples[used]].astype(np.bool_), renumbered[which]


def _hashes(words: _Words, generator: np.random.Generator) -> _Words:
    """Returns a key per row of words; shifts bring high bits down, which multiplication alone never does."""
    odd = generator.integers(0, 1 << 63, (2, words.shape[1]), np.uint64) * np.uint64(2) + np.uint64(1)
    mixed = words ^ (words >> np.uint64(31))
    mixed *= odd[0]
    mixed ^= mixed >> np.uint64(29)
    mixed *= odd[1]
    mixed ^= mixed >> np.uint64(32)
    return np.asarray(mixed.sum(axis=1, dtype=np.uint64), np.uint64)
