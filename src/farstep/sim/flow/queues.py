"""Queues in front of the links of single paths, filled and drained as fluids, a short time at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from farstep.sim.flow.ragged import sums

__all__ = ["DONE_BITS", "LinkQueues", "aligned_paths"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TINY = 1e-12

DONE_BITS = 1e-3
"""Bits that count as none."""

BATCHES = 8
"""Steps whose arrivals a queue keeps apart."""


def aligned_paths(
    links: IntArray, offset: IntArray, source: IntArray, ends: tuple[IntArray, IntArray], tier: IntArray
) -> IntArray:
    """Puts the links of paths in order, so that a link stands in the same column wherever it can.

    Ways up fill the columns from the left, ways down from the right.

    Args:
        links: int64, links of all paths, those of one path in any order.
        offset: int64 (paths + 1,), where each path begins.
        source: int64 (paths,), node each begins at.
        ends: source and target of every link.
        tier: tier of every node.

    Returns:
        int64 (paths, columns); the number of links, a link without bounds, where there is none.
    """
    near, far = ends
    nothing = len(near)
    count, length = len(source), np.diff(offset)
    hops = int(length.max(initial=1))
    place = np.arange(hops)[None, :]
    given = place < length[:, None]
    table = np.full((count, hops), nothing)
    table[given] = links
    from_node = np.append(near, -1)[table]
    ordered = np.full((count, hops), nothing)
    node, row = source.copy(), np.arange(count)
    for hop in range(hops):
        match = from_node == node[:, None]
        found = match.any(axis=1)
        column = np.argmax(match, axis=1)
        link = np.where(found, table[row, column], nothing)
        from_node[row[found], column[found]] = -2
        ordered[:, hop] = link
        node = np.where(found, np.append(far, -1)[link], -1)
    rises = np.append(np.asarray(tier)[far] > np.asarray(tier)[near], False)[ordered] & (ordered < nothing)
    ups = np.cumprod(rises, axis=1).sum(axis=1)
    walked = (ordered < nothing).sum(axis=1)
    shifted = np.where(place < ups[:, None], place, place + (hops - walked)[:, None])
    out = np.full((count, hops), nothing)
    kept = place < walked[:, None]
    out[np.repeat(row, walked), shifted[kept]] = ordered[kept]
    return out


class LinkQueues:
    """What waits in front of every link, of every part of a flow, first in first out.

    What arrives within a step is one batch; a queue serves its batches in their order, and mixes what is in one. From
    `BATCHES` steps on batches are one.

    Args:
        rate: float64 (links,), bits per ns.
        columns: links of the longest path.
        packet_bits: of a full packet; whole ones are lost.
        limit: float64 (links,), bits a queue holds, what comes on top is lost; None: no bound.
        pause: bits of one link's traffic in the switch behind it from which on that link is paused; None: never.
        seed: draws which flows lose packets where a queue is full.

    Attributes:
        waiting: float64 (columns, batches, parts), bits, oldest batch first.
        depth: float64 (links + 1,), bits in front of each link.
    """

    def __init__(
        self,
        rate: FloatArray,
        columns: int,
        *,
        packet_bits: float,
        limit: FloatArray | None = None,
        pause: float | None = None,
        seed: int = 0,
    ) -> None:
        self._limit = None if limit is None else np.append(limit, np.inf)
        self._pause = pause
        self._packet_bits = packet_bits
        self._random = np.random.default_rng(seed)
        self._path: IntArray | None = None
        self._behind = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.waiting = np.zeros((columns, BATCHES, 0))
        self._served: list[tuple[FloatArray, FloatArray, IntArray]] = []
        self._links: list[IntArray] = []
        self._place: list[IntArray] = []
        self.set_rate(rate)

    def set_rate(self, rate: FloatArray) -> None:
        """Changes the rates of the links."""
        self.rate = np.append(rate, np.inf)
        self._drained = np.zeros(len(self.rate))
        self.depth = np.zeros(len(self.rate))

    def add(self, count: int) -> None:
        """Makes room for more parts."""
        more = np.zeros((*self.waiting.shape[:2], count))
        self.waiting = np.concatenate((self.waiting, more), axis=2)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Forgets parts, by a mask of those that stay."""
        self.waiting = self.waiting[:, :, kept]

    def held(self) -> FloatArray:
        """Bits of each part that wait, float64 (parts,)."""
        return np.asarray(self.waiting.sum(axis=(0, 1)), np.float64)

    def take_out(self, is_kept: NDArray[np.bool_], columns: int) -> FloatArray:
        """Empties queues whose links no longer are on their paths.

        Args:
            is_kept: bool (columns until now, parts), what stays.
            columns: links of the longest path from now on; all is taken out if that changes.

        Returns:
            What was in them, float64 (columns until now, parts).
        """
        out = np.where(is_kept, 0.0, self.waiting.sum(axis=1))
        self.waiting = self.waiting * is_kept[:, None, :]
        if columns != len(self.waiting):
            self.waiting = np.zeros((columns, BATCHES, out.shape[1]))
        return out

    def move(
        self, path: IntArray, offered: FloatArray, span: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Lets fluids flow for a while.

        Args:
            path: int64 (columns, parts), links.
            offered: float64 (parts,), bits senders would send.
            span: ns.

        Returns:
            Bits that left the senders, that arrived, and that were lost, each float64 (parts,).
        """
        num_links = len(self.rate)
        allowed = self.rate * span
        if path is not self._path:
            self._know(path)
        if self._pause is not None:
            allowed = np.minimum(allowed, self._room(span))
        outs = np.zeros(path.shape)
        lost = np.zeros(len(offered))
        share = np.minimum(1.0, allowed / np.maximum(sums(path[0], offered, num_links), TINY))
        outs[0] = coming = offered * share[path[0]]
        allowed[:-1] -= np.minimum(sums(path[0], coming, num_links), allowed)[:-1]
        self._age()
        self._served = []
        for column in range(1, len(path)):
            coming, gone = self._serve(column, coming, allowed)
            outs[column] = coming
            lost += gone
        held = self.waiting.sum(axis=1)
        self.depth = sums(path.ravel(), held.ravel(), num_links)
        if self._pause is not None:
            self._drained = self._sum_behind(outs) / span
        return outs[0], coming, lost

    def through(self, parts: IntArray) -> FloatArray:
        """Part of the last step after which the last of what parts brought through it was, float64 (parts,)."""
        latest = np.zeros(len(parts))
        for out, until, link in self._served:
            moved = np.where(out[:, parts] > DONE_BITS, until[:, link[parts]], 0.0)
            latest = np.maximum(latest, moved.max(axis=0))
        return latest

    def _age(self) -> None:
        waiting = self.waiting
        waiting[:, 0] += waiting[:, 1]
        waiting[:, 1:-1] = waiting[:, 2:]
        waiting[:, -1] = 0.0

    def _know(self, path: IntArray) -> None:
        """Numbers the links of each column, of which there are far fewer than links."""
        self._path = path
        if self._pause is not None:
            self._behind = _behind(path, len(self.rate) - 1)
        self._links, self._place = [], []
        for column in path:
            is_used = np.zeros(len(self.rate), np.bool_)
            is_used[column] = True
            links = np.flatnonzero(is_used)
            number = np.empty(len(self.rate), np.int64)
            number[links] = np.arange(len(links))
            self._links.append(links)
            self._place.append(number[column])

    def _serve(self, column: int, coming: FloatArray, allowed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lets the links of a column serve; takes what they let through from `allowed`. Returns that, and losses."""
        links, link = self._links[column], self._place[column]
        count, nothing = len(links), len(self.rate) - 1
        mine = allowed[links]
        here = self.waiting[column]
        here[-1] = coming
        lost = np.zeros(len(coming))
        which = (link[None, :] + count * np.arange(BATCHES)[:, None]).ravel()
        total = sums(which, here.ravel(), BATCHES * count).reshape(BATCHES, count)
        if self._limit is not None:
            excess = np.maximum(total.sum(axis=0) - mine - self._limit[links], 0.0)
            if excess.any():
                part = np.minimum(excess / np.maximum(total[-1], TINY), 1.0)
                drawn = self._random.poisson(coming * part[link] / self._packet_bits) * self._packet_bits
                lost = np.minimum(drawn, coming)
                here[-1] -= lost
                total[-1] = sums(link, here[-1], count)
        upto = np.cumsum(total, axis=0)
        with np.errstate(invalid="ignore"):
            ratio = np.clip((mine - upto + total) / np.maximum(total, TINY), 0.0, 1.0)
        ratio[:, links == nothing] = 1.0
        out = here * ratio.ravel()[which].reshape(here.shape)
        here -= out
        self._served.append((out, np.minimum(upto / np.maximum(mine, TINY), 1.0), link))
        kept = links != nothing
        allowed[links[kept]] -= np.minimum(upto[-1], mine)[kept]
        return out.sum(axis=0), lost

    def _room(self, span: float) -> FloatArray:
        """Bits each link may pass on before it is paused: what is left of its room, and what leaves meanwhile."""
        assert self._pause is not None
        held = self._sum_behind(self.waiting.sum(axis=1))
        room = np.maximum(self._pause - held + self._drained * span, 0.0)
        # Nothing is paused before something waits, and a link that ends at a NIC never is.
        room[held <= TINY] = np.inf
        return room

    def _sum_behind(self, values: FloatArray) -> FloatArray:
        """Adds up values at the links that follow each, float64 (links + 1,)."""
        link, place = self._behind
        return sums(link, values.ravel()[place], len(self.rate))


def _behind(path: IntArray, nothing: int) -> tuple[IntArray, IntArray]:
    """Links that others follow on a path, and the place of the one that does in a flat array of the paths' shape."""
    columns, parts = path.shape
    following = np.full(path.shape, -1)
    last = np.full(parts, -1)
    for column in range(columns - 1, -1, -1):
        real = path[column] != nothing
        following[column] = np.where(real, last, -1)
        last = np.where(real, column, last)
    place = np.flatnonzero(following.ravel() >= 0)
    return path.ravel()[place], following.ravel()[place] * parts + place % parts
