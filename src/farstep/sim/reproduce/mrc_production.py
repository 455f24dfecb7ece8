"""Production clusters of the MRC paper, cut down: starts, flaps, reboots (Q1 to Q7)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology
from farstep.sim.faults import LinkAction
from farstep.sim.reproduce.clusters import four_planes, host
from farstep.sim.reproduce.record import Effort, Experiment, Measure
from farstep.sim.reproduce.rings import SEND_QUEUE, rings_of_two
from farstep.sim.reproduce.runs import both_ways, link_action, run, streams
from farstep.sim.result import SimResult
from farstep.sim.tasks import TaskTable
from farstep.sim.workloads.collectives import ring_all_reduce
from farstep.sim.workloads.jobs import repeat
from farstep.sim.workloads.patterns import derangement

__all__ = ["PRODUCTION_EXPERIMENTS", "interleaved_ring", "step_times_us"]

RTO_US = 100.0
FLAPS_PER_MINUTE = 14
"""The most that the paper plots, in a fabric that one job fills."""


def interleaved_ring(topology: Topology, ranks: int, size_bytes: int, steps: int) -> TaskTable:
    """An all-reduce, over and over, of a ring whose every hop goes to another rack."""
    ports = topology.ports
    rack = ports.switch[ports.offset[:-1]]
    racks = np.unique(rack)
    per_rack = ranks // len(racks)
    members = np.stack([np.flatnonzero(rack == each)[:per_rack] for each in racks])
    return repeat(ring_all_reduce(members.T.ravel(), size_bytes), steps, barrier=True)


def step_times_us(result: SimResult) -> NDArray[np.float64]:
    """Duration of every complete step."""
    return np.asarray(result.step_times_ns(), np.float64) / 1000.0


def _between_switches(topology: Topology) -> NDArray[np.int64]:
    """Cables between T0 and T1, by their upward link."""
    up = (topology.node_tier[topology.link_source] == 0) & (topology.node_tier[topology.link_target] == 1)
    return np.flatnonzero(up)


def _start_with_dead_links(effort: Effort) -> Sequence[Measure]:
    topology = four_planes(4 if effort.is_quick else 16, 16)
    per_qp, early, soon, late = [], [], [], []
    for seed in list(effort.range())[:5]:
        rng = np.random.default_rng(seed)
        up = _between_switches(topology)
        dead = rng.choice(up, max(1, round(len(up) * 0.01)), replace=False)
        nics = np.arange(topology.num_nics)
        # Four QPs a NIC, to NICs all over.
        targets = [nics, *(derangement(len(nics), 10 * seed + k) for k in range(4))][1:]
        tasks = streams(np.tile(nics, 4), np.concatenate(targets), 500_000, messages=effort.scaled(16, 4))
        action = link_action(0, both_ways(dead), "down", is_signalled=False)
        settings: dict[str, Any] = {**host(16), "sample_interval_ns": 5_000}
        result = run(topology, tasks, seed=seed, actions=[action], **settings)
        key = result.tasks.connection_key
        losses = np.bincount(key, weights=result.dropped)
        per_qp.append(float(losses.mean()))
        hit = losses > 0
        early.append(float(losses[hit].mean()) if hit.any() else 0.0)
        series = np.asarray(result.series["dropped"], np.float64)
        parts = np.array([part.sum() for part in np.array_split(series, 6)])
        share = 100 * parts / max(float(series.sum()), 1.0)
        soon.append(float(share[0]))
        late.append(float(share[3:].sum()))
    return [
        Measure.of("losses per QP until dead EVs are gone, mean", per_qp, None, 5.0),
        Measure.of("the same of QPs that lose any", early),
        Measure.of("losses in the first sixth of the run %", soon, 90.0),
        Measure.of("losses in its second half %", late, None, 5.0),
    ]


def _flaps(effort: Effort) -> Sequence[Measure]:
    topology = four_planes(4, 8)
    steps = 6 if effort.is_quick else 24
    tasks = interleaved_ring(topology, 32, 16_000_000, steps)
    delay, worst = [], []
    for seed in effort.range():
        clean = run(topology, tasks, seed=seed, probe_interval_ns=100_000, **host(32))
        usual = step_times_us(clean)
        end_us = float(usual.sum())
        rng = np.random.default_rng(seed)
        actions: list[LinkAction] = []
        flaps = max(1, steps // 4)
        for at in np.sort(rng.uniform(0, end_us * 0.9, flaps)):
            cable = both_ways(rng.choice(_between_switches(topology), 1))
            actions += [
                link_action(at, cable, "down", is_signalled=False),
                link_action(at + 1_000, cable, "up", is_signalled=False),
            ]
        actions.sort(key=lambda action: action.time_ns)
        flapped = run(topology, tasks, seed=seed, actions=actions, probe_interval_ns=100_000, **host(32))
        times = step_times_us(flapped)
        delay.append(float(times.sum() - usual.sum()) / flaps)
        worst.append(100 * float(times.max() / usual.mean() - 1))
    per_minute = [100 * FLAPS_PER_MINUTE * each / 60e6 for each in delay]
    return [
        Measure.of("job later by us for each flap", delay),
        Measure.of("time longer at 14 flaps a minute %", per_minute, None, 1.0),
        Measure.of("longest step longer by %", worst),
    ]


GLITCH_FROM_US, GLITCH_US = 4_000.0, 20_000.0


@functools.lru_cache(maxsize=8)
def _glitch(seed: int) -> SimResult:
    """Ten flaps of a T0's transceiver in 20 ms, which stand for the minute; remapping takes 1 ms for 3 s."""
    topology = four_planes(2, 8)
    # The second of four NICs behind the transceiver takes no part.
    ranks = np.array([0, 2, 3, *range(4, 16)])
    order = np.concatenate([ranks[ranks % 8 == k] for k in range(8)])
    table = repeat(rings_of_two(order, 60_000_000), 26, barrier=True)
    links = topology.resolve("transceiver:t0/p1/0/0")
    actions = []
    for k in range(10):
        at = GLITCH_FROM_US + k * GLITCH_US / 10
        actions += [
            link_action(at, both_ways(links), "down"),
            link_action(at + 1_000, both_ways(links), "up"),
        ]
    settings: dict[str, Any] = {
        **host(32),
        "send_queue": SEND_QUEUE,
        "remap_delay_ns": 1_000_000,
        "probe_interval_ns": 100_000,
        "sample_interval_ns": 200_000,
    }
    return run(topology, table, seed=seed, actions=actions, **settings)


