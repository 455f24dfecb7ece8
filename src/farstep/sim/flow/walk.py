"""How routing spreads traffic: from switch to switch, hop by hop, over all shortest paths or over hashed ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import HERE, RouteTable, Topology
from farstep.sim.flow.bundles import BundleTable
from farstep.sim.flow.ragged import gather_rows, offsets_of, scramble, sums

__all__ = ["RoutingView", "Segments", "hash_segments", "spread_segments"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

HOPS_MAX = 256
"""Hops of a shortest path; a torus of 131,072 nodes has some 80."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Ways between pairs of switches, in compressed rows.

    Attributes:
        offset: int64 (pairs + 1,), hops of each pair.
        bundle: int64, bundle of each hop, in the order of the way.
        share: float64, part of the pair's traffic that enters the hop; below 1 behind a dead link.
        survival: float64 (pairs,), part of the traffic that arrives; 0 if there is no way at all.
        is_routed: bool (pairs,), whether senders still use the way.
    """

    offset: IntArray
    bundle: IntArray
    share: FloatArray
    survival: FloatArray
    is_routed: BoolArray


class RoutingView:
    """The network as senders see it at one time, and as it is.

    Args:
        topology: the network.
        routes: routes in force.
        weight: float64 (links,), preference for a link among those of its set; 0: no longer used.
        is_alive: bool (links,), what really carries packets.
        delay_ns: float64 (links,), propagation; None: as built.
    """

    def __init__(
        self,
        topology: Topology,
        routes: RouteTable,
        weight: FloatArray | None = None,
        is_alive: BoolArray | None = None,
        delay_ns: FloatArray | None = None,
    ) -> None:
        self.topology = topology
        self.routes = routes
        self.weight = np.ones(topology.num_links) if weight is None else weight
        self.is_alive = np.ones(topology.num_links, np.bool_) if is_alive is None else is_alive
        self.delay_ns = topology.link_latency_ns if delay_ns is None else delay_ns
        self._healthy: dict[tuple[bytes, bytes], Segments] = {}
        base, offsets, links = 0, [np.zeros(1, np.int64)], []
        self._first_set: list[int] = []
        for block in routes.blocks:
            self._first_set.append(base)
            base += block.num_sets
            offsets.append(block.set_offset[1:].astype(np.int64) + offsets[-1][-1])
            links.append(block.set_links[: block.set_offset[-1]])
        self.set_offset = np.concatenate(offsets)
        self.set_links = np.concatenate(links).astype(np.int64)

    def updated(self, weight: FloatArray, is_alive: BoolArray, delay_ns: FloatArray) -> RoutingView:
        """Returns a view of the same routes over links in another state; keeps what was found out about routes."""
        other = copy.copy(self)
        other.weight, other.is_alive, other.delay_ns = weight, is_alive, delay_ns
        return other

    def healthy(self, table: BundleTable, start: IntArray, goal: IntArray) -> Segments:
        """Returns the ways between switches as the route table has them; found once."""
        key = (start.tobytes(), goal.tobytes())
        if key not in self._healthy:
            self._healthy[key] = _spread_healthy(self, table, start, goal)
        return self._healthy[key]

    @property
    def is_changed(self) -> BoolArray:
        """Links that are not what the route table takes them for, bool (links,)."""
        return np.asarray((self.weight != 1.0) | ~self.is_alive, np.bool_)

    def sets(self, node: NDArray[Any], goal: NDArray[Any]) -> IntArray:
        """Returns the set of links from each switch towards each goal; below 0 as in a route table."""
        routes = self.routes
        found = np.full(len(node), -1, np.int64)
        block_of = routes.node_block[node]
        reachable = (block_of == routes.node_block[goal]) & (routes.node_column[goal] >= 0)
        for number, block in enumerate(routes.blocks):
            mine = reachable & (block_of == number)
            if not mine.any():
                continue
            numbers = block.next_set[routes.node_row[node[mine]], routes.node_column[goal[mine]]].astype(
                np.int64
            )
            found[mine] = np.where(numbers >= 0, numbers + self._first_set[number], numbers)
        found[np.asarray(node) == goal] = HERE
        return found


# -- all paths ---------------------------------------------------------------------------------------------


class _Spreads:
    """Distributions of traffic over switches; equal ones have one number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.offset = np.zeros(1, np.int64)
        self.node = np.zeros(0, np.int64)
        self.mass = np.zeros(0)

    def intern(self, offset: IntArray, node: IntArray, mass: FloatArray) -> IntArray:
        steps = np.rint(mass * 2.0**40).astype(np.uint64)
        with np.errstate(over="ignore"):
            keys = np.add.reduceat(scramble(node, 2) * (steps + np.uint64(1)), offset[:-1])
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.empty(len(distinct), np.int64)
        fresh = []
        for index, key in enumerate(distinct.tolist()):
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._numbers)
                fresh.append(first[index])
            numbers[index] = number
        if fresh:
            position, _ = gather_rows(offset, np.asarray(fresh))
            length = np.diff(offset)[fresh]
            self.offset = np.concatenate((self.offset, self.offset[-1] + np.cumsum(length)))
            self.node = np.concatenate((self.node, node[position]))
            self.mass = np.concatenate((self.mass, mass[position]))
        return numbers[inverse]


