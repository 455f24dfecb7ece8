"""Cluster B of the MRC paper: two NICs and what breaks between them (Q8 to Q19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farstep.sim.faults import LinkAction
from farstep.sim.reproduce.clusters import (
    CLUSTER_B_GBPS,
    PAYLOAD_SHARE,
    Q9_LOCAL_US,
    cluster_b,
    host,
    host_latency_ns,
    one_way_us,
)
from farstep.sim.reproduce.record import Effort, Experiment, Measure
from farstep.sim.reproduce.runs import both_ways, goodput_gbps, link_action, run, streams
from farstep.sim.result import SimResult

__all__ = ["POINT_EXPERIMENTS"]

FAR_NIC = 40
"""In another rack than NIC 0; NIC 1 is in the same."""
LINE_GBPS = CLUSTER_B_GBPS * PAYLOAD_SHARE
MESSAGE_BYTES = 1_000_000
TX_DEPTH = 128
"""Messages perftest keeps posted on a queue pair."""
REMAP_US, STEP_US, PROBE_US = 50.0, 16_000.0, 100.0
"""Ten seconds of the paper's plots are 16 ms here; its remapping in less than a second is 50 us, a probe"
" interval 0.1 ms."""
GOOD = 0


def _latency(effort: Effort) -> Sequence[Measure]:
    host_ns = host_latency_ns()
    local, far = one_way_us(0, 1, host_ns), one_way_us(0, FAR_NIC, host_ns)
    return [
        Measure.of("within a rack us", local, Q9_LOCAL_US - 0.01, Q9_LOCAL_US + 0.01, Q9_LOCAL_US),
        Measure.of("across T1 us", far, 6.54 * 0.9, 6.54 * 1.1, 6.54),
        Measure.of("host latency us (fitted)", host_ns / 1000.0),
    ]


def _bandwidth(effort: Effort) -> Sequence[Measure]:
    found = []
    for name, target in (("within a rack", 1), ("across T1", FAR_NIC)):
        rates = []
        for seed in effort.range():
            tasks = streams([0], [target], 32_768, queue_pairs=4, messages=effort.scaled(800, 4))
            result = run(cluster_b(), tasks, seed=seed, send_queue=TX_DEPTH, **host())
            rates.append(_steady_gbps(result))
        found.append(Measure.of(f"{name} Gb/s", rates, 770 * 0.99, 770 * 1.01, 770))
    return found


def _steady_gbps(result: SimResult) -> float:
    """Rate between the fifth and the ninth tenth of messages."""
    order = np.argsort(result.finish_ns)
    first, last = int(len(order) * 0.2), int(len(order) * 0.9)
    done = order[first + 1 : last + 1]
    lasted_ns = result.finish_ns[order[last]] - result.finish_ns[order[first]]
    return float(result.tasks.size_bytes[done].sum() * 8 / lasted_ns)


def _two_ways(
    target: int, actions: Sequence[LinkAction], until_us: float, seed: int, sample_us: float, **settings: Any
) -> SimResult:
    """NICs 0 and `target` send to each other all the time over 4 queue pairs."""
    messages = int(np.ceil(until_us * 1e-6 * CLUSTER_B_GBPS * 1e9 / 8 / MESSAGE_BYTES / 4)) + 2
    tasks = streams([0, target], [target, 0], MESSAGE_BYTES, queue_pairs=4, messages=messages)
    changes = {
        "remap_delay_ns": round(REMAP_US * 1000),
        "probe_interval_ns": round(PROBE_US * 1000),
        "sample_interval_ns": round(sample_us * 1000),
    }
    return run(
        cluster_b(),
        tasks,
        seed=seed,
        actions=sorted(actions, key=lambda action: action.time_ns),
        until_ns=until_us * 1000,
        send_queue=8,
        **{**host(), **changes, **settings},
    )


