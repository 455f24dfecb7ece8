"""Experiments on what the MRC papers leave open; `questions` puts them on a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.fabric.topology import Topology, leaf_spine
from farstep.sim.reproduce.clusters import (
    CABLE_NS,
    SWITCH_NS,
    cluster_b,
    four_planes,
    host,
    rival_host,
)
from farstep.sim.reproduce.mrc_production import interleaved_ring, step_times_us
from farstep.sim.reproduce.plot import Plot, cdf
from farstep.sim.reproduce.record import Effort, Measure
from farstep.sim.reproduce.runs import both_ways, flow_times_us, goodput_gbps, link_action, run, streams
from farstep.sim.result import SimResult
from farstep.sim.workloads.patterns import derangement

__all__ = ["RUNS", "Answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came out of an experiment.

    Attributes:
        measures: the figures, over seeds.
        plots: by the name of their file.
    """

    measures: tuple[Measure, ...]
    plots: Mapping[str, Plot]


def _middle(values: Sequence[float]) -> float:
    return float(np.median(values))


def _fabric_400g(racks: int = 8) -> Topology:
    """NICs of 400G in racks of 16 over 16 spines, one plane, as in cluster D but larger."""
    return leaf_spine(
        leaves=racks,
        spines=16,
        nics_per_leaf=16,
        planes=1,
        port_gbps=400.0,
        link_latency_ns=CABLE_NS,
        switch_latency_ns=SWITCH_NS,
    )


def _incast(topology: Topology, senders: int, seed: int, **settings: Any) -> SimResult:
    """So many of other racks send 1 MB each to NIC 0 at once."""
    rng = np.random.default_rng(seed)
    sources = rng.choice(np.arange(16, topology.num_nics), senders, replace=False)
    return run(topology, streams(sources, np.zeros(senders, int), 1_000_000), seed=seed, **settings)


def _payload_bound_us(senders: int) -> float:
    """Time in which a 400G port delivers what they send."""
    return senders * math.ceil(1_000_000 / 4096) * 4262 * 8 / 400e3


def incast_ecn(effort: Effort) -> Answer:
    """(a) Marks at the last hop, and quick adapt, under incasts of 4 to 64."""
    topology = _fabric_400g()
    counts = (4, 7, 9, 12, 16, 24, 32, 48, 64)
    variants = {
        "no ECN, QA (MRC)": {"last_hop_ecn": False, "quick_adapt": True},
        "no ECN, no QA": {"last_hop_ecn": False, "quick_adapt": False},
        "ECN, QA": {"last_hop_ecn": True, "quick_adapt": True},
        "ECN, no QA": {"last_hop_ecn": True, "quick_adapt": False},
    }
    trims: dict[str, list[float]] = {}
    last: dict[str, list[float]] = {}
    measures = []
    for name, knobs in variants.items():
        trims[name], last[name] = [], []
        for senders in counts:
            found = [_incast(topology, senders, seed, **{**host(64), **knobs}) for seed in effort.range()]
            shares = [100 * float(r.trims.sum()) / float(r.packets.sum()) for r in found]
            ends = [float(r.finish_ns.max()) / 1000 / _payload_bound_us(senders) for r in found]
            trims[name].append(_middle(shares))
            last[name].append(_middle(ends))
            if senders in (7, 16, 64):
                measures += [
                    Measure.of(f"{senders}:1, {name}: packets trimmed %", shares),
                    Measure.of(f"{senders}:1, {name}: last finish over bound", ends),
                ]
    axis = np.array(counts, float)
    return Answer(
        measures=tuple(measures),
        plots={
            "question-a-trims": Plot(
                title="Incast of 1 MB each: packets trimmed",
                x="senders",
                y="% of packets sent",
                lines={name: (axis, np.array(values)) for name, values in trims.items()},
                y_from_zero=True,
            ),
            "question-a-finish": Plot(
                title="Incast of 1 MB each: last finish against the bound",
                x="senders",
                y="time / bound",
                lines={name: (axis, np.array(values)) for name, values in last.items()},
            ),
        },
    )


