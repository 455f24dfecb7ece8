"""What a compiled engine reads of a topology: flat arrays of fixed types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from farstep.fabric.topology.model import Topology
from farstep.fabric.topology.routes import RouteTable

Columns = dict[str, npt.NDArray[Any]]


def engine_columns(topology: Topology) -> Columns:
    """Returns a topology and its routes as contiguous arrays.

    Per node: `node_kind` uint8 (0 NIC, 1 switch), `node_tier` int8, `node_plane` int16, `node_site` int16,
    `node_group` int32, `switch_latency_ns` float64, `out_offset` int64 `[nodes + 1]` and `out_links` int32
    `[links]`: the links out of a node in order of its ports.

    Per directed link (the way back of `l` is `l ^ 1`): `link_source` int32, `link_target` int32, `link_rate_gbps`
    float64, `link_latency_ns` float64, `link_plane` int16 (-1 between switches that join planes), `link_port` int32:
    number of the link among those out of its source, so that `out_links[out_offset[source] + port]` is the link.

    Per NIC port, ordered by NIC and plane: `port_offset` int64 `[num_nics + 1]`, `port_link` int32 (out of the
    NIC), `port_plane` int16, `port_switch` int32.

    Routes, in blocks of switches that can reach each other: `node_block` int16, `node_row` int32 and `node_column`
    int32 per node (-1 where there is none); `block_next` int64 `[blocks]`: where the block's table starts in
    `next_set`; `block_columns` int32 `[blocks]`: length of a row; `block_set` int64 `[blocks]`: number of the
    block's first set; `next_set` int32: sets as numbered in the block, -1 unreachable, -2 the switch is the
    destination; `set_offset` int64 `[sets + 1]`, `set_links` int32. Tables of planes built alike are there once.

    The links to choose from at switch `s` on the way to switch `d` of the same block `b` are those of set
    `block_set[b] + next_set[block_next[b] + node_row[s] * block_columns[b] + node_column[d]]`.

    A path is a number. Its digits, least significant first: the pair of ports (the source's uplinks in the plane
    in order, times the destination's ports of that plane, or all if it has none of that plane; pairs that cannot
    reach each other left out), then, if `via_switch` is not empty, which of those switches to visit first, then at
    each hop which link of the set. `num_planes`, `num_nics`: int64 `[1]`. `via_switch`: int32.
    """
    ports = topology.ports
    link_port = np.empty(topology.num_links, np.int32)
    out_source = topology.link_source[topology.out_order]
    link_port[topology.out_order] = np.arange(topology.num_links) - topology.out_offset[out_source]
    via = topology.via_switches if topology.via_switches is not None else np.zeros(0, np.int32)
    columns: dict[str, tuple[npt.ArrayLike, npt.DTypeLike]] = {
        "num_nics": ([topology.num_nics], np.int64),
        "num_planes": ([topology.num_planes], np.int64),
        "node_kind": (topology.node_kind, np.uint8),
        "node_tier": (topology.node_tier, np.int8),
        "node_plane": (topology.node_plane, np.int16),
        "node_site": (topology.node_site, np.int16),
        "node_group": (topology.node_group, np.int32),
        "switch_latency_ns": (topology.switch_latency_ns, np.float64),
        "out_offset": (topology.out_offset, np.int64),
        "out_links": (topology.out_order, np.int32),
        "link_source": (topology.link_source, np.int32),
        "link_target": (topology.link_target, np.int32),
        "link_rate_gbps": (topology.link_rate_gbps, np.float64),
        "link_latency_ns": (topology.link_latency_ns, np.float64),
        "link_plane": (topology.link_plane, np.int16),
        "link_port": (link_port, np.int32),
        "port_offset": (ports.offset, np.int64),
        "port_link": (ports.link, np.int32),
        "port_plane": (ports.plane, np.int16),
        "port_switch": (ports.switch, np.int32),
        "via_switch": (via, np.int32),
    }
    return _contiguous(columns) | route_columns(topology.routes())


def route_columns(routes: RouteTable) -> Columns:
    """Returns the arrays of `engine_columns` that say routes, of any table: to replace them when routing reacts.

    Ports of NICs stay as they are: a port that routing found dead is not left out of the pairs of ports.
    """
    sizes = np.array([block.num_sets for block in routes.blocks], np.int64)
    block_set = np.r_[np.int64(0), np.cumsum(sizes)[:-1]]
    tables: list[npt.NDArray[np.int32]] = []
    block_next = []
    starts: dict[int, int] = {}
    total = 0
    for block in routes.blocks:
        if id(block.next_set) not in starts:
            starts[id(block.next_set)] = total
            tables.append(block.next_set.ravel())
            total += block.next_set.size
        block_next.append(starts[id(block.next_set)])
    link_base = np.cumsum([0, *(len(block.set_links) for block in routes.blocks)])
    set_offset = np.concatenate(
        [block.set_offset[:-1] + base for block, base in zip(routes.blocks, link_base[:-1], strict=True)]
        + [link_base[-1:]]
    )
    return _contiguous(
        {
            "node_block": (routes.node_block, np.int16),
            "node_row": (routes.node_row, np.int32),
            "node_column": (routes.node_column, np.int32),
            "block_next": (block_next, np.int64),
            "block_columns": ([block.next_set.shape[1] for block in routes.blocks], np.int32),
            "block_set": (block_set, np.int64),
            "next_set": (np.concatenate(tables), np.int32),
            "set_offset": (set_offset, np.int64),
            "set_links": (np.concatenate([block.set_links for block in routes.blocks]), np.int32),
        }
    )


def _contiguous(columns: dict[str, tuple[npt.ArrayLike, npt.DTypeLike]]) -> Columns:
    return {key: np.ascontiguousarray(value, dtype) for key, (value, dtype) in columns.items()}