def spread_segments(
    view: RoutingView, table: BundleTable, start: NDArray[Any], goal: NDArray[Any]
) -> Segments:
    """Splits traffic between switches over all shortest paths, evenly at every switch.

    Source-routed senders choose the digits of a path evenly, which is the same. Where the view changes links,
    shares are those of the paths that are left: a path counts with the product of its links' weights.

    Args:
        view: the network.
        table: where bundles are kept.
        start: switches the pairs begin at.
        goal: switches with NICs they end at, of the same length.
    """
    healthy = view.healthy(table, np.asarray(start, np.int64), np.asarray(goal, np.int64))
    changed = view.is_changed
    if not changed.any():
        return healthy
    hop_pair = np.repeat(np.arange(len(start)), np.diff(healthy.offset))
    owner, link, _ = table.expand(healthy.bundle)
    affected = np.unique(hop_pair[owner[changed[link]]])
    if not len(affected):
        return healthy
    damaged = _spread_damaged(view, table, np.asarray(start)[affected], np.asarray(goal)[affected])
    return _replace(healthy, affected, damaged)


def _spread_healthy(view: RoutingView, table: BundleTable, start: IntArray, goal: IntArray) -> Segments:
    spreads = _Spreads()
    count, num_nodes = len(start), view.topology.num_nodes
    origins, origin_of = np.unique(start, return_inverse=True)
    state = spreads.intern(np.arange(len(origins) + 1), origins, np.ones(len(origins)))[origin_of]
    survival = np.ones(count)
    walking = np.arange(count)
    hops: list[tuple[IntArray, IntArray]] = []
    for _ in range(HOPS_MAX):
        if not len(walking):
            break
        keys, inverse = np.unique(state * num_nodes + goal[walking], return_inverse=True)
        key_state, key_goal = keys // num_nodes, keys % num_nodes
        position, owner = gather_rows(spreads.offset, key_state)
        sets = view.sets(spreads.node[position], key_goal[owner])
        first = offsets_of(np.bincount(owner, minlength=len(keys)))
        lowest = np.minimum.reduceat(sets, first[:-1])
        survival[walking[lowest[inverse] == -1]] = 0.0
        moving = lowest[inverse] >= 0
        walking, inverse = walking[moving], inverse[moving]
        ahead = np.flatnonzero(lowest >= 0)
        if not len(ahead):
            break
        bundle, target = _step(view, table, spreads, key_state, position, owner, sets, first, ahead)
        place = np.full(len(keys), -1)
        place[ahead] = np.arange(len(ahead))
        hops.append((walking, bundle[place[inverse]]))
        state = target[place[inverse]]
    else:
        raise AssertionError("a route is longer than any network")
    return _from_hops(hops, count, survival)


def _step(
    view: RoutingView,
    table: BundleTable,
    spreads: _Spreads,
    key_state: IntArray,
    position: IntArray,
    owner: IntArray,
    sets: IntArray,
    first: IntArray,
    ahead: IntArray,
) -> tuple[IntArray, IntArray]:
    """Takes one hop from each of the distinct (distribution, goal); returns bundle and distribution behind it."""
    with np.errstate(over="ignore"):
        signature = np.add.reduceat(scramble(sets, 3), first[:-1])[ahead] + scramble(key_state[ahead], 4)
    _, chosen, inverse = np.unique(signature, return_index=True, return_inverse=True)
    members, move = gather_rows(first, ahead[chosen])
    entry, member = gather_rows(view.set_offset, sets[members])
    length = np.diff(view.set_offset)[sets[members]]
    link = view.set_links[entry]
    share = (spreads.mass[position[members]] / length)[member]
    move = move[member]
    bundle = table.intern(offsets_of(np.bincount(move, minlength=len(chosen))), link, share)
    target, mass, offset = _gather_mass(move, view.topology.link_target[link], share, len(chosen), view)
    return bundle[inverse], spreads.intern(offset, target, mass)[inverse]


