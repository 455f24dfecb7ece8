"""All shortest paths of one part of a network, as sets of links to choose from at each hop.

Breadth-first search from all destinations at once: a bit per destination, 64 to a word, so that one pass over the
links does a level for all of them.
"""

from __future__ import annotations

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

_DIRECT_DEGREE_MAX = 12
"""Neighbours up to which sets are told apart by a table of all subsets instead of by hash."""

_Words = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class NextSets:
    """For each switch and destination, the links that begin a shortest path.

    Rows are switches and columns destinations, numbered from 0; links are numbered as given to the search.
    """

    next_set: _Ints
    """`int32[rows, columns]`: number of the set, `UNREACHABLE` or `HERE`."""
    set_offset: npt.NDArray[np.int64]
    """First link of each set, `int64[sets + 1]`."""
    set_links: _Ints
    """Links of all sets; ascending within a set."""


def find_next_sets(num_rows: int, source: _Ints, target: _Ints, destinations: _Ints) -> NextSets:
    """Finds all shortest paths, counted in hops.

    Args:
        num_rows: switches.
        source: `int32[links]`, row a link leaves.
        target: `int32[links]`, row it leads to.
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
    order = np.lexsort((np.arange(len(source)), source))
    key = source[order].astype(np.int64) * num_rows + target[order]
    pairs, pair_of = np.unique(key, return_inverse=True)
    pair_source = (pairs // num_rows).astype(np.int32)
    pair_target = (pairs % num_rows).astype(np.int32)
    on_path = _search(num_rows, pair_source, pair_target, destinations)
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


def _search(num_rows: int, pair_source: _Ints, pair_target: _Ints, destinations: _Ints) -> _Words:
    """Returns per neighbour pair the destinations to which it begins a shortest path, a bit each."""
    words = (len(destinations) + 63) // 64
    if len(pair_source) * words * 8 > TABLE_BYTES_MAX:
        raise ConfigError(
            f"routes over {len(pair_source)} pairs of switches to {len(destinations)} switches with NICs need"
            f" {len(pair_source) * words * 8 / 1e9:.1f} GB; valid: up to {TABLE_BYTES_MAX / 1e9:.0f} GB"
        )
    column = np.arange(len(destinations))
    frontier = np.zeros((num_rows, words), np.uint64)
    frontier[destinations, column // 64] |= np.uint64(1) << (column % 64).astype(np.uint64)
    visited = frontier.copy()
    on_path = np.zeros((len(pair_source), words), np.uint64)
    starts = (
        np.flatnonzero(np.r_[True, pair_source[1:] != pair_source[:-1]]) if len(pair_source) else column[:0]
    )
    chunks = _chunks(starts, len(pair_source), max(1, _CHUNK_WORDS // words))
    while frontier.any():
        reached = np.zeros_like(frontier)
        for first, last in chunks:
            low = starts[first]
            high = starts[last] if last < len(starts) else len(pair_source)
            ahead = frontier[pair_target[low:high]]
            rows = pair_source[starts[first:last]]
            fresh = np.bitwise_or.reduceat(ahead, starts[first:last] - low, axis=0) & ~visited[rows]
            reached[rows] = fresh
            ahead &= np.repeat(fresh, np.diff(np.r_[starts[first:last], high]), axis=0)
            on_path[low:high] |= ahead
        visited |= reached
        frontier = reached
    return on_path


def _chunks(starts: npt.NDArray[np.int64], num_pairs: int, pairs_max: int) -> list[tuple[int, int]]:
    """Cuts the rows into runs of up to `pairs_max` neighbour pairs each."""
    chunks = []
    first = 0
    while first < len(starts):
        last = int(np.searchsorted(starts, starts[first] + pairs_max, side="right")) - 1
        last = len(starts) if starts[first] + pairs_max >= num_pairs else max(last, first + 1)
        chunks.append((first, last))
        first = last
    return chunks


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
        keys = np.flatnonzero(is_used)
        subsets = (keys[None, :] >> np.arange(degree)[:, None] & 1).astype(np.bool_)
        return subsets, np.where(key == 0, -1, numbers[key])
    # Sums of weights below this bound are exact, so equal columns have equal sums whatever the order of adding.
    bound = 1 << (52 - degree.bit_length())
    while True:
        weights = generator.integers(1, bound, degree).astype(np.float64)
        _, examples, which = np.unique(weights @ bits, return_index=True, return_inverse=True)
        if np.array_equal(bits[:, examples][:, which], bits):
            break
    used = bits[:, examples].any(axis=0)
    renumbered = np.where(used, np.cumsum(used) - 1, -1)
    return bits[:, examples[used]].astype(np.bool_), renumbered[which]