def _ports_in_turn(effort: Effort) -> Sequence[Measure]:
    """Ports 0 to 6 of NIC 0 go down one after the other, then up again in the same order."""
    ports = cluster_b().nic_links(0)
    count = 7
    events = [(k + 1, port, "down") for k, port in enumerate(ports[:count])]
    events += [(count + k + 1, port, "up") for k, port in enumerate(ports[:count])]
    actions = [link_action(at * STEP_US, both_ways([port]), kind) for at, port, kind in events]
    steps = 2 * count + 1
    live = [8 - min(k, count) + max(0, k - count) for k in range(steps)]
    worst, stops = [], []
    for seed in list(effort.range())[:4]:
        result = _two_ways(1, actions, steps * STEP_US, seed, 25.0)
        before = goodput_gbps(result, 500, STEP_US)
        shares = [
            goodput_gbps(result, (k + 0.8) * STEP_US, (k + 1) * STEP_US) / (before * live[k] / 8)
            for k in range(1, steps)
        ]
        worst.append(max(abs(share - 1.0) for share in shares))
        stops.append(_longest_stop_us(result, 25.0))
    return [
        Measure.of("worst deviation from live planes %", [100 * w for w in worst], None, 3.0),
        Measure.of("longest stop us (remapping takes 50)", stops, None, 500.0),
    ]


def _longest_stop_us(result: SimResult, sample_us: float) -> float:
    idle = np.asarray(result.series["goodput_bytes"])[1:] == 0
    longest = current = 0
    for stands in idle:
        current = current + 1 if stands else 0
        longest = max(longest, current)
    return longest * sample_us


def _during_and_after(actions: Sequence[LinkAction], effort: Effort) -> tuple[list[float], list[float]]:
    """Goodput within a rack from 3 to 6 ms and from 14 to 16 ms, against that of the first 2 ms, per seed."""
    during, after = [], []
    for seed in effort.range():
        result = _two_ways(1, actions, 16_000, seed, 25.0)
        before = goodput_gbps(result, 500, 2_000)
        during.append(goodput_gbps(result, 3_000, 6_000) / before)
        after.append(goodput_gbps(result, 14_000, 16_000) / before)
    return during, after


def _half_the_ports(effort: Effort) -> Sequence[Measure]:
    ports = both_ways(cluster_b().nic_links(0)[:4])
    actions = [link_action(2_000, ports, "down"), link_action(6_000, ports, "up")]
    during, after = _during_and_after(actions, effort)
    return [
        Measure.of("share of before with 4 of 8 down", during, 0.5 * 0.97, 0.5 * 1.03, 0.5),
        Measure.of("share of before, after it", after, 0.97, 1.03, 1.0),
    ]


def _uplinks_in_turn(effort: Effort) -> Sequence[Measure]:
    """20 links between T0s and T1s go down silently, one every 2 ms."""
    worst = []
    for seed in effort.range():
        links = _uplinks(seed, 20)
        actions = [
            link_action(1_000 + k * 2_000, both_ways([link]), "down", is_signalled=False)
            for k, link in enumerate(links)
        ]
        until = 43_000.0
        result = _two_ways(FAR_NIC, actions, until, seed, 100.0)
        bins = [goodput_gbps(result, at, at + 2_000) for at in range(1_000, int(until) - 1_999, 2_000)]
        worst.append(100 * (1 - min(bins) / goodput_gbps(result, 200, 1_000)))
    return [Measure.of("worst 2 ms below before %", worst, None, 2.0)]


def _uplinks(seed: int, count: int) -> list[int]:
    """Links of the T0s of NICs 0 and 40, drawn over all planes."""
    topology = cluster_b()
    ports = topology.ports
    racks = {int(s) for nic in (0, FAR_NIC) for s in ports.switch[ports.offset[nic] : ports.offset[nic + 1]]}
    up = np.flatnonzero(
        np.isin(topology.link_source, list(racks)) & (topology.node_tier[topology.link_target] == 1)
    )
    return [int(link) for link in np.random.default_rng(seed).choice(up, count, replace=False)]


def _uplinks_together(effort: Effort) -> Sequence[Measure]:
    worst = []
    for seed in effort.range():
        links = both_ways(_uplinks(seed, 8))
        actions = [
            link_action(3_000, links, "down", is_signalled=False),
            link_action(8_000, links, "up", is_signalled=False),
        ]
        result = _two_ways(FAR_NIC, actions, 13_000, seed, 100.0)
        bins = [goodput_gbps(result, at, at + 2_000) for at in range(3_000, 11_001, 2_000)]
        worst.append(100 * (1 - min(bins) / goodput_gbps(result, 500, 3_000)))
    return [Measure.of("worst 2 ms below before %", worst, None, 2.0)]