def ev_count(effort: Effort) -> Answer:
    """(b) How many EVs: QPs that a dead T1 touches, and how evenly a permutation is spread."""
    topology = four_planes(4, 32, 16)
    counts = (1, 2, 4, 8, 16, 32, 64)
    touched: list[float] = []
    tails: list[float] = []
    measures = []
    nics = np.arange(64)
    for evs in counts:
        shares, times, lost = [], [], []
        for seed in effort.range():
            rng = np.random.default_rng(seed)
            target = (nics // 16 + 1 + rng.integers(0, 3)) % 4 * 16 + (nics + rng.integers(0, 16)) % 16
            # Four QPs a NIC and two thirds of its rate would hide nothing: one message of 8 MB each, all at once.
            tasks = streams(nics, target, 2_000_000, queue_pairs=4)
            calm = run(topology, tasks, seed=seed, **host(evs))
            times.append(float(np.percentile(flow_times_us(calm), 99)))
            action = link_action(
                60, both_ways(topology.resolve("switch:t1/p0/7")), "down", is_signalled=False
            )
            hit = run(topology, tasks, seed=seed, actions=[action], **host(evs))
            losses = np.bincount(hit.tasks.connection_key, weights=hit.dropped)
            shares.append(100 * float((losses > 0).mean()))
            lost.append(float(losses.sum()))
        touched.append(_middle(shares))
        tails.append(_middle(times))
        measures += [
            Measure.of(f"{evs} EVs a plane: QPs touched %", shares),
            Measure.of(f"{evs} EVs a plane: packets lost in all", lost),
            Measure.of(f"{evs} EVs a plane: P99 us, healthy", times),
        ]
    axis = np.array(counts, float)
    expected = 100 * (1 - (1 - 1 / 32) ** axis)
    return Answer(
        measures=tuple(measures),
        plots={
            "question-b-touched": Plot(
                title="QPs touched by one dead T1 of 32",
                x="EVs of a QP in each plane",
                y="% of QPs",
                lines={
                    "simulated": (axis, np.array(touched)),
                    "1 - (1 - 1/32)^EVs (dashed)": (axis, expected),
                },
                log_x=True,
                y_from_zero=True,
            ),
            "question-b-tail": Plot(
                title="Permutation across racks, 4 x 2 MB a NIC, healthy: P99",
                x="EVs of a QP in each plane",
                y="us",
                lines={"P99": (axis, np.array(tails))},
                log_x=True,
            ),
        },
    )


def probe_cadence(effort: Effort) -> Answer:
    """(c) One of 16 uplinks flaps; how much is lost, by the time between probes."""
    topology = cluster_b()
    intervals_us = (30, 100, 300, 1_000, 3_000)
    end_us = 8_000 if effort.is_quick else 20_000
    uplink = both_ways(np.flatnonzero(_up_mask(topology) & (topology.link_plane == 0))[:1])
    lines: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    measures = []
    for period, reserve in ((200, 8), (200, 0), (1_000, 0), (5_000, 0)):
        name = f"flap every {period:,} us, {reserve} EVs in reserve"
        losses_by: list[float] = []
        actions = []
        for at in np.arange(500.0, end_us, period):
            actions += [
                link_action(at, uplink, "down", is_signalled=False),
                link_action(at + period / 2, uplink, "up", is_signalled=False),
            ]
        for interval in intervals_us:
            lost, rates = [], []
            for seed in list(effort.range())[:3]:
                settings: dict[str, Any] = {
                    **host(16),
                    "backup_evs_per_plane": reserve,
                    "probe_interval_ns": interval * 1000,
                    "sample_interval_ns": 100_000,
                    "send_queue": 8,
                }
                tasks = streams([0], [40], 10_000_000, messages=400)
                result = run(topology, tasks, seed=seed, actions=actions, until_ns=end_us * 1000, **settings)
                lost.append(float(result.counters["dropped"]) / ((end_us - 500) / 1000))
                rates.append(goodput_gbps(result, 500, end_us) / (800 * 4096 / 4262))
            losses_by.append(_middle(lost))
            measures += [
                Measure.of(f"{name}, probes every {interval:,} us: packets lost per ms", lost),
                Measure.of(f"{name}, probes every {interval:,} us: goodput of line", rates),
            ]
        lines[f"{period / 1000:g} ms, {reserve} spare"] = (np.array(intervals_us, float), np.array(losses_by))
    return Answer(
        measures=tuple(measures),
        plots={
            "question-c-losses": Plot(
                title="One flapping uplink of 16, one QP at 800G: packets lost",
                x="time between probes of an EV, us",
                y="packets per ms",
                lines=lines,
                log_x=True,
                y_from_zero=True,
            )
        },
    )


def _up_mask(topology: Topology) -> NDArray[np.bool_]:
    return np.asarray(
        (topology.node_tier[topology.link_source] == 0) & (topology.node_tier[topology.link_target] == 1)
    )


def unequal_planes(effort: Effort) -> Answer:
    """(d) Some uplinks of one plane are gone: what a permutation at full load has left."""
    topology = four_planes(4, 16)
    shares_by, usable_by, measures = [], [], []
    nics = np.arange(64)
    links = np.flatnonzero(_up_mask(topology) & (topology.link_plane == 0))
    by_rack = [links[topology.link_source[links] == rack] for rack in np.unique(topology.link_source[links])]
    for count in (0, 1, 2, 4, 8, 12):
        shares, usable = [], []
        for seed in list(effort.range())[:3]:
            rng = np.random.default_rng(seed)
            dead = [rng.choice(own, count, replace=False) for own in by_rack]
            # A path needs a T1 to which both racks still have their link.
            lost = [set(topology.link_target[each].tolist()) for each in dead]
            usable.append(float(np.mean([1 - len(lost[k] | lost[(k + 1) % 4]) / 16 for k in range(4)])))
            tasks = streams(nics, (nics + 16) % 64, 2_000_000, messages=60)
            cut = both_ways(np.concatenate(dead)) if count else np.zeros(0, np.int32)
            actions = [link_action(0, cut, "down", is_signalled=False)] if count else []
            settings: dict[str, Any] = {**host(32), "sample_interval_ns": 50_000}
            result = run(topology, tasks, seed=seed, actions=actions, until_ns=700_000, **settings)
            shares.append(goodput_gbps(result, 300, 700) / 64 / (800 * 4096 / 4262))
        shares_by.append(_middle(shares))
        usable_by.append(_middle(usable))
        measures += [
            Measure.of(f"{count} of 16 uplinks of plane 0 gone: goodput of line", shares),
            Measure.of(f"{count} of 16 uplinks of plane 0 gone: paths of plane 0 left", usable),
        ]
    left = np.array(usable_by)
    gone = 100 * (1 - left)
    return Answer(
        measures=tuple(measures),
        plots={
            "question-d-goodput": Plot(
                title="Permutation across racks, 4 planes, uplinks of one plane gone",
                x="% of the plane's paths between two racks gone",
                y="goodput of line",
                lines={
                    "simulated": (gone, np.array(shares_by)),
                    "all that is left (dashed)": (gone, shares_by[0] * (3 + left) / 4),
                    "planes kept equal (dashed)": (gone, shares_by[0] * left),
                },
                y_from_zero=True,
            )
        },
    )


def remap_delay(effort: Effort) -> Answer:
    """(e) A NIC port fails in an all-reduce: the steps after it, by the time of remapping."""
    topology = four_planes(2, 8)
    tasks = interleaved_ring(topology, 16, 32_000_000, 4)
    port = both_ways([topology.nic_links(0)[1]])
    delays_us = (0, 30, 100, 300, 1_000, 10_000)
    later: dict[str, list[float]] = {"NIC sees it": [], "nobody tells (silent)": []}
    measures = []
    for name in later:
        for delay in delays_us if name == "NIC sees it" else (0,):
            total, steady = [], []
            for seed in list(effort.range())[:3]:
                usual = step_times_us(run(topology, tasks, seed=seed, **host(32)))
                action = link_action(float(usual[0]) * 1.3, port, "down", is_signalled=name == "NIC sees it")
                settings: dict[str, Any] = {**host(32), "remap_delay_ns": delay * 1000}
                times = step_times_us(run(topology, tasks, seed=seed, actions=[action], **settings))
                total.append(float(times[1] - usual[1]))
                steady.append(100 * float(times[-1] / usual[-1] - 1))
            measures += [
                Measure.of(f"{name}, remapping {delay:,} us: the step it hits is longer by us", total),
                Measure.of(f"{name}, remapping {delay:,} us: the last step is longer by %", steady),
            ]
            later[name].append(_middle(total))
        if len(later[name]) == 1:
            later[name] *= len(delays_us)
    axis = np.array(delays_us, float) + 1
    return Answer(
        measures=tuple(measures),
        plots={
            "question-e-step": Plot(
                title="Ring all-reduce of 32 MB: the step in which a NIC port fails",
                x="time of remapping + 1, us",
                y="longer by us",
                lines={"NIC sees it": (axis, np.array(later["NIC sees it"])),
                       "silent (dashed)": (axis, np.array(later["nobody tells (silent)"]))},
                log_x=True,
                y_from_zero=True,
            )
        },
    )  # fmt: skip


_BALANCERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "MRC": ("mrc", {}),
    "oblivious": ("uet-oblivious", {}),
    "REPS": ("uet-reps", {}),
    "bitmap": ("uet-bitmap", {}),
    "mixed": ("uet-mixed", {}),
    "adaptive routing": ("adaptive-routing", {}),
    "one path (ECMP)": ("uet-oblivious", {"entropies": 1}),
}


