"""Time to heal against the size of the state, and what the members that train notice of it."""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from farstep.train.healing import HealingSettings
from harness.healing_members import Job
from harness.measure import Report, arguments, median, parse

MB = 1_000_000
SLOWDOWN_MAX = 1.15
OVERHEAD_S = 1.0
"""What healing may take besides bytes over rate."""
STOP_AFTER = 12
"""Steps ahead at which all seats stop, so that none waits for one that has."""
CHUNK_BYTES = HealingSettings().chunk_bytes
FOLLOW_S = 4.0
"""How long the newcomer follows before the job ends: long enough for it to find what that costs the others."""
SETTLED_S = 2.0
"""Of it, at the end, when it has decided."""


@dataclass
class Heal:
    """Figures of one healing.

    Attributes:
        heal_s: from the order to heal to being ready for a seat.
        pull_s: of it, until the state was there and verified.
        overhead_s: of it, what is not explained by bytes over the rate at which the state came.
        takeover_s: from a standstill until the newcomer has the state of the last step, as when it gets a seat.
        takeover_overhead_s: of it, what is not explained by bytes over the rate.
        step_ratio: mean step during the whole healing over the median step before.
        pull_ratio: mean step while state was sent, over the same.
        follow_ratio: mean step while the newcomer follows as a hot spare, until it may have found what that costs.
        settled_ratio: mean step afterwards, whether it still follows or dozes.
        dozes: whether it does.
        excess_ms: by how much all steps during the healing were longer than usual, in total.
        worst_ms: how much longer than usual the longest step was.
        copy_ms: what the snapshot cost the training thread.
        rate_mb_s: bytes of the state over the time to pull them.
        step_ms: median step before.
        is_equal: whether the newcomer ended with the others' bits.
        num_twice: chunks fetched more often than once.
        newcomer_cores: processor time the newcomer used while it healed, over that time.
        burn_ratio: mean step while a process that streams nothing uses as much; nan if that was not tried.
    """

    heal_s: float
    pull_s: float
    overhead_s: float
    takeover_s: float
    takeover_overhead_s: float
    step_ratio: float
    pull_ratio: float
    follow_ratio: float
    settled_ratio: float
    dozes: bool
    excess_ms: float
    worst_ms: float
    copy_ms: float
    rate_mb_s: float
    step_ms: float
    is_equal: bool
    num_twice: int
    newcomer_cores: float
    burn_ratio: float = math.nan


def heal_once(
    state_mb: float,
    *,
    num_seats: int = 2,
    is_killed: bool = False,
    is_busy: bool = False,
    compute_s: float = 0.03,
    rate_mbps: float | None = None,
    is_apart: bool = False,
    timeout_s: float = 120.0,
) -> Heal:
    """Trains, heals a newcomer, and looks at what both noticed."""
    numel = int(state_mb * MB / 12)
    settings = HealingSettings(rate_mbps=rate_mbps, log_bytes_max=4 << 30)
    job = Job(num_seats, numel, compute_s, is_busy, settings, is_apart)
    try:
        num_before = 12 if state_mb > 200 else 30
        job.run_until(lambda: job.is_up and len(job.steps) > num_before + 5, timeout_s)
        began_s = job.steps[-1][2]
        job.tell("order", "heal", to=["late"])
        if is_killed:
            half = int(state_mb * MB / CHUNK_BYTES / num_seats / 2)
            job.run_until(lambda: job.chunks.get("a-1", 0) >= max(half, 1), timeout_s)
            job.kill("a-1")
        job.run_until(lambda: job.ready_s is not None, timeout_s)
        return figures_of(job, began_s, num_before, timeout_s)
    finally:
        job.close()


def burn_once(state_mb: float, cores: float, *, compute_s: float = 0.03, timeout_s: float = 120.0) -> float:
    """Mean step while a process uses the processor as a newcomer did but streams nothing, over the median before."""
    job = Job(2, int(state_mb * MB / 12), compute_s, False, HealingSettings())
    try:
        job.run_until(lambda: job.is_up and len(job.steps) > 35, timeout_s)
        began_s = job.steps[-1][2]
        before = [end - begin for _, begin, end, *_ in job.steps[-30:]]
        job.tell("order", float(cores), to=["late"])
        job.run_until(lambda: "late" in job.ends, timeout_s)
        return statistics.mean(end - begin for _, begin, end, *_ in job.steps if begin >= began_s) / median(
            before
        )
    finally:
        job.close()


