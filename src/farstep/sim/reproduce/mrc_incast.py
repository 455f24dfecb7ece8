"""Cluster D of the MRC paper: incast with a victim, and permutations over few uplinks (Q26 to Q36)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farstep.sim.reproduce.clusters import cluster_d, host, rival_host
from farstep.sim.reproduce.record import Effort, Experiment, Measure
from farstep.sim.reproduce.runs import both_ways, goodput_gbps, link_action, run, streams
from farstep.sim.result import SimResult
from farstep.sim.tasks import concatenate

__all__ = ["INCAST_EXPERIMENTS", "incast_with_victim"]

LINE_GBPS = 400.0
ROCE_SHARE, MRC_SHARE = 4096 / 4198, 4096 / 4262
"""Payload of a packet on the wire."""
WINDOW_US, WARM_US = 10_000.0, 2_000.0
FAIR_US = 120_000.0
"""Long enough for shares to be those of the seconds that are published."""
DCQCN_ECN_BYTES = (130_000.0, 520_000.0)
"""A fifth and four fifths of the 650 KB in flight at 400 Gb/s over 13 us: the default of the other rows."""
SENDERS = (4, 5, 6, 7, 9, 10, 11)
VICTIM = (8, 1)
"""From another rack to an idle neighbour of NIC 0, which takes the incast."""


def incast_with_victim(
    transport: str, seed: int, *, queue_pairs: int = 1, until_us: float = WINDOW_US, **settings: Any
) -> tuple[NDArray[np.float64], float, SimResult]:
    """Seven send to NIC 0 all the time, and one to its neighbour.

    Returns:
        Rate of each sender and of the victim from 2 ms to the end, Gb/s of payload, and the run.
    """
    base = host(64) if transport == "mrc" else rival_host()
    qps = queue_pairs if transport == "mrc" else 1
    if transport == "roce":
        settings = {"queue_pairs": queue_pairs, **settings}
    size = 250_000
    messages = round(until_us * LINE_GBPS * 1e3 / 8 / size)
    incast = streams(SENDERS, [0] * len(SENDERS), size, queue_pairs=qps, messages=messages // qps)
    victim = streams([VICTIM[0]], [VICTIM[1]], size, queue_pairs=qps, messages=messages // qps)
    tasks = concatenate([incast, victim])
    result = run(
        cluster_d(),
        tasks,
        transport,
        seed=seed,
        until_ns=until_us * 1000,
        **{**base, **settings},
    )
    done = result.finished & (result.finish_ns > WARM_US * 1000)
    rates = np.array(
        [
            result.tasks.size_bytes[done & (result.tasks.source == sender)].sum()
            * 8e-3
            / (until_us - WARM_US)
            for sender in (*SENDERS, VICTIM[0])
        ]
    )
    return rates[:-1], float(rates[-1]), result


def _jain(rates: NDArray[np.float64]) -> float:
    return float(rates.sum() ** 2 / (len(rates) * np.square(rates).sum())) if rates.any() else 0.0


def _victim_alone() -> float:
    return LINE_GBPS * ROCE_SHARE


def _dcqcn_victim(effort: Effort) -> Sequence[Measure]:
    losses, sums = [], []
    for seed in effort.range(20):
        rates, victim, _ = incast_with_victim("roce", seed)
        losses.append(100 * (1 - victim / _victim_alone()))
        sums.append(float(rates.sum()) / _victim_alone())
    return [
        Measure.of("victim loses %", losses, 15.0, 35.0, 25.0),
        Measure.of("incast uses of the line", sums),
    ]


def _pfc_victim(effort: Effort) -> Sequence[Measure]:
    found = []
    for pairs in (1, 8):
        shares = [
            incast_with_victim("roce", seed, queue_pairs=pairs, dcqcn=False)[1] / LINE_GBPS
            for seed in effort.range(20)
        ]
        found.append(Measure.of(f"victim of line, {pairs} QP", shares, 0.07, 0.25))
    return found


def _mrc_victim(effort: Effort) -> Sequence[Measure]:
    found = []
    for pairs in (1, 8):
        fair, victims, mean, trims = [], [], [], []
        for seed in effort.range():
            rates, victim, result = incast_with_victim("mrc", seed, queue_pairs=pairs, until_us=FAIR_US)
            fair.append(_jain(rates))
            victims.append(victim / (LINE_GBPS * MRC_SHARE))
            mean.append(float(rates.mean()))
            trims.append(100 * float(result.counters["trimmed"]) / float(result.counters["sent"]))
        found += [
            Measure.of(f"Jain, {pairs} QP", fair, 0.99),
            Measure.of(f"victim of its line, {pairs} QP", victims, 0.98),
            Measure.of(f"each sender Gb/s, {pairs} QP", mean, None, None, 57.0),
            Measure.of(f"packets trimmed %, {pairs} QP", trims),
        ]
    return found


def _links_removed(effort: Effort) -> Sequence[Measure]:
    """One pair across racks; three of its rack's four uplinks go one by one."""
    topology = cluster_d()
    up = topology.resolve("link:t0/p0/0-t1/p0/*")
    cables = np.unique(up & ~1)
    worst = []
    for seed in effort.range():
        actions = [
            link_action(1_000 + 1_000 * k, both_ways([cable]), "down", is_signalled=False)
            for k, cable in enumerate(cables[:3])
        ]
        tasks = streams([0], [12], 1_000_000, messages=300)
        settings = {**host(64), "sample_interval_ns": 50_000, "send_queue": 8}
        result = run(topology, tasks, seed=seed, actions=actions, until_ns=5_000_000, **settings)
        before = goodput_gbps(result, 200, 1_000)
        steady = [goodput_gbps(result, at + 300, at + 1_000) for at in (1_000, 2_000, 3_000)]
        worst.append(100 * (1 - min(steady) / before))
    return [Measure.of("below before, with 3, 2, 1 of 4 links %", worst, None, 1.0)]