def balancers(effort: Effort) -> Answer:
    """(f) Fixed EVs that are judged, against other ways to spray."""
    topology = _fabric_400g(4)
    spine = topology.resolve("switch:t1/p0/3")
    slow = [link_action(0, spine[topology.node_tier[topology.link_source[spine]] == 1], "rate", 0.25)]
    dies = [link_action(30, both_ways(spine), "down", is_signalled=False)]
    states = {"healthy": [], "one T1 at a quarter of its rate": slow, "one T1 dies silently at 30 us": dies}
    measures, curves = [], {}
    for name, (transport, knobs) in _BALANCERS.items():
        base = host(64) if transport == "mrc" else rival_host()
        for state, actions in states.items():
            if transport == "adaptive-routing" and state.startswith("one T1 dies"):
                continue  # waits 3 ms, as is published of it; nothing to be seen on this scale
            middles, tails = [], []
            for seed in effort.range():
                nics = np.arange(64)
                tasks = streams(nics, derangement(64, seed), 4_000_000)
                result = run(
                    topology, tasks, transport, seed=seed, actions=actions, until_ns=200_000_000,
                    **{**base, "reconvergence_ns": -1.0, **knobs} if transport != "mrc" else base,
                )  # fmt: skip
                times = flow_times_us(result)
                middles.append(float(np.median(times)))
                tails.append(float(np.percentile(times, 99)))
                if seed == 1 and state.startswith("one T1 dies"):
                    curves[name] = cdf(times)
            measures += [
                Measure.of(f"{name}, {state}: P50 us", middles),
                Measure.of(f"{name}, {state}: P99 us", tails),
            ]
    return Answer(
        measures=tuple(measures),
        plots={
            "question-f-dead": Plot(
                title="Permutation of 64 x 4 MB, one of 16 T1s dies silently at 30 us",
                x="flow time, us",
                y="share of flows",
                lines=curves,
                log_x=True,
                y_from_zero=True,
            )
        },
    )


