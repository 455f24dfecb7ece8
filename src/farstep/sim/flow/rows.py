"""What a flow loads: its NIC's uplinks, the fabric and the downlinks, as one row of bundles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import UNREACHABLE, Topology
from farstep.sim.flow.bundles import BundleTable
from farstep.sim.flow.ragged import gather_rows, offsets_of, scramble, sums
from farstep.sim.flow.walk import RoutingView, Segments, hash_segments, spread_segments

__all__ = ["Lanes", "Rows", "hashed_rows", "lanes_between", "sprayed_rows", "usable_ports"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Ways of flows in compressed rows.

    Attributes:
        offset: int64 (rows + 1,).
        bundle: int64, bundle of each entry.
        share: float64, part of the flow's rate an entry carries.
        survival: float64 (rows,), part of what is sent that arrives.
        is_routed: bool (rows,), False: the sender knows no way and waits.
        latency_ns: float64 (rows,), propagation and switches, one way, of the slowest part.
        wire_ns_per_byte: float64 (rows,), time on the wire per byte, added up over the hops.
        pipe_ns_per_byte: float64 (rows,), the same without the slowest hop: what store-and-forward adds.
    """

    offset: IntArray
    bundle: IntArray
    share: FloatArray
    survival: FloatArray
    is_routed: BoolArray
    latency_ns: FloatArray
    wire_ns_per_byte: FloatArray
    pipe_ns_per_byte: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Pairs of NIC ports traffic may use; one for each plane in most fabrics.

    Attributes:
        row: int64 (lanes,), index of the pair of NICs.
        up: int64 (lanes,), link out of the source.
        down: int64 (lanes,), link into the destination.
    """

    row: IntArray
    up: IntArray
    down: IntArray

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Parts of rows: weight, uplink, legs through the fabric (numbers of segments), downlink."""

    row: IntArray
    weight: FloatArray
    up: IntArray
    legs: IntArray
    down: IntArray


def lanes_between(topology: Topology, source: NDArray[Any], target: NDArray[Any]) -> Lanes:
    """Pairs the ports of sources with those of the same plane at the destinations, in order of the rows.

    Where a destination has no port of a plane, all its ports are paired with the source's of that plane.
    """
    ports = topology.ports
    near, row = gather_rows(ports.offset, source)
    far, lane = gather_rows(ports.offset, np.asarray(target)[row])
    row, near = row[lane], near[lane]
    same = ports.plane[near] == ports.plane[far]
    has_same = np.bincount(lane[same], minlength=int(lane.max(initial=-1)) + 1) > 0
    kept = same | ~has_same[lane]
    up = ports.link[near[kept]].astype(np.int64)
    return Lanes(row[kept], up, ports.link[far[kept]].astype(np.int64) ^ 1)


def sprayed_rows(view: RoutingView, table: BundleTable, source: NDArray[Any], target: NDArray[Any]) -> Rows:
    """Splits flows evenly over the planes, and in each plane over all paths.

    A lane over a NIC port that is no longer used, or without any path left, leaves its share to the others.
    """
    lanes = lanes_between(view.topology, source, target)
    count = len(source)
    via = view.topology.via_switches
    begin = view.topology.link_target[lanes.up].astype(np.int64)
    end = view.topology.link_source[lanes.down].astype(np.int64)
    if via is None:
        which = np.arange(len(lanes))
        ends = (begin, end)
        legs, segments = _legs(view, table, [ends])
    else:
        which = np.repeat(np.arange(len(lanes)), len(via))
        middle = np.tile(via.astype(np.int64), len(lanes))
        legs, segments = _legs(view, table, [(begin[which], middle), (middle, end[which])])
    routed = segments.is_routed[legs].all(axis=1)
    # A NIC sends by the ports that are free; about a slow port at the far end nobody tells it.
    weight = view.weight[lanes.up[which]] * (view.weight[lanes.down[which]] > 0) * routed
    parts = _Parts(lanes.row[which], weight, lanes.up[which], legs, lanes.down[which])
    return _assemble(view, table, parts, segments, count)