def figures_of(job: Job, began_s: float, num_before: int, timeout_s: float) -> Heal:
    """Stops the job and reads off its figures."""
    ready_s = job.ready_s
    assert ready_s is not None
    job.run_until(lambda: job.steps[-1][2] > ready_s + FOLLOW_S, timeout_s)
    job.tell("order", job.steps[-1][0] + STOP_AFTER, to=job.names)
    job.run_until(lambda: all(name in job.ends for name in job.names), timeout_s)
    target = job.ends[job.names[0]][1]
    wanted_s = time.monotonic()
    job.tell("order", target, to=["late"])
    job.run_until(lambda: "late" in job.ends, timeout_s)
    takeover_s = time.monotonic() - wanted_s
    started_s, used_s = next(
        (at_s, fields["cpu_s"]) for kind, at_s, fields in job.events if kind == "heal_start"
    )
    done = next(fields for kind, _, fields in job.events if kind == "heal_done")
    before = [end - begin for _, begin, end, *_ in job.steps if end <= began_s][-num_before:]
    states = [(at_s, fields) for kind, at_s, fields in job.events if kind == "heal_state"]
    pulled_s, pulled = states[0]  # of one that gave up, what it got in the end, while all waited
    is_hot = pulled_s <= ready_s
    num_bytes = done["state_bytes"] + done["gradient_bytes"]
    explained_s = num_bytes * 8 / (done["rate_mbps"] * 1e6) if is_hot else 0.0

    def steps_between(since_s: float, until_s: float) -> list[float]:
        return [end - begin for _, begin, end, *_ in job.steps if end > since_s and begin < until_s]

    during = steps_between(started_s, ready_s)
    digest, committed, length_bytes, _, num_fetched, _ = job.ends["late"]
    usual_s = median(before)
    return Heal(
        heal_s=ready_s - started_s,
        pull_s=pulled["took_ms"] / 1e3,
        overhead_s=ready_s - started_s - explained_s,
        takeover_s=takeover_s,
        takeover_overhead_s=takeover_s - (0.0 if is_hot else length_bytes / pulled["rate_mbps"] / 125_000),
        step_ratio=statistics.mean(during) / usual_s,
        pull_ratio=statistics.mean(steps_between(started_s, min(pulled_s, ready_s))) / usual_s,
        follow_ratio=statistics.mean(steps_between(ready_s, ready_s + FOLLOW_S - SETTLED_S)) / usual_s,
        settled_ratio=statistics.mean(steps_between(ready_s + FOLLOW_S - SETTLED_S, ready_s + FOLLOW_S))
        / usual_s,
        dozes=any(kind == "heal_dozing" for kind, *_ in job.events),
        excess_ms=sum(step_s - usual_s for step_s in during) * 1e3,
        worst_ms=(max(during) - usual_s) * 1e3,
        copy_ms=job.steps[-1][4] * 1e3,
        rate_mb_s=pulled["rate_mbps"] / 8,
        step_ms=usual_s * 1e3,
        is_equal=committed == target and all(job.ends[name][0] == digest for name in job.names),
        num_twice=num_fetched - -(-length_bytes // CHUNK_BYTES),
        newcomer_cores=(done["cpu_s"] - used_s) / (ready_s - started_s),
    )


def add(report: Report, name: str, heals: list[Heal]) -> None:
    """One row per case."""
    report.add(
        name,
        [heal.heal_s for heal in heals],
        "s",
        pull_s=median(heal.pull_s for heal in heals),
        overhead_s=median(heal.overhead_s for heal in heals),
        takeover_s=median(heal.takeover_s for heal in heals),
        takeover_overhead_s=median(heal.takeover_overhead_s for heal in heals),
        rate_mb_s=median(heal.rate_mb_s for heal in heals),
        step_ms=median(heal.step_ms for heal in heals),
        mean_step_ratio=median(heal.step_ratio for heal in heals),
        pull_step_ratio=median(heal.pull_ratio for heal in heals),
        follow_step_ratio=median(heal.follow_ratio for heal in heals),
        settled_step_ratio=median(heal.settled_ratio for heal in heals),
        dozing=sum(heal.dozes for heal in heals),
        excess_ms=median(heal.excess_ms for heal in heals),
        worst_ms=median(heal.worst_ms for heal in heals),
        copy_ms=median(heal.copy_ms for heal in heals),
        newcomer_cores=median(heal.newcomer_cores for heal in heals),
        **({} if math.isnan(heals[0].burn_ratio) else {"burn_ratio": median(h.burn_ratio for h in heals)}),
    )


def cases_of(options: argparse.Namespace, report: Report) -> list[tuple[str, dict[str, Any]]]:
    """What to measure, by name."""
    sizes = [10.0] if options.quick else [float(size) for size in options.sizes.split(",") if size]
    kill_sizes = [] if options.quick else [float(size) for size in options.kill_sizes.split(",") if size]
    cases: list[tuple[str, dict[str, Any]]] = [
        *((f"{size:g} MB", {"state_mb": size}) for size in sizes),
        *(
            (f"{size:g} MB, members computing on the processor", {"state_mb": size, "is_busy": True})
            for size in sizes[:3]
        ),
        *((f"{size:g} MB of 3 sources", {"state_mb": size, "num_seats": 3}) for size in kill_sizes),
        *(
            (
                f"{size:g} MB of 3 sources, one killed halfway",
                {"state_mb": size, "num_seats": 3, "is_killed": True},
            )
            for size in kill_sizes
        ),
    ]
    if options.controls and len(os.sched_getaffinity(0)) > 1:
        cases += [
            (f"{size:g} MB, newcomer on a core that no seat uses", {"state_mb": size, "is_apart": True})
            for size in sizes[:3]
        ]
    elif options.controls:
        report.say("  one core only: no newcomer on a core that no seat uses")
    return cases


def check(report: Report, everything: list[Heal], waiting: list[Heal]) -> None:
    """Compares with what is promised.

    Args:
        report: takes the results.
        everything: all that was measured.
        waiting: of that, steps that wait as for an accelerator, and nobody killed.
    """
    report.check(
        "newcomers that differ from the others", sum(not h.is_equal for h in everything), 0, at_least=False
    )
    report.check("chunks fetched twice", sum(h.num_twice for h in everything), 0, at_least=False)
    report.check(
        "mean step while a newcomer heals, over before (median of all)",
        median(heal.step_ratio for heal in waiting),
        SLOWDOWN_MAX,
        at_least=False,
    )
    report.check(
        "ready, beyond 1 s + bytes over rate (median of all)",
        max(0.0, median(max(heal.overhead_s, 0.0) for heal in everything) - OVERHEAD_S),
        0.0,
        at_least=False,
        unit="s",
    )
    report.check(
        "state of the last step from a standstill, beyond 1 s + bytes over rate (worst)",
        max(0.0, max(heal.takeover_overhead_s for heal in everything) - OVERHEAD_S),
        0.0,
        at_least=False,
        unit="s",
    )
    report.check(
        "mean step once a newcomer has settled as a spare, over before (median of all)",
        median(heal.settled_ratio for heal in waiting),
        SLOWDOWN_MAX,
        at_least=False,
    )


def main() -> int:
    """Measures and checks."""
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--sizes", default="10,30,100,300,1000", help="sizes of the state in MB")
    parser.add_argument(
        "--kill-sizes", default="30,100,300", help="sizes at which a source is killed halfway"
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="also with the newcomer on a core that no seat uses, and with a process that only computes in its place",
    )
    options = parse(parser)
    report = Report(
        "healing",
        "members in processes of their own; a step is 30 ms of waiting or computing, an all-reduce of a third of the "
        "state and AdamW; ratios are steps while a newcomer heals over steps before, in the same job",
        is_silent=options.json,
    )
    report.begin()
    everything: list[Heal] = []
    waiting: list[Heal] = []
    for name, case in cases_of(options, report):
        heals = [heal_once(**case) for _ in range(options.rounds)]
        if options.controls and case.keys() == {"state_mb"}:
            for heal in heals:
                heal.burn_ratio = burn_once(case["state_mb"], heal.newcomer_cores)
        everything += heals
        if not case.get("is_busy") and not case.get("is_killed"):
            waiting += heals
        add(report, name, heals)
    check(report, everything, waiting)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