def sack_threshold(effort: Effort) -> Answer:
    """(g) Bytes after which a receiver acknowledges."""
    topology = cluster_b(4, 8)
    sizes = (4_096, 8_192, 16_384, 32_768, 65_536)
    tails, control, measures = [], [], []
    nics = np.arange(32)
    for size in sizes:
        p99, middles, overhead, trims = [], [], [], []
        for seed in effort.range():
            tasks = streams(nics, (nics + 8) % 32, 8_000_000)
            result = run(topology, tasks, seed=seed, sack_threshold_bytes=size, **host(16))
            times = flow_times_us(result)
            p99.append(float(np.percentile(times, 99)))
            middles.append(float(np.median(times)))
            overhead.append(
                100 * 178 * float(result.counters["control_sent"]) / (4262 * float(result.packets.sum()))
            )
            burst = _incast(_fabric_400g(4), 16, seed, **{**host(64), "sack_threshold_bytes": size})
            trims.append(100 * float(burst.trims.sum()) / float(burst.packets.sum()))
        tails.append(_middle(p99))
        control.append(_middle(overhead))
        measures += [
            Measure.of(f"{size // 1024} KiB: P50 us", middles),
            Measure.of(f"{size // 1024} KiB: P99 us", p99),
            Measure.of(f"{size // 1024} KiB: control bytes of data bytes %", overhead),
            Measure.of(f"{size // 1024} KiB: incast 16:1, packets trimmed %", trims),
        ]
    axis = np.array(sizes, float) / 1024
    return Answer(
        measures=tuple(measures),
        plots={
            "question-g-tail": Plot(
                title="Neighbours both ways, 8 MB, 8 x 100G: P99",
                x="SACK threshold, KiB",
                y="us",
                lines={"P99": (axis, np.array(tails))},
                log_x=True,
            ),
            "question-g-control": Plot(
                title="Control bytes against data bytes",
                x="SACK threshold, KiB",
                y="%",
                lines={"control": (axis, np.array(control))},
                log_x=True,
                y_from_zero=True,
            ),
        },
    )


