"""Cluster C of the MRC paper: collectives of 64 GPUs, MRC against RoCE (Q20 to Q24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farstep.sim.reproduce.clusters import PAYLOAD_SHARE, cluster_c, host, rival_host
from farstep.sim.reproduce.record import Effort, Experiment, Measure
from farstep.sim.reproduce.rings import SEND_QUEUE, rings_of_nodes
from farstep.sim.reproduce.runs import link_action, run
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.patterns import all_to_all

__all__ = ["COLLECTIVE_EXPERIMENTS"]

NICS = 64
LOSS = 0.001
HUGE_BYTES, LARGE_BYTES, SMALL_BYTES = 1_000_000_000, 128_000_000, 4_000_000
"""Published are 4 MB to 16 GB."""
A2A_LARGE_BYTES, A2A_SMALL_BYTES = 2_000_000, 64_000
"""From each rank to each other; the small one makes 4 MB, the least that is published."""
VERBS_RTO_NS = 67_108_864
SCALE = 125
"""The all-to-alls that are published go to 16 GB, ours to a 125th of it, and so is what RoCE waits there."""
RTO_NS = VERBS_RTO_NS // SCALE


def _time_us(
    tasks: TaskTable,
    transport: str,
    seed: int,
    *,
    queue_pairs: int = 1,
    loss: float = 0.0,
    rto_ns: int = RTO_NS,
    leaves: int = 8,
    **changes: Any,
) -> float:
    topology = cluster_c(4 if transport == "mrc" else 1, leaves)
    into_nics = np.flatnonzero(topology.link_target < topology.num_nics)
    actions = [link_action(0, into_nics, "loss", loss)] if loss else []
    settings = (
        {**host(64), "send_queue": SEND_QUEUE}
        if transport == "mrc"
        else {**rival_host(), "queue_pairs": queue_pairs, "rto_ns": rto_ns}
    )
    result = run(topology, tasks, transport, seed=seed, actions=actions, **{**settings, **changes})
    return _lasted_us(result)


def _lasted_us(result: SimResult) -> float:
    return float(result.finish_ns.max() - result.start_ns.min()) / 1000.0


def _ring_ratios(effort: Effort) -> Sequence[Measure]:
    size = effort.scaled(LARGE_BYTES, 16)
    table = rings_of_nodes(size)
    seeds = effort.range(20)
    mrc = {seed: _time_us(table, "mrc", seed) for seed in seeds}
    found = []
    for pairs, low, high in (
        (1, 0.4, 0.6),
        (2, None, None),
        (4, None, None),
        (8, None, None),
        (16, 0.8, 0.98),
    ):
        ratios = [mrc[s] / _time_us(table, "roce", s, queue_pairs=pairs) for s in seeds]
        found.append(Measure.of(f"bandwidth RoCE {pairs} QP / MRC", ratios, low, high))
    few = list(seeds)[:5]
    base = [_time_us(table, "mrc", s, leaves=4) for s in few]
    for pairs in (1, 8, 16):
        ratios = [
            b / _time_us(table, "roce", s, queue_pairs=pairs, leaves=4)
            for b, s in zip(base, few, strict=True)
        ]
        found.append(Measure.of(f"{pairs} QP, two nodes on a T0", ratios))
    small = rings_of_nodes(SMALL_BYTES)
    ratios = [_time_us(small, "mrc", s) / _time_us(small, "roce", s) for s in few]
    found.append(Measure.of("the same at 4 MB, 1 QP", ratios, 0.9, 1.1))
    found.append(Measure.of("MRC of its line", [_line_us(size) / mrc[s] for s in seeds]))
    return found


def _line_us(size_bytes: int) -> float:
    """What the bytes of one NIC take on its line."""
    nodes = NICS // 8
    return 2 * (nodes - 1) / nodes * size_bytes / 8 * 8e-3 / (400.0 * PAYLOAD_SHARE)


def _ring_with_loss(effort: Effort) -> Sequence[Measure]:
    large, small = rings_of_nodes(effort.scaled(HUGE_BYTES, 16)), rings_of_nodes(SMALL_BYTES)
    seeds = list(effort.range())[:2]

    def kept(table: TaskTable, transport: str, **changes: Any) -> list[float]:
        clean = [_time_us(table, transport, s, **changes) for s in seeds]
        return [
            c / _time_us(table, transport, s, loss=LOSS, **changes) for c, s in zip(clean, seeds, strict=True)
        ]

    return [
        Measure.of("MRC against no loss, 1 GB", kept(large, "mrc"), 0.9, None),
        Measure.of("MRC against no loss, 4 MB", kept(small, "mrc")),
        Measure.of("RoCE 1 QP against no loss, 1 GB", kept(large, "roce", rto_ns=VERBS_RTO_NS), None, 0.3),
        Measure.of(
            "RoCE 4 QP against no loss, 1 GB",
            kept(large, "roce", queue_pairs=4, rto_ns=VERBS_RTO_NS),
            None,
            0.3,
        ),
    ]


def _a2a_order(effort: Effort) -> Sequence[Measure]:
    found = []
    for name, size in (("2 MB", effort.scaled(A2A_LARGE_BYTES)), ("64 KB", A2A_SMALL_BYTES)):
        seeds = list(effort.range())[:3]
        table = all_to_all(NICS, size, window=8)
        mrc = [_time_us(table, "mrc", s) for s in seeds]
        for pairs in (1, 2, 16):
            ratios = [
                _time_us(table, "roce", s, queue_pairs=pairs) / base
                for s, base in zip(seeds, mrc, strict=True)
            ]
            found.append(Measure.of(f"time RoCE {pairs} QP / MRC, {name} a pair", ratios, 1.0, None))
    return found


def _a2a_with_loss(effort: Effort) -> Sequence[Measure]:
    table = all_to_all(NICS, effort.scaled(A2A_LARGE_BYTES), window=8)
    roce, mrc = [], []
    for seed in list(effort.range())[:3]:
        roce.append(
            _time_us(table, "roce", seed, queue_pairs=4)
            / _time_us(table, "roce", seed, queue_pairs=4, loss=LOSS)
        )
        mrc.append(_time_us(table, "mrc", seed) / _time_us(table, "mrc", seed, loss=LOSS))
    return [
        Measure.of("RoCE 4 QP against no loss", roce, 0.85, None),
        Measure.of("MRC against no loss", mrc),
    ]


COLLECTIVE_EXPERIMENTS: Mapping[str, Experiment] = {
    "Q20": Experiment(
        title="Ring all-reduce, 64 GPUs, no loss",
        published="RoCE with 1 QP about half of what can be had; little gain beyond 8 QPs; MRC with 1 QP above RoCE"
        " with 16; equal at small sizes",
        setup="8 nodes of 8 on a T0 each, a ring from node to node on every NIC, doubled as NCCL does it, 128 MB;"
        " MRC 4 x 100G, RoCE 1 x 400G with ECMP, PFC, DCQCN; 20 seeds",
        measure=_ring_ratios,
        note="the slowest of 64 links decides, and how many flows meet there depends on how many nodes a T0 has,"
        " which is not published: with one, 8 NICs and 8 uplinks, RoCE has less than half; with two it has the half"
        " that is published, and with 8 QPs all of its line. MRC has longer headers (SRv6, 1.5 %), and its two"
        " connections to each NIC mark each other's paths: see Q33. At 4 MB a packet is later over 100G",
    ),
    "Q21": Experiment(
        title="The same with 0.1 % loss at every NIC",
        published="MRC hardly affected at large sizes, more at small ones; RoCE poor",
        setup="as Q20 with 1 GB (published: >= 1 GB) and 4 MB, RoCE waits the 67 ms of the verbs until it sends"
        " again where nothing follows what was lost",
        measure=_ring_with_loss,
    ),
    "Q23": Experiment(
        title="All-to-all, no loss",
        published="MRC above RoCE at all sizes; RoCE drops slightly above 2 QPs",
        setup="2 MB and 64 KB (4 MB in all, the least that is published) from each to each, 8 at a time",
        measure=_a2a_order,
        note="a packet is sooner over a port of 400G than over one of 100G, by 257 ns at each of 4 hops, and 16 QPs"
        " part 64 KB so finely that RoCE hardly collides; that many QPs make RoCE slower, as published, is a matter"
        " of its NICs, which are not modelled",
    ),
    "Q24": Experiment(
        title="All-to-all with 0.1 % loss",
        published="RoCE barely degraded, its many QPs mask it",
        setup="2 MB from each to each, 4 QPs a pair",
        measure=_a2a_with_loss,
    ),
}
"""By the number of the published result."""