def hashed_rows(
    view: RoutingView,
    table: BundleTable,
    source: NDArray[Any],
    target: NDArray[Any],
    entropy: NDArray[np.uint64],
    paths: int = 1,
    chosen: tuple[IntArray, NDArray[np.uint64]] | None = None,
) -> Rows:
    """Sends flows over `paths` paths each, chosen by hash and dealt to the planes in turn.

    Args:
        view: the network.
        table: where bundles are kept.
        source: NICs.
        target: NICs, of the same length.
        entropy: uint64 (rows,), of which the paths are made.
        paths: paths of a flow; those which are no longer used leave their share to the others.
        chosen: the port of its source that each row leaves by, and the number of its path from there; None: both are
            hashed out of `entropy`.
    """
    lanes = lanes_between(view.topology, source, target)
    count = len(source)
    first = offsets_of(np.bincount(lanes.row, minlength=count))
    row = np.repeat(np.arange(count), paths)
    size = np.maximum(first[row + 1] - first[row], 1)
    if chosen is None:
        part = np.tile(np.arange(paths, dtype=np.uint64), count)
        with np.errstate(over="ignore"):
            number = scramble(entropy[row] + part, 7)
            turn = scramble(entropy, 8)[row] % size.astype(np.uint64) + part
        lane = first[row] + turn.astype(np.int64) % size
    else:
        port, number = chosen
        ways = _ways_per_port(view, source, size)
        turn = (number % ways.astype(np.uint64)).astype(np.int64)
        lane = first[row] + np.minimum(port * ways + turn, size - 1)
        number = number // ways.astype(np.uint64)
    up, down = lanes.up[lane], lanes.down[lane]
    begin = view.topology.link_target[up].astype(np.int64)
    end = view.topology.link_source[down].astype(np.int64)
    via = view.topology.via_switches
    stops = [(begin, end)]
    if via is not None:
        middle = via.astype(np.int64)[(number % np.uint64(len(via))).astype(np.int64)]
        number //= np.uint64(len(via))
        stops = [(begin, middle), (middle, end)]
    found = []
    for near, far in stops:
        leg, number = hash_segments(view, near, far, number)
        found.append(leg)
    segments, legs = _joined(found)
    routed = segments.is_routed[legs].all(axis=1)
    weight = (view.weight[up] > 0) * (view.weight[down] > 0) * routed.astype(np.float64)
    return _assemble(view, table, _Parts(row, weight, up, legs, down), segments, count)