def small_mpr(effort: Effort) -> Answer:
    """(h) Too few packets in flight that the receiver can keep apart."""
    topology = cluster_b()
    units = (1, 2, 3, 4, 6, 8, 12, 16)
    clean, lossy, measures = [], [], []
    for mpr in units:
        by_loss: dict[float, list[float]] = {0.0: [], 0.001: []}
        for loss, rates in by_loss.items():
            for seed in list(effort.range())[:3]:
                tasks = streams([0], [40], 10_000_000, messages=20)
                into = topology.nic_links(40) ^ 1
                actions = [link_action(0, into, "loss", loss)] if loss else []
                settings: dict[str, Any] = {**host(16), "mpr": mpr, "sample_interval_ns": 50_000}
                result = run(topology, tasks, seed=seed, actions=actions, until_ns=1_500_000, **settings)
                rates.append(goodput_gbps(result, 100, 1_500) / (800 * 4096 / 4262))
        clean.append(_middle(by_loss[0.0]))
        lossy.append(_middle(by_loss[0.001]))
        measures += [
            Measure.of(f"MPR {mpr * 128} packets: goodput of line", by_loss[0.0]),
            Measure.of(f"MPR {mpr * 128} packets, 0.1 % loss: goodput of line", by_loss[0.001]),
        ]
    axis = np.array(units, float) * 128
    return Answer(
        measures=tuple(measures),
        plots={
            "question-h-goodput": Plot(
                title="One QP at 800G, round trip 14 us (335 packets)",
                x="MPR, packets",
                y="goodput of line",
                lines={"no loss": (axis, np.array(clean)), "0.1 % loss": (axis, np.array(lossy))},
                y_from_zero=True,
            )
        },
    )