def _transceiver(effort: Effort) -> Sequence[Measure]:
    drops, after, failed = [], [], []
    for seed in list(effort.range())[:5]:
        result = _glitch(seed)
        times = step_times_us(result)
        ends = np.cumsum(times)
        starts = ends - times
        usual = float(np.median(times[ends < GLITCH_FROM_US]))
        inside = (starts >= GLITCH_FROM_US) & (ends <= GLITCH_FROM_US + GLITCH_US)
        past = starts > GLITCH_FROM_US + GLITCH_US + 6_000
        drops.append(100 * float(1 - usual / times[inside].mean()))
        if past.any():
            after.append(float(usual / times[past].mean()))
        failed.append(float((~result.finished).sum()))
    found = [
        Measure.of("step rate lower during the flaps by %", drops, 15.0, 35.0, 25.0),
        Measure.of("unfinished flows", failed, None, 0.0),
    ]
    if after:
        found.insert(1, Measure.of("step rate after against before", after, 0.98))
    return found


def _losses_of_nodes(effort: Effort) -> Sequence[Measure]:
    shares, senders = [], []
    for seed in list(effort.range())[:3]:
        result = _glitch(seed)
        lost = result.dropped.astype(np.float64)
        into = np.bincount(result.tasks.target, weights=lost, minlength=16)
        out = np.bincount(result.tasks.source, weights=lost, minlength=16)
        total = max(lost.sum(), 1.0)
        shares.append(100 * float((into + out)[[0, 2, 3]].sum() / total))
        senders.append(float(lost.sum()))
    return [
        Measure.of("losses of flows from or to the flapped NICs %", shares),
        Measure.of("packets lost in all", senders),
    ]


