"""Hierarchical all-reduce: the least bytes across site borders, for sites of any and unequal sizes.

Three phases on every byte: reduce-scatter within the site, all-reduce of the shard across the sites,
all-gather within the site. One copy of the vector leaves a site per phase across sites, whatever the
number of its ranks, and every rank of a site carries its share of it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from farstep.collectives.schedule.model import (
    Range,
    Schedule,
    Transfer,
    check_members,
    make_schedule,
    split_evenly,
)
from farstep.collectives.schedule.ring import ring_all_gather_steps, ring_reduce_scatter_steps


def hierarchical_all_reduce(
    sites: Sequence[Sequence[int]], length: int, *, involving: int | None = None
) -> Schedule:
    """All-reduces a vector across sites.

    The vector is cut wherever the shards of any site begin, so that every piece has one holder per site;
    the holders of a piece form a ring across the sites.

    Args:
        sites: the ranks of every site, each rank once; sites may differ in size but none is empty.
        length: number of elements.
        involving: makes only the transfers this rank takes part in.

    Raises:
        ValueError: a site is empty, or the sites do not name each rank from 0 on once.
    """
    members = [rank for site in sites for rank in site]
    size = len(members)
    check_members(members, size)
    if any(not site for site in sites):
        raise ValueError("a site has no ranks; every site needs at least one")
    shards = [split_evenly(length, len(site)) for site in sites]
    pieces = _pieces(shards, length)
    atoms = [split_evenly(piece.length, len(sites), offset=piece.offset) for piece in pieces]
    owned = [_owned_atoms(site_shards, pieces, atoms) for site_shards in shards]

    within = max(len(site) for site in sites) - 1
    across = len(sites) - 1
    transfers: list[Transfer] = []
    for site, blocks in zip(sites, owned, strict=True):
        transfers += ring_reduce_scatter_steps(site, blocks, completes=across == 0, involving=involving)
        transfers += ring_all_gather_steps(site, blocks, first_step=within + 2 * across, involving=involving)
    for piece, parts in zip(pieces, atoms, strict=True):
        holders = [_holder(site, cuts, piece) for site, cuts in zip(sites, shards, strict=True)]
        sections = [(part,) for part in parts]
        transfers += ring_reduce_scatter_steps(holders, sections, first_step=within, involving=involving)
        transfers += ring_all_gather_steps(holders, sections, first_step=within + across, involving=involving)
    return make_schedule("hierarchical all-reduce", size, transfers)


def _pieces(shards: Sequence[Sequence[Range]], length: int) -> list[Range]:
    """The coarsest cut of the vector in which no piece straddles a shard border of any site."""
    borders = sorted({shard.offset for cuts in shards for shard in cuts} | {length})
    return [Range(start, stop - start) for start, stop in itertools.pairwise(borders) if stop > start]


def _holder(site: Sequence[int], cuts: Sequence[Range], piece: Range) -> int:
    """The rank of a site whose shard holds a piece."""
    filled = [index for index, cut in enumerate(cuts) if cut.length]
    offsets = [cuts[index].offset for index in filled]
    return site[filled[bisect_right(offsets, piece.offset) - 1]]


def _owned_atoms(
    cuts: Sequence[Range], pieces: Sequence[Range], atoms: Sequence[Sequence[Range]]
) -> list[list[Range]]:
    """For every shard of a site, the atoms that make it up."""
    return [
        [
            atom
            for piece, parts in zip(pieces, atoms, strict=True)
            if shard.offset <= piece.offset < shard.stop
            for atom in parts
        ]
        for shard in cuts
    ]
