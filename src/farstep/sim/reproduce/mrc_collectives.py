"""Cluster C of the MRC paper: collectives of 64 GPUs, MRC against RoCE (Q20 to Q24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from farstep.sim.reproduce.clusters import cluster_c, host, rival_host
from farstep.sim.reproduce.record import Effort, Experiment, Measure
from farstep.sim.reproduce.runs import link_action, run
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.patterns import all_to_all

__all__ = ["COLLECTIVE_EXPERIMENTS", "ring_over_racks"]

NICS = 64
LOSS = 0.001
LARGE_BYTES, SMALL_BYTES = 128_000_000, 64_000
A2A_LARGE_BYTES, A2A_SMALL_BYTES = 2_000_000, 16_000
"""From each rank to each other."""
SCALE = 125
"""The published sizes go to 16 GB, ours to a 125th of it, and so is what RoCE waits until it sends again."""
RTO_NS = 67_108_864 // SCALE


def ring_over_racks(size_bytes: int, seed: int) -> TaskTable:
    """A ring in which every hop goes to another rack: each rack's NICs are drawn into the turns of its rounds."""
    rng = np.random.default_rng(seed)
    slots = np.stack([rng.permutation(8) for _ in range(8)])  # (rack, round)
    order = [rack * 8 + slots[rack, turn] for turn in range(8) for rack in rng.permutation(8)]
    return ring_all_reduce(_without_rack_hops(np.array(order)), size_bytes)


def _without_rack_hops(order: np.ndarray) -> np.ndarray:
    """Swaps neighbours of one rack, where two rounds meet, for others."""
    count = len(order)
    for index in range(count):
        following = (index + 1) % count
        if order[index] // 8 == order[following] // 8:
            other = (following + 1) % count
            order[following], order[other] = order[other], order[following]
    return order


def _time_us(
    tasks: TaskTable, transport: str, seed: int, *, queue_pairs: int = 1, loss: float = 0.0, rto_ns: int = RTO_NS
) -> float:
    topology = cluster_c(4 if transport == "mrc" else 1)
    into_nics = np.flatnonzero(topology.link_target < topology.num_nics)
    actions = [link_action(0, into_nics, "loss", loss)] if loss else []
    settings = host(64) if transport == "mrc" else {**rival_host(), "queue_pairs": queue_pairs, "rto_ns": rto_ns}
    result = run(topology, tasks, transport, seed=seed, actions=actions, **settings)
    return _lasted_us(result)


def _lasted_us(result: SimResult) -> float:
    return float(result.finish_ns.max() - result.start_ns.min()) / 1000.0


def _ring_ratios(effort: Effort) -> Sequence[Measure]:
    size = effort.scaled(LARGE_BYTES, 16)
    seeds = effort.range(20)
    tables = {seed: ring_over_racks(size, seed) for seed in seeds}
    mrc = {seed: _time_us(tables[seed], "mrc", seed) for seed in seeds}
    found = []
    for pairs, low, high in ((1, 0.4, 0.6), (2, None, None), (4, None, None), (8, None, None), (16, 0.8, 0.98)):
        ratios = [mrc[s] / _time_us(tables[s], "roce", s, queue_pairs=pairs) for s in seeds]
        found.append(Measure.of(f"bandwidth RoCE {pairs} QP / MRC", ratios, low, high))
    few = list(seeds)[:5]
    small = [
        _time_us(ring_over_racks(SMALL_BYTES, s), "mrc", s) / _time_us(ring_over_racks(SMALL_BYTES, s), "roce", s)
        for s in few
    ]
    found.append(Measure.of("the same at 64 KB, 1 QP", small, 0.9, 1.1))
    bus = [2 * (NICS - 1) / NICS * size * 8e-3 / mrc[s] for s in seeds]
    found.append(Measure.of("MRC bus bandwidth Gb/s", bus))
    return found


def _ring_with_loss(effort: Effort) -> Sequence[Measure]:
    large = effort.scaled(2 * LARGE_BYTES, 16)
    seeds = list(effort.range())[:2]
    mrc_large, mrc_small, roce, patient = [], [], [], []
    for seed in seeds:
        table, small = ring_over_racks(large, seed), ring_over_racks(4_000_000, seed)
        mrc_large.append(_time_us(table, "mrc", seed) / _time_us(table, "mrc", seed, loss=LOSS))
        mrc_small.append(_time_us(small, "mrc", seed) / _time_us(small, "mrc", seed, loss=LOSS))
        less = ring_over_racks(effort.scaled(LARGE_BYTES, 16), seed)
        clean = _time_us(less, "roce", seed, queue_pairs=4)
        roce.append(clean / _time_us(less, "roce", seed, queue_pairs=4, loss=LOSS))
        patient.append(clean / _time_us(less, "roce", seed, queue_pairs=4, loss=LOSS, rto_ns=RTO_NS * SCALE))
    return [
        Measure.of("MRC against no loss, 256 MB", mrc_large, 0.9, None),
        Measure.of("MRC against no loss, 4 MB", mrc_small),
        Measure.of("RoCE 4 QP against no loss, 128 MB", roce, None, 0.3),
        Measure.of("the same if it waits 67 ms until it sends again", patient),
    ]


def _a2a_order(effort: Effort) -> Sequence[Measure]:
    found = []
    for name, size in (("2 MB", effort.scaled(A2A_LARGE_BYTES)), ("16 KB", A2A_SMALL_BYTES)):
        seeds = list(effort.range())[:3]
        table = all_to_all(NICS, size, window=8)
        mrc = [_time_us(table, "mrc", s) for s in seeds]
        for pairs in (1, 2, 16):
            ratios = [
                _time_us(table, "roce", s, queue_pairs=pairs) / base for s, base in zip(seeds, mrc, strict=True)
            ]
            found.append(Measure.of(f"time RoCE {pairs} QP / MRC, {name} a pair", ratios, 1.0, None))
    return found


def _a2a_with_loss(effort: Effort) -> Sequence[Measure]:
    table = all_to_all(NICS, effort.scaled(A2A_LARGE_BYTES), window=8)
    roce, mrc = [], []
    for seed in list(effort.range())[:3]:
        roce.append(
            _time_us(table, "roce", seed, queue_pairs=4) / _time_us(table, "roce", seed, queue_pairs=4, loss=LOSS)
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
        setup="8 racks of 8, every hop to another rack, 128 MB; MRC 4 x 100G, RoCE 1 x 400G with ECMP, PFC, DCQCN;"
        " 20 seeds",
        measure=_ring_ratios,
    ),
    "Q21": Experiment(
        title="The same with 0.1 % loss at every NIC",
        published="MRC hardly affected at large sizes, more at small ones; RoCE poor",
        setup="256 MB (published: >= 1 GB), RoCE with 4 QPs",
        measure=_ring_with_loss,
    ),
    "Q23": Experiment(
        title="All-to-all, no loss",
        published="MRC above RoCE at all sizes; RoCE drops slightly above 2 QPs",
        setup="2 MB and 16 KB from each to each, 8 at a time",
        measure=_a2a_order,
    ),
    "Q24": Experiment(
        title="All-to-all with 0.1 % loss",
        published="RoCE barely degraded, its many QPs mask it",
        setup="2 MB from each to each, 4 QPs a pair",
        measure=_a2a_with_loss,
    ),
}
"""By the number of the published result."""