def trimming(effort: Effort) -> Answer:
    """(i) Trimming against dropping, with queues of one and of five BDP."""
    topology = _fabric_400g()
    bdp = 400e9 / 8 * 14e-6
    variants: Mapping[str, Mapping[str, Any]] = {
        "trim at 1 BDP": {"trimming": True},
        "drop at 1 BDP": {"trimming": False, "queue_limit_bytes": bdp, "last_hop_limit_bytes": bdp},
        "drop at 5 BDP": {"trimming": False, "queue_limit_bytes": 5 * bdp, "last_hop_limit_bytes": 5 * bdp},
    }
    counts = (4, 8, 16, 32, 64)
    lines, measures = {}, []
    for name, knobs in variants.items():
        ends_by = []
        for senders in counts:
            ends, again = [], []
            for seed in effort.range():
                result = _incast(topology, senders, seed, **{**host(64), **knobs})
                ends.append(float(result.finish_ns.max()) / 1000 / _payload_bound_us(senders))
                again.append(100 * float(result.retransmitted.sum()) / float(result.packets.sum()))
            ends_by.append(_middle(ends))
            measures += [
                Measure.of(f"{senders}:1, {name}: last finish over bound", ends),
                Measure.of(f"{senders}:1, {name}: sent again %", again),
            ]
        lines[name] = (np.array(counts, float), np.array(ends_by))
        calm = []
        for seed in effort.range():
            tasks = streams(np.arange(128), derangement(128, seed), 1_000_000)
            calm.append(
                float(
                    np.percentile(flow_times_us(run(topology, tasks, seed=seed, **{**host(64), **knobs})), 99)
                )
            )
        measures.append(Measure.of(f"permutation of 128 x 1 MB, {name}: P99 us", calm))
    return Answer(
        measures=tuple(measures),
        plots={
            "question-i-incast": Plot(
                title="Incast of 1 MB each: last finish against the bound",
                x="senders",
                y="time / bound",
                lines=lines,
                log_x=True,
                log_y=True,
            )
        },
    )


def reverse_loss(effort: Effort) -> Answer:
    """(j) Loss that only answers meet."""
    topology = cluster_b()
    losses = (0.0, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.2)
    middles, tails, measures = [], [], []
    for loss in losses:
        p50, p99, spurious = [], [], []
        for seed in effort.range():
            nics = np.arange(16)
            tasks = streams(nics, nics + 32, 1_000_000, messages=40)
            # Messages follow each other; the time of one is from the end of the one before to its own.
            from_targets = np.concatenate([topology.nic_links(int(nic)) for nic in nics + 32])
            actions = [link_action(0, from_targets, "loss", loss)] if loss else []
            result = run(topology, tasks, seed=seed, actions=actions, completes_at_source=True, **host(16))
            finish = result.finish_ns.reshape(40, 16)
            gaps = np.diff(finish, axis=0).ravel() / 1000.0
            p50.append(float(np.median(gaps)))
            p99.append(float(np.percentile(gaps, 99)))
            spurious.append(1e3 * float(result.spurious.sum()) / float(result.packets.sum()))
        middles.append(_middle(p50))
        tails.append(_middle(p99))
        measures += [
            Measure.of(f"{100 * loss:g} %: P50 us", p50),
            Measure.of(f"{100 * loss:g} %: P99 us", p99),
            Measure.of(f"{100 * loss:g} %: sent again needlessly, of 1,000", spurious),
        ]
    axis = np.array(losses) * 100 + 0.001
    return Answer(
        measures=tuple(measures),
        plots={
            "question-j-times": Plot(
                title="Messages of 1 MB at 800G, one after the other; answers are lost",
                x="loss of answers + 0.001, %",
                y="us from message to message",
                lines={"P50": (axis, np.array(middles)), "P99": (axis, np.array(tails))},
                log_x=True,
                y_from_zero=True,
            )
        },
    )


RUNS: Mapping[str, Callable[[Effort], Answer]] = {
    "a": incast_ecn,
    "b": ev_count,
    "c": probe_cadence,
    "d": unequal_planes,
    "e": remap_delay,
    "f": balancers,
    "g": sack_threshold,
    "h": small_mpr,
    "i": trimming,
    "j": reverse_loss,
}
"""By the letter of the question."""