def _t0_down(effort: Effort) -> Sequence[Measure]:
    links = both_ways(cluster_b().resolve("switch:t0/p3/0"))
    actions = [link_action(2_000, links, "down"), link_action(6_000, links, "up")]
    during, after = _during_and_after(actions, effort)
    return [
        Measure.of("share of before with 1 of 8 T0s down", during, 7 / 8 * 0.97, 7 / 8 * 1.03, 7 / 8),
        Measure.of("share of before, after it", after, 0.97, 1.03, 1.0),
    ]


def _t1_down(effort: Effort) -> Sequence[Measure]:
    links = both_ways(cluster_b().resolve("switch:t1/p3/5"))
    actions = [
        link_action(2_000, links, "down", is_signalled=False),
        link_action(8_000, links, "up", is_signalled=False),
    ]
    steady, restore = [], []
    for seed in effort.range():
        result = _two_ways(FAR_NIC, actions, 14_000, seed, 25.0)
        before = goodput_gbps(result, 500, 2_000)
        steady.append(100 * (1 - goodput_gbps(result, 3_000, 8_000) / before))
        bins = [goodput_gbps(result, at, at + 100) for at in range(8_000, 13_901, 100)]
        restore.append(100 * (1 - min(bins) / before))
    return [
        Measure.of("below before while it is down %", steady, None, 1.0),
        Measure.of("deepest 0.1 ms after the restore %", restore),
    ]


def _lossy_path(percent: float, effort: Effort) -> tuple[list[float], list[float], list[float]]:
    """One active EV in each plane and one in reserve; the path of plane 0's active one loses packets from 0.5 ms on.

    Returns:
        Per seed: packets lost until the EV was left, goodput against line, and packets lost in the 4.5 ms after.
    """
    topology = cluster_b()
    lost, goodput, in_all = [], [], []
    for seed in effort.range(50 if percent == 20 else 1):
        base: Mapping[str, Any] = {
            **host(),
            "active_evs_per_plane": 1,
            "backup_evs_per_plane": 1,
            "send_queue": 8,
            "sample_interval_ns": 5_000,
            "sample_links": True,
        }
        tasks = streams([0], [FAR_NIC], 10_000_000, messages=50)
        first = run(topology, tasks, seed=seed, until_ns=100_000, **base)
        up = np.flatnonzero(
            (topology.link_plane == 0)
            & (topology.node_tier[topology.link_source] == 0)
            & (topology.node_tier[topology.link_target] == 1)
        )
        path = int(up[np.argmax(first.links.bytes[up])])
        action = link_action(500, [path], "loss", percent / 100)
        result = run(topology, tasks, seed=seed, actions=[action], until_ns=5_000_000, **base)
        goodput.append(goodput_gbps(result, 500, 5_000) / LINE_GBPS)
        drops = float(result.links.counted("drops")[path])
        in_all.append(drops)
        lost.append(_lost_before_leaving(result, drops))
    return lost, goodput, in_all


def _lost_before_leaving(result: SimResult, drops: float) -> float:
    """Packets that left on the EV from the loss's begin until it was first given up; all drops if it never was."""
    events = result.ev_events
    left = (events["time_ns"] >= 500_000) & (events["plane"] == 0) & (events["state"] > GOOD)
    if not left.any():
        return max(drops, 1e6)
    slot_ns = 4262 * 8 / 100.0
    return float((events["time_ns"][left].min() - 500_000) / slot_ns)


def _ev_loss(effort: Effort) -> Sequence[Measure]:
    until, goodput, drops = _lossy_path(20.0, effort)
    detection = (
        2 * 7.0e3 / (4262 * 8 / 100.0)
    )  # a round trip's worth of packets is on its way when the news comes
    share = float(np.mean(np.asarray(until) <= 25 + detection))
    found = [
        Measure.of("EV left within 25 packets and a round trip, share of seeds", share, 0.99),
        Measure.of("packets on the EV until it is left", until),
        Measure.of("goodput of line, 20 % loss", goodput, 0.98),
        Measure.of("packets lost in 4.5 ms", drops),
    ]
    found += [
        Measure.of(f"goodput of line, {percent:g} % loss", _lossy_path(percent, effort)[1], 0.98)
        for percent in (1.0, 5.0, 50.0)
    ]
    return found