def _ways_per_port(view: RoutingView, source: NDArray[Any], size: IntArray) -> IntArray:
    """Lanes of each port of a source, of so many in all."""
    ports = np.diff(view.topology.ports.offset)[source].astype(np.int64)
    return np.asarray(np.maximum(size // np.maximum(ports, 1), 1), np.int64)


def usable_ports(view: RoutingView, source: IntArray, target: IntArray) -> BoolArray | None:
    """Which ports of sources lead to targets, as far as the NICs know and routing does.

    Returns:
        bool (rows, ports); None: all do.
    """
    topology = view.topology
    at_nic = topology.ports.link
    knows_all = (view.weight[at_nic] > 0).all() and (view.weight[at_nic ^ 1] > 0).all()
    if knows_all and view.routes is topology.routes():
        return None
    lanes = lanes_between(topology, source, target)
    size = np.bincount(lanes.row, minlength=len(source))
    begin, end = topology.link_target[lanes.up], topology.link_source[lanes.down]
    is_known = (view.weight[lanes.up] > 0) & (view.weight[lanes.down] > 0)
    is_known &= view.sets(begin, end) != UNREACHABLE
    port = (np.arange(len(lanes)) - offsets_of(size)[lanes.row]) // _ways_per_port(view, source, size)[
        lanes.row
    ]
    is_usable = np.zeros((len(source), int(np.diff(topology.ports.offset).max(initial=1))), np.bool_)
    np.logical_or.at(is_usable, (lanes.row, np.minimum(port, is_usable.shape[1] - 1)), is_known)
    return is_usable


def _legs(
    view: RoutingView, table: BundleTable, stops: list[tuple[IntArray, IntArray]]
) -> tuple[IntArray, Segments]:
    """Finds the distinct legs; returns their numbers, int64 (parts, legs of a part), and the segments."""
    nodes = view.topology.num_nodes
    keys = np.stack([near * nodes + far for near, far in stops], axis=1)
    distinct, inverse = np.unique(keys, return_inverse=True)
    return inverse.reshape(keys.shape), spread_segments(view, table, distinct // nodes, distinct % nodes)


def _joined(found: list[Segments]) -> tuple[Segments, IntArray]:
    """Puts segments of several legs into one table."""
    count = len(found[0].survival)
    segments = Segments(
        offsets_of(np.concatenate([np.diff(leg.offset) for leg in found])),
        np.concatenate([leg.bundle for leg in found]),
        np.concatenate([leg.share for leg in found]),
        np.concatenate([leg.survival for leg in found]),
        np.concatenate([leg.is_routed for leg in found]),
    )
    return segments, np.arange(count)[:, None] + count * np.arange(len(found))[None, :]


def _assemble(view: RoutingView, table: BundleTable, parts: _Parts, segments: Segments, count: int) -> Rows:
    total = sums(parts.row, parts.weight, count)
    is_routed = total > 0
    used = parts.weight > 0
    row, up, down, legs = parts.row[used], parts.up[used], parts.down[used], parts.legs[used]
    weight = parts.weight[used] / total[row]
    number = np.arange(len(row))
    owner, bundle, share = [number], [up], [weight]
    arriving = weight * view.is_alive[up]
    for leg in legs.T:
        position, part = gather_rows(segments.offset, leg)
        owner.append(part)
        bundle.append(segments.bundle[position])
        share.append(arriving[part] * segments.share[position])
        arriving = arriving * segments.survival[leg]
    owner.append(number)
    bundle.append(down)
    share.append(arriving)
    arriving = arriving * view.is_alive[down]
    survival = sums(row, arriving, count)
    part, entry, amount = np.concatenate(owner), np.concatenate(bundle), np.concatenate(share)
    latency = _latencies(view, table, part, entry, row, count)
    kept = amount > 0
    key = row[part[kept]] * len(table) + entry[kept]
    distinct, inverse = np.unique(key, return_inverse=True)
    amount = sums(inverse, amount[kept], len(distinct))
    offset = offsets_of(np.bincount(distinct // len(table), minlength=count))
    return Rows(offset, distinct % len(table), amount, np.minimum(survival, 1.0), is_routed, *latency)


def _latencies(
    view: RoutingView, table: BundleTable, part: IntArray, entry: IntArray, row: IntArray, count: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Adds up delays of the parts; returns those of the slowest part of each row."""
    topology = view.topology
    distinct, inverse = np.unique(entry, return_inverse=True)
    owner, link, share = table.expand(distinct)
    whole = np.bincount(owner, weights=share)
    delay = view.delay_ns[link] + topology.switch_latency_ns[topology.link_source[link]]
    mean_delay = np.bincount(owner, weights=share * delay) / whole
    mean_wire = np.bincount(owner, weights=share * BITS_PER_BYTE / topology.link_rate_gbps[link]) / whole
    latency = sums(part, mean_delay[inverse], len(row))
    wire = sums(part, mean_wire[inverse], len(row))
    slowest = np.zeros(len(row))
    np.maximum.at(slowest, part, mean_wire[inverse])
    columns = (np.zeros(count), np.zeros(count), np.zeros(count))
    for column, values in zip(columns, (latency, wire, wire - slowest), strict=True):
        np.maximum.at(column, row, values)
    return columns