def _t1_dies(effort: Effort) -> Sequence[Measure]:
    spines, evs = 32, 8
    topology = four_planes(4, spines, 16)
    expected = 100 * (1 - (1 - 1 / spines) ** evs)
    touched, dip, restored, lost = [], [], [], []
    for seed in effort.range():
        nics = np.arange(64)
        rng = np.random.default_rng(seed)
        # Eight QPs a NIC, all across T1.
        shifts, turns = rng.integers(1, 4, 8), rng.integers(0, 16, 8)
        target = np.concatenate(
            [(nics // 16 + s) % 4 * 16 + (nics + t) % 16 for s, t in zip(shifts, turns, strict=True)]
        )
        source = np.tile(nics, 8)
        tasks = streams(source, target, 1_000_000, messages=40)
        links = both_ways(topology.resolve("switch:t1/p0/5"))
        actions = [
            link_action(500, links, "down", is_signalled=False),
            link_action(1_500, links, "up", is_signalled=False),
        ]
        settings: dict[str, Any] = {**host(evs), "probe_interval_ns": 100_000, "sample_interval_ns": 10_000}
        result = run(topology, tasks, seed=seed, actions=actions, until_ns=2_500_000, **settings)
        losses = np.bincount(result.tasks.connection_key, weights=result.dropped)
        touched.append(100 * float((losses > 0).mean()))
        lost.append(float(losses[losses > 0].mean()))
        good = np.asarray(result.series["goodput_bytes"], np.float64)
        usual = np.median(good[20:49])
        # Samples of 10 us hold one message more or less; five of them together do not.
        low = np.convolve(good, np.ones(5) / 5, "same")[50:150] < 0.98 * usual
        dip.append(10.0 * float(np.flatnonzero(low).max() + 1 if low.any() else 0))
        restored.append(100 * float(1 - good[151:240].mean() / usual))
    return [
        Measure.of("QPs touched %", touched, expected - 3, expected + 3, expected),
        Measure.of("losses of a touched QP", lost),
        Measure.of("us until goodput over 50 us stays at 98 %", dip, None, RTO_US),
        Measure.of("goodput lower at the restore by %", restored, None, 1.0),
    ]


def _remap(effort: Effort) -> Sequence[Measure]:
    """A NIC port fails in an all-reduce: how much longer the step takes, by the time of remapping."""
    topology = four_planes(4, 8)
    tasks = interleaved_ring(topology, 32, 16_000_000, 3)
    port = both_ways([topology.nic_links(0)[1]])
    found = []
    for remap_us in (0, 100, 1_000, 5_000):
        longer = []
        for seed in list(effort.range())[:3]:
            usual = step_times_us(run(topology, tasks, seed=seed, **host(32)))
            action = link_action(float(usual[0]) * 1.2, port, "down")
            settings: dict[str, Any] = {**host(32), "remap_delay_ns": remap_us * 1000}
            times = step_times_us(run(topology, tasks, seed=seed, actions=[action], **settings))
            longer.append(float(times[1] - usual[1]))
        found.append(Measure.of(f"step longer by us, remapping {remap_us:,} us", longer))
    return found


PRODUCTION_EXPERIMENTS: Mapping[str, Experiment] = {
    "Q1": Experiment(
        title="Start of a job with unknown dead links",
        published="fewer than 5 lost packets per QP in the first minute, then hardly any",
        setup="256 NICs, 4 planes, 1 % of T0-T1 links dead, 64 + 32 EVs a QP, 4 QPs a NIC",
        measure=_start_with_dead_links,
    ),
    "Q2": Experiment(
        title="T0-T1 flaps while a job runs",
        published="0 to 14 per minute, no effect on the job",
        setup="ring of 32, a flap of 1 ms every 4 steps, scaled to 14 per minute",
        measure=_flaps,
    ),
    "Q3": Experiment(
        title="A T0's transceiver flaps: 4 NICs, 3 of the job",
        published="-25 % in that minute, full at once after it, no QP failed",
        setup="ring of 15, 60 MB in parts so that bandwidth decides, 10 flaps in 20 ms for the minute, remapping"
        " 1 ms for 3 s",
        measure=_transceiver,
    ),
    "Q4": Experiment(
        title="Losses of the worst nodes in Q3",
        published="up to 7,000 packets/s on flapped nodes, fewer on their senders",
        setup="as Q3",
        measure=_losses_of_nodes,
    ),
    "Q5": Experiment(
        title="A T1 dies and comes back",
        published="a quarter of the QPs touched; a dip at the death, none at the restore",
        setup="4 planes, 32 uplinks, 8 EVs a plane: 22 % expected; blackhole of 1 ms",
        measure=_t1_dies,
    ),
    "Q6": Experiment(
        title="NIC-port failure: time to remap",
        published="a few seconds (CX8)",
        setup="ring of 32; a port fails in the second step; remapping 0 to 5 ms",
        measure=_remap,
    ),
    "Q7": Experiment(
        title="Causes of switch failures",
        published="17 % are software bugs",
        setup="",
        measure=None,
        note="a statistic of failures, not a behaviour of a network; fault scripts take any mix",
    ),
}
"""By the number of the published result."""
