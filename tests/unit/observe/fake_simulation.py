"""A made-up simulation that looks like a real one: a permutation over a multi-plane Clos, one T1 dead for a while."""

from __future__ import annotations

from typing import Any

import numpy as np

from farstep.fabric.topology import clos
from farstep.sim.result import LinkUse, SimResult
from farstep.sim.tasks import TaskBuilder

PORT_GBPS = 100.0
FAIL_NS, REPAIR_NS = 60_000, 130_000
SCENARIO = """[fabric]
kind = "clos"
nics = 64
planes = 4

[workload]
kind = "permutation"
size_bytes = 8_000_000
"""

# Median, spread and tail of the flow times against the wire's, unevenness of the links, losses, trims.
CHARACTERS = {
    "mrc": (1.08, 0.015, 0.02, 0.03, 40, 120),
    "uet-reps": (1.11, 0.02, 0.05, 0.06, 160, 400),
    "roce": (2.1, 0.35, 0.5, 0.9, 900, 0),
}


def fake_simulation(
    transport: str = "mrc",
    *,
    nics: int = 64,
    planes: int = 4,
    flows: int | None = None,
    steps: int = 1,
    size_bytes: int = 8_000_000,
    samples: int = 200,
    has_faults: bool = True,
    unfinished: int = 0,
    seed: int = 1,
) -> SimResult:
    """Returns a result of the given size; `samples` 0 leaves the series out, and the changes of paths."""
    rng = np.random.default_rng(seed)
    median, spread, tail, unevenness, losses, trims = CHARACTERS[transport]
    fabric = clos(nics, planes=planes, port_gbps=PORT_GBPS)
    wire_ns = size_bytes * 8 / (PORT_GBPS * planes)
    per_step = nics if flows is None else flows

    build = TaskBuilder(job_names=["job"])
    start, finish = [], []
    before, begun_ns = None, 0.0
    for step in range(steps):
        build.tag = step
        shift = rng.integers(1, nics, per_step)
        source = np.arange(per_step) % nics
        made = build.flows(source, (source + shift) % nics, size_bytes)
        if before is not None:
            build.after(made, before)
        before = made
        lasted = wire_ns * (median + spread * rng.standard_normal(per_step) + rng.exponential(tail, per_step))
        lasted = np.maximum(lasted, wire_ns * 1.02)
        first = begun_ns if step == 0 else finish[-1]
        start.append(np.broadcast_to(first, per_step).astype(np.int64))
        finish.append((start[-1] + lasted).astype(np.int64))
    start_ns, finish_ns = np.concatenate(start), np.concatenate(finish)
    end = int(finish_ns.max())
    if unfinished:
        finish_ns[rng.choice(len(finish_ns), unfinished, replace=False)] = -1
    num = len(start_ns)
    lost = rng.poisson(losses / num, num) * has_faults
    trimmed = rng.poisson(trims / num, num)

    mean_bytes = num * size_bytes / nics / planes
    links = links_of(fabric, mean_bytes, end, transport, rng, has_faults=has_faults)
    result = SimResult.of(
        build.table(),
        {
            "start_ns": start_ns,
            "finish_ns": finish_ns,
            "packets": np.full(num, size_bytes // 4096 + 1) + lost + trimmed,
            "retransmitted": lost + trimmed,
            "dropped": lost,
            "declared_lost": lost,
            "trims": trimmed,
        },
        links,
        meta=meta_of(transport, nics, planes, end, seed, has_faults=has_faults),
    )
    if samples:
        result.meta["sample_interval_ns"] = max(1, end // samples)
        add_series(result, end, samples, planes, unevenness, rng)
        if has_faults and transport != "roce":
            result.ev_events.update(events_of(result, planes, rng))
    return result


def meta_of(
    transport: str, nics: int, planes: int, end: int, seed: int, *, has_faults: bool
) -> dict[str, Any]:
    """What a simulation says of itself."""
    meta: dict[str, Any] = {
        "transport": transport,
        "level": "packet",
        "seed": seed,
        "fabric": f"clos of {nics} NICs, {planes} planes",
        "scenario": SCENARIO,
        "wall_s": 0.8,
        "end_ns": end,
        "versions": {"farstep": "0.1.0", "numpy": np.__version__},
    }
    if has_faults:
        meta["faults"] = [
            {"time_ns": FAIL_NS, "kind": "switch_down", "text": "T1 switch 70 down", "until_ns": REPAIR_NS},
            {"time_ns": 20_000, "kind": "loss", "text": "0.1 % loss on NIC 3's port of plane 1"},
        ]
    return meta


def links_of(
    fabric: Any, mean_bytes: float, end: int, transport: str, rng: np.random.Generator, *, has_faults: bool
) -> LinkUse:
    """Links that carry about as much as their share."""
    _, _, _, unevenness, losses, trims = CHARACTERS[transport]
    share = np.clip(rng.normal(1.0, unevenness, fabric.num_links), 0.02, 1.6)
    possible = fabric.link_rate_gbps * end / 8
    used = np.minimum(share * mean_bytes, 0.98 * possible)
    return LinkUse.of(
        fabric,
        {
            "bytes": used.astype(np.int64),
            "drops": rng.poisson(losses / fabric.num_links, fabric.num_links) * has_faults,
            "trims": rng.poisson(trims / fabric.num_links, fabric.num_links),
            "max_queue_bytes": (rng.gamma(2.0, 30_000 * (1 + unevenness), fabric.num_links)).astype(np.int64),
        },
    )


def add_series(
    result: SimResult, end: int, samples: int, planes: int, unevenness: float, rng: np.random.Generator
) -> None:
    """Samples that agree with the flow times on average."""
    time = np.linspace(end / samples, end, samples).astype(np.int64)
    running = (result.start_ns[:, None] <= time) & (
        (result.finish_ns[:, None] > time) | (result.finish_ns[:, None] < 0)
    )
    lasted = np.maximum(np.where(result.finished, result.finish_ns, end) - result.start_ns, 1)
    rate = (result.tasks.size_bytes / lasted) @ running
    step_ns = np.diff(time, prepend=0)
    is_hit = (time > FAIL_NS) & (time < REPAIR_NS) & bool(result.meta.get("faults"))
    goodput = rate * step_ns * rng.normal(1, 0.02, samples) * np.where(is_hit, 0.93, 1.0)
    per_plane = goodput[:, None] / planes * rng.normal(1, 0.02, (samples, planes))
    per_plane[is_hit, 0] *= 0.7
    groups = ["NIC -> T0", "T0 -> T1", "T1 -> T0", "T0 -> NIC"]
    depth = np.array([2, 12, 25, 90]) * 1000 * (1 + 2 * unevenness)
    queue = depth * rng.gamma(4.0, 0.25, (samples, 4)) * (running.sum(axis=0)[:, None] > 0)
    result.series.update(
        time_ns=time,
        goodput_bytes=goodput.astype(np.int64),
        plane_bytes=per_plane.astype(np.int64),
        queue_max_bytes=queue.astype(np.int64),
        dropped=rng.poisson(np.where(is_hit, 3, 0.05)),
        trims=rng.poisson(np.where(time < 25_000, 4, 0.2)),
        retransmitted=rng.poisson(np.where(is_hit, 3, 0.3)),
    )
    result.meta["series_columns"] = {"queue_max_bytes": groups}


def events_of(result: SimResult, planes: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A few paths of every connection turn bad when the switch dies, and are back after its repair."""
    rows = []
    for task in range(min(len(result.tasks), 400)):
        source, target = int(result.tasks.source[task]), int(result.tasks.target[task])
        for ev in rng.choice(64, 3, replace=False):
            bad_ns = FAIL_NS + int(rng.exponential(6_000))
            good_ns = REPAIR_NS + int(rng.exponential(8_000))
            rows += [(bad_ns, source, target, ev, 0, 2), (good_ns, source, target, ev, 0, 0)]
        for ev in rng.choice(np.arange(64, 128), 2, replace=False):
            marked_ns = int(rng.uniform(5_000, 150_000))
            plane = int(rng.integers(planes))
            rows += [
                (marked_ns, source, target, ev, plane, 1),
                (marked_ns + 9_000, source, target, ev, plane, 0),
            ]
    table = np.array(sorted(rows), np.int64)
    return dict(zip(("time_ns", "source", "target", "ev", "plane", "state"), table.T, strict=True))
