"""How many shortest paths there are, by their length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from farstep.fabric.topology.model import Topology
from farstep.fabric.topology.routes import RouteBlock

DESTINATIONS_MAX = 16
"""Switches with NICs that counts are taken towards, evenly spread, where there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathClass:
    """Pairs of NICs whose shortest paths have equally many links."""

    links: int
    """Links of a path, those to the NICs counted."""
    fewest: int
    """Fewest distinct shortest paths of a pair."""
    most: int
    """Most."""
    share: float
    """Share of pairs of NICs, 0 to 1."""


def path_classes(topology: Topology) -> tuple[PathClass, ...]:
    """Counts distinct shortest paths between NICs in a plane.

    Counts are exact up to 2**53. Where more than `DESTINATIONS_MAX` switches have NICs, paths to that many of them
    are counted, which in a symmetric network changes nothing.
    """
    routes = topology.routes()
    attached = np.bincount(topology.ports.switch, minlength=topology.num_nodes)
    found: dict[int, tuple[float, float, float]] = {}
    seen: set[int] = set()
    for block in routes.blocks:
        if id(block.next_set) in seen or not len(block.attachments):
            continue
        seen.add(id(block.next_set))
        weight = attached[block.attachments].astype(np.float64)
        step = max(1, -(-len(block.attachments) // DESTINATIONS_MAX))
        for column in range(0, len(block.attachments), step):
            count, hops = _towards(topology, routes.node_row, block, column)
            rows = routes.node_row[block.attachments]
            pairs = weight * weight[column]
            pairs[column] = weight[column] * (weight[column] - 1)
            for value in np.unique(hops[rows][hops[rows] >= 0]):
                mine = hops[rows] == value
                if not pairs[mine].any():
                    continue
                fewest, most, total = found.get(int(value), (np.inf, 0.0, 0.0))
                counts = count[rows][mine]
                found[int(value)] = (
                    min(fewest, float(counts.min())),
                    max(most, float(counts.max())),
                    total + float(pairs[mine].sum()),
                )
    everything = sum(total for _, _, total in found.values())
    return tuple(
        PathClass(links=hops + 2, fewest=int(fewest), most=int(most), share=total / everything)
        for hops, (fewest, most, total) in sorted(found.items())
    )


def _towards(
    topology: Topology, node_row: npt.NDArray[np.int32], block: RouteBlock, column: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Returns per row the number of shortest paths to a column's switch and their hops, -1 where there is none."""
    goal = int(node_row[block.attachments[column]])
    sets = block.next_set[:, column]
    leads = np.flatnonzero(sets >= 0)
    size = block.set_offset[sets[leads] + 1] - block.set_offset[sets[leads]]
    row = np.repeat(leads, size)
    within = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size)
    link = block.set_links[np.repeat(block.set_offset[sets[leads]], size) + within]
    ahead = node_row[topology.link_target[link]]
    hops = np.full(len(sets), -1, np.int64)
    hops[goal] = 0
    count = np.zeros(len(sets))
    count[goal] = 1.0
    # A row is ready once all rows ahead of it are: of equal cost, paths may differ in hops, so hops are the fewest.
    waiting = np.bincount(row, minlength=len(sets))
    ready = np.array([goal])
    by_ahead = np.argsort(ahead, kind="stable")
    starts = np.searchsorted(ahead[by_ahead], np.arange(len(sets) + 1))
    while len(ready):
        span = starts[ready + 1] - starts[ready]
        which = (
            np.repeat(starts[ready], span) + np.arange(span.sum()) - np.repeat(np.cumsum(span) - span, span)
        )
        entry = by_ahead[which]
        np.add.at(count, row[entry], count[ahead[entry]])
        np.subtract.at(waiting, row[entry], 1)
        reached = np.unique(row[entry])
        fewer = np.full(len(sets), np.iinfo(np.int64).max)
        np.minimum.at(fewer, row[entry], hops[ahead[entry]] + 1)
        hops[reached] = np.where(hops[reached] < 0, fewer[reached], np.minimum(hops[reached], fewer[reached]))
        ready = reached[waiting[reached] == 0]
    return count, hops