def _gather_mass(
    move: IntArray, node: NDArray[Any], share: FloatArray, count: int, view: RoutingView
) -> tuple[IntArray, FloatArray, IntArray]:
    """Adds up what arrives at each switch, move by move; returns switch, mass and offsets."""
    key = move * view.topology.num_nodes + node
    distinct, inverse = np.unique(key, return_inverse=True)
    mass = sums(inverse, share, len(distinct))
    offset = offsets_of(np.bincount(distinct // view.topology.num_nodes, minlength=count))
    return (distinct % view.topology.num_nodes).astype(np.int64), mass, offset


def _from_hops(hops: list[tuple[IntArray, IntArray]], count: int, survival: FloatArray) -> Segments:
    pair = np.concatenate([pairs for pairs, _ in hops]) if hops else np.zeros(0, np.int64)
    bundle = np.concatenate([bundles for _, bundles in hops]) if hops else np.zeros(0, np.int64)
    order = np.argsort(pair, kind="stable")
    offset = offsets_of(np.bincount(pair, minlength=count))
    return Segments(offset, bundle[order], np.ones(len(pair)), survival, survival > 0)


def _replace(segments: Segments, pairs: IntArray, fresh: Segments) -> Segments:
    """Puts other ways in the place of some."""
    count = len(segments.survival)
    kept = np.ones(count, np.bool_)
    kept[pairs] = False
    old, old_owner = gather_rows(segments.offset, np.flatnonzero(kept))
    owner = np.concatenate((np.flatnonzero(kept)[old_owner], np.repeat(pairs, np.diff(fresh.offset))))
    order = np.argsort(owner, kind="stable")
    survival, is_routed = segments.survival.copy(), segments.is_routed.copy()
    survival[pairs], is_routed[pairs] = fresh.survival, fresh.is_routed
    return Segments(
        offsets_of(np.bincount(owner, minlength=count)),
        np.concatenate((segments.bundle[old], fresh.bundle))[order],
        np.concatenate((segments.share[old], fresh.share))[order],
        survival,
        is_routed,
    )


# -- all paths, some of them worse -------------------------------------------------------------------------


@dataclass(slots=True)
class _Layer:
    """One hop of all damaged pairs: which place leads over which link to which place of the next layer."""

    near: IntArray
    far: IntArray
    link: IntArray
    choice: FloatArray
    pair: IntArray


def _spread_damaged(
    view: RoutingView, table: BundleTable, start: NDArray[Any], goal: NDArray[Any]
) -> Segments:
    """Walks each pair on its own: forward to lay out its links, back for the weight of the paths, forward again."""
    count = len(start)
    layers, sizes, arrived = _lay_out(view, start, goal)
    worth = [np.zeros(size) for size in sizes]
    worth[-1][:] = 1.0
    for index, place in arrived:
        worth[index][place] = 1.0
    for index in range(len(layers) - 1, -1, -1):
        layer = layers[index]
        value = layer.choice * view.weight[layer.link] * worth[index + 1][layer.far]
        worth[index] += sums(layer.near, value, sizes[index])
    is_routed = worth[0] > 0
    mass = np.ones(count)
    survival = np.zeros(count)
    hops = []
    for index, layer in enumerate(layers):
        with np.errstate(divide="ignore", invalid="ignore"):
            choice = (
                layer.choice
                * view.weight[layer.link]
                * worth[index + 1][layer.far]
                / worth[index][layer.near]
            )
        sent = mass[layer.near] * np.where(worth[index][layer.near] > 0, choice, 0.0)
        hops.append((layer.pair, layer.link, sent))
        through = np.where(view.is_alive[layer.link], sent, 0.0)
        mass = sums(layer.far, through, sizes[index + 1])
        for at, place in arrived:
            if at == index + 1:
                pairs = np.full(sizes[at], -1)
                pairs[layer.far] = layer.pair
                survival += sums(pairs[place], mass[place], count)
    return _damaged_bundles(table, hops, count, survival, is_routed)


def _lay_out(
    view: RoutingView, start: NDArray[Any], goal: NDArray[Any]
) -> tuple[list[_Layer], list[int], list[tuple[int, IntArray]]]:
    """Lays out every pair's links hop by hop; returns layers, places per layer, and (layer, places) of arrivals."""
    node = np.asarray(start, np.int64)
    pair = np.arange(len(node))
    target = np.asarray(goal, np.int64)
    layers: list[_Layer] = []
    sizes = [len(node)]
    arrived: list[tuple[int, IntArray]] = []
    for hop in range(HOPS_MAX):
        sets = view.sets(node, target[pair])
        here = np.flatnonzero(sets == HERE)
        if len(here):
            arrived.append((hop, here))
        moving = np.flatnonzero(sets >= 0)
        if not len(moving):
            return layers, sizes, arrived
        entry, owner = gather_rows(view.set_offset, sets[moving])
        link = view.set_links[entry]
        near = moving[owner]
        choice = 1.0 / np.diff(view.set_offset)[sets[near]]
        key = pair[near] * view.topology.num_nodes + view.topology.link_target[link]
        distinct, far = np.unique(key, return_inverse=True)
        layers.append(_Layer(near, far, link, choice, pair[near]))
        node, pair = distinct % view.topology.num_nodes, distinct // view.topology.num_nodes
        sizes.append(len(node))
    raise AssertionError("a route is longer than any network")


def _damaged_bundles(
    table: BundleTable,
    hops: list[tuple[IntArray, IntArray, FloatArray]],
    count: int,
    survival: FloatArray,
    is_routed: BoolArray,
) -> Segments:
    pairs, bundles, shares = [], [], []
    for pair, link, sent in hops:
        used = sent > 0
        if not used.any():
            continue
        order = np.argsort(pair[used], kind="stable")
        owner, links, amounts = pair[used][order], link[used][order], sent[used][order]
        distinct, first = np.unique(owner, return_index=True)
        offset = np.r_[first, len(owner)].astype(np.int64)
        total = np.add.reduceat(amounts, first)
        pairs.append(distinct)
        bundles.append(table.intern(offset, links, amounts / np.repeat(total, np.diff(offset))))
        shares.append(total)
    if not pairs:
        return Segments(
            np.zeros(count + 1, np.int64), np.zeros(0, np.int64), np.zeros(0), survival, is_routed
        )
    pair = np.concatenate(pairs)
    order = np.argsort(pair, kind="stable")
    offset = offsets_of(np.bincount(pair, minlength=count))
    return Segments(
        offset, np.concatenate(bundles)[order], np.concatenate(shares)[order], survival, is_routed
    )


# -- one path ----------------------------------------------------------------------------------------------


def hash_segments(
    view: RoutingView, start: NDArray[Any], goal: NDArray[Any], number: NDArray[np.uint64]
) -> tuple[Segments, NDArray[np.uint64]]:
    """Takes one path for each pair: the digits of its number, least significant first, choose the links.

    A path is `is_routed` as long as all its links have a weight.

    Args:
        view: the network.
        start: switches the paths begin at.
        goal: switches with NICs they end at, of the same length.
        number: uint64, of each path; any one is valid.

    Returns:
        The ways, and what is left of the numbers, for a way that goes on from there.
    """
    node, target = np.array(start, np.int64), np.asarray(goal, np.int64)
    count, rest = len(node), np.array(number, np.uint64)
    survival, is_routed = np.ones(count), np.ones(count, np.bool_)
    walking = np.arange(count)
    hops = []
    for _ in range(HOPS_MAX):
        sets = view.sets(node[walking], target[walking])
        survival[walking[sets == -1]] = 0.0
        is_routed[walking[sets == -1]] = False
        walking, sets = walking[sets >= 0], sets[sets >= 0]
        if not len(walking):
            break
        size = (view.set_offset[sets + 1] - view.set_offset[sets]).astype(np.uint64)
        link = view.set_links[view.set_offset[sets] + (rest[walking] % size).astype(np.int64)]
        rest[walking] //= size
        hops.append((walking, link))
        survival[walking[~view.is_alive[link]]] = 0.0
        is_routed[walking[view.weight[link] <= 0.0]] = False
        node[walking] = view.topology.link_target[link]
    else:
        raise AssertionError("a route is longer than any network")
    segments = _from_hops(hops, count, survival)
    return Segments(segments.offset, segments.bundle, segments.share, survival, is_routed), rest