def _bypass(effort: Effort) -> Sequence[Measure]:
    """From a silent failure of a T1 until the last packet of each EV through it has left its sender."""
    topology = cluster_b()
    times = []
    for seed in effort.range():
        links = both_ways(topology.resolve("switch:t1/p2/3"))
        action = link_action(200, links, "down", is_signalled=False)
        tasks = streams([0, 1, 2, 3], [FAR_NIC, 41, 42, 43], 40_000_000, messages=2)
        result = run(topology, tasks, seed=seed, actions=[action], until_ns=600_000, **host())
        events = result.ev_events
        chosen = (events["plane"] == 2) & (events["state"] > 1) & (events["time_ns"] > 200_000)
        keys = events["connection"][chosen].astype(np.int64) * 100_000 + events["ev"][chosen]
        _, first = np.unique(keys, return_index=True)
        left_us = (events["time_ns"][chosen][first] - 200_000) / 1000.0
        times.append(float(np.median(left_us)))
    return [Measure.of("median us from failure to the last packet", times, None, 50.0)]


def _sendrecv(effort: Effort) -> Sequence[Measure]:
    """Neighbour pairs in different racks send to each other, as in a pipeline."""
    topology = cluster_b(4, 8)
    found = []
    for size, low in ((64_000_000, None), (256_000_000, 0.92)):
        shares = []
        for seed in list(effort.range())[:3]:
            nics = np.arange(32)
            tasks = streams(nics, (nics + 8) % 32, effort.scaled(size, 16))
            result = run(topology, tasks, seed=seed, **host())
            lasted = (result.finish_ns - result.start_ns).max()
            shares.append(effort.scaled(size, 16) * 8 / lasted / CLUSTER_B_GBPS)
        found.append(
            Measure.of(f"slowest NIC, {size // 1_000_000} MB, share of line", shares, low, None, 0.92)
        )
    return found


POINT_EXPERIMENTS: Mapping[str, Experiment] = {
    "Q8": Experiment(
        title="Bypass of a failed path",
        published="few tens of us",
        setup="T1 dies silently; 4 pairs across T1 at 800G, round trip 14 us, 16 EVs a plane",
        measure=_bypass,
    ),
    "Q9": Experiment(
        title="Write latency, 2 B",
        published="5.09 us within a rack, 6.54 us across T1",
        setup="600 ns a switch, 100 ns a cable; host latency fitted to 5.09, the rest predicted",
        measure=_latency,
    ),
    "Q10": Experiment(
        title="Write bandwidth, 32 KB, 4 QPs",
        published="770 Gb/s (96 %) in both cases",
        setup="128 messages posted on each QP",
        measure=_bandwidth,
    ),
    "Q11": Experiment(
        title="NIC ports down and up one by one",
        published="proportional steps, a stop of less than 1 s each",
        setup="both ways, 4 QPs, within a rack; 10 s are 16 ms, remapping 50 us; ports 0 to 6",
        measure=_ports_in_turn,
    ),
    "Q12": Experiment(
        title="4 of 8 NIC ports down, then up",
        published="half, then full",
        setup="as Q11",
        measure=_half_the_ports,
    ),
    "Q13": Experiment(
        title="20 T0-T1 links down, one per second",
        published="minimal impact at 200 ms samples",
        setup="256 uplinks in 2 racks, one dies silently every 2 ms; bins of 2 ms",
        measure=_uplinks_in_turn,
    ),
    "Q14": Experiment(
        title="8 T0-T1 links flap together",
        published="negligible",
        setup="silent, for 5 ms; bins of 2 ms",
        measure=_uplinks_together,
    ),
    "Q15": Experiment(
        title="T0 down, pair within its rack",
        published="-100 Gb/s steady",
        setup="one of 8 planes, noticed by the NICs",
        measure=_t0_down,
    ),
    "Q16": Experiment(
        title="T1 down and up",
        published="no steady loss, a ripple on restore",
        setup="silent, for 6 ms",
        measure=_t1_down,
    ),
    "Q17": Experiment(
        title="20 % loss on one of 16 paths",
        published="EV inactive at once, its backup active, line rate held; other rates alike",
        setup="1 active and 1 reserve EV a plane, 1 QP; 50 seeds",
        measure=_ev_loss,
    ),
    "Q19": Experiment(
        title="NCCL sendrecv on 42K GPUs",
        published="up to 92 GB/s a NIC (92 % of line)",
        setup="32 NICs, each to the next rack, both ways; no host overhead, hence a bound from above",
        measure=_sendrecv,
    ),
}
"""By the number of the published result."""