def _cross_racks(seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Eight NICs of two racks send to eight of the other two, each to one."""
    return np.arange(8), 8 + np.random.default_rng(seed).permutation(8)


def _permutation_shares(
    transport: str, seed: int, *, queue_pairs: int = 1, **settings: Any
) -> NDArray[np.float64]:
    """Steady rate of each flow against what one alone gets."""
    source, target = _cross_racks(seed)
    base = host(64) if transport == "mrc" else {**rival_host(), "queue_pairs": queue_pairs}
    share = MRC_SHARE if transport == "mrc" else ROCE_SHARE
    qps = queue_pairs if transport == "mrc" else 1
    tasks = streams(source, target, 250_000, queue_pairs=qps, messages=2_200 // qps)
    result = run(cluster_d(), tasks, transport, seed=seed, until_ns=WINDOW_US * 1000, **{**base, **settings})
    done = result.finished & (result.finish_ns > WARM_US * 1000)
    sent = np.array([result.tasks.size_bytes[done & (result.tasks.source == s)].sum() for s in source])
    return np.asarray(sent * 8e-3 / (WINDOW_US - WARM_US) / (LINE_GBPS * share))


def _collisions(effort: Effort) -> Sequence[Measure]:
    found = []
    for name, dcqcn in (("PFC", False), ("DCQCN", True)):
        shares = [_permutation_shares("roce", s, dcqcn=dcqcn) for s in effort.range(20)]
        flows = np.concatenate(shares)
        near = np.min(np.abs(flows[:, None] / np.array([1, 1 / 2, 1 / 3]) - 1), axis=1) < 0.15
        found += [
            Measure.of(f"flows at 1, 1/2 or 1/3 of line, {name}", float(near.mean()), 0.7 if dcqcn else None),
            Measure.of(f"slowest flow of a run, {name}", [float(s.min()) for s in shares], 0.2, 0.55),
            Measure.of(f"runs without a collision, {name}", float(np.mean([s.min() > 0.85 for s in shares]))),
        ]
    return found


def _no_collisions(effort: Effort) -> Sequence[Measure]:
    found = []
    for pairs, low, changes, words in (
        (1, 0.96, {}, "1 QP"),
        (8, 0.96, {}, "8 QP"),
        (8, None, {"skip_passes": 0}, "8 QP, marked EVs sit out the rest of the pass alone"),
    ):
        shares = [_permutation_shares("mrc", s, queue_pairs=pairs, **changes) for s in effort.range()]
        found.append(Measure.of(f"slowest flow of line, {words}", [float(s.min()) for s in shares], low))
    return found


def _pfc_pairs(effort: Effort) -> Sequence[Measure]:
    gains = []
    for seed in effort.range(20):
        one = _permutation_shares("roce", seed, dcqcn=False).mean()
        many = _permutation_shares("roce", seed, queue_pairs=8, dcqcn=False).mean()
        gains.append(100 * float(many / one - 1))
    return [Measure.of("mean rate with 8 QPs over 1 %", gains, -15.0, 15.0)]


def _dcqcn_settings(effort: Effort) -> Sequence[Measure]:
    """Fifteen join one receiver, one every 5 ms; marks set in at 1, 1/4 and 1/16 of the default's depth."""
    settings: Sequence[tuple[str, Mapping[str, Any]]] = (
        ("default", {}),
        ("aggressive", {"ecn_min_bytes": DCQCN_ECN_BYTES[0] / 4, "ecn_max_bytes": DCQCN_ECN_BYTES[1] / 4}),
        (
            "most aggressive",
            {"ecn_min_bytes": DCQCN_ECN_BYTES[0] / 16, "ecn_max_bytes": DCQCN_ECN_BYTES[1] / 16},
        ),
    )
    step_ms, found = 5, []
    end_us = 15 * step_ms * 1_000.0
    rates: dict[str, list[float]] = {}
    for name, changes in settings:
        rates[name] = []
        for seed in list(effort.range())[:3]:
            starts = np.arange(15) * step_ms * 1_000_000
            tasks = streams(np.arange(1, 16), np.zeros(15, int), 2_000_000, messages=2_000, start_ns=starts)
            knobs = {**rival_host(), "sample_interval_ns": 100_000, **changes}
            result = run(cluster_d(), tasks, "roce", seed=seed, until_ns=end_us * 1000, **knobs)
            rates[name].append(goodput_gbps(result, 1_000, end_us) / (LINE_GBPS * ROCE_SHARE))
        found.append(
            Measure.of(f"throughput of line, {name}", rates[name], 0.95 if name == "default" else None)
        )
    steps = [float(np.median(rates["default"]) - np.median(rates[name])) for name, _ in settings[1:]]
    found.append(Measure.of("aggressive loses", steps[0], 0.01, None, 0.10))
    found.append(Measure.of("most aggressive loses", steps[1], steps[0], None, 0.20))
    return found


INCAST_EXPERIMENTS: Mapping[str, Experiment] = {
    "Q26": Experiment(
        title="7:1 incast with a victim, RoCE with DCQCN",
        published="victim -25 %",
        setup="as published; 1 QP, 20 seeds",
        measure=_dcqcn_victim,
    ),
    "Q28": Experiment(
        title="The same, PFC only",
        published="victim at 30 to 100 of 400 Gb/s",
        setup="as published; 1 and 8 QPs, 20 seeds",
        measure=_pfc_victim,
    ),
    "Q29": Experiment(
        title="The same, MRC",
        published="shares almost perfectly even, about 57 Gb/s each; victim unaffected",
        setup="as published; 1 and 8 QPs",
        measure=_mrc_victim,
    ),
    "Q30": Experiment(
        title="3 of 4 T0-T1 links removed one by one",
        published="no visible change, one link suffices",
        setup="one pair across racks, links die silently every 1 ms; from 0.3 ms after each",
        measure=_links_removed,
    ),
    "Q32": Experiment(
        title="8 to 8 across racks, RoCE with 1 QP",
        published="flows at line, 1/2 or 1/3 of line; another in every run",
        setup="as published; PFC alone, and with DCQCN; 20 seeds",
        measure=_collisions,
    ),
    "Q33": Experiment(
        title="The same, MRC",
        published="390 Gb/s every flow; line rate with 8 QPs",
        setup="as published",
        measure=_no_collisions,
        note="8 QPs that rotate on their own meet at random, so there are marks, and a marked EV sits out its next"
        " turn. A pass of 64 EVs takes each of 8 QPs 44 us, three round trips: for that long they avoid what was full"
        " for a moment. The specification asks for the rest of a pass and leaves open what follows; with the rest"
        " alone, so that an EV whose turn is over misses none, the line is full",
    ),
    "Q34": Experiment(
        title="The same, RoCE with 8 QPs, PFC only",
        published="marginal gain, for PFC throttles the whole NIC",
        setup="as published; 20 seeds",
        measure=_pfc_pairs,
        note="marginal is read as at most 15 %. Pauses do hold up whole NICs, which go at the pace of their slowest"
        " path; but of 32 paths on 4 uplinks the fullest has one and a half times its share, of 4 paths twice, so the"
        " mean gains; by how much depends on the draw",
    ),
    "Q36": Experiment(
        title="15:1, a new flow every 5 s, three settings of DCQCN",
        published="default: link full; aggressive: -10 %; most aggressive: -20 %",
        setup="a new flow every 5 ms; the settings are not published, ours mark at a quarter and a sixteenth"
        " of the depth",
        measure=_dcqcn_settings,
    ),
}
"""By the number of the published result."""
