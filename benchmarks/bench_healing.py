"""Time to heal against the size of the state, and what the members that train notice of it."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from typing import Any

from farstep.train.healing import HealingSettings
from harness.healing_members import Job
from harness.measure import Report, arguments, median, parse

MB = 1_000_000
SLOWDOWN_MAX = 1.15
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
        heal_s: from the order to heal to being at the newest step.
        pull_s: of it, until the state was there and verified.
        step_ratio: mean step during the whole healing over the median step before.
        pull_ratio: mean step while state was sent, over the same.
        follow_ratio: mean step while the newcomer follows as a hot spare, until it may have found what that costs.
        settled_ratio: mean step afterwards, whether it still follows or dozes.
        dozes: whether it does.
        worst_ms: how much longer than usual the longest step was.
        copy_ms: what the snapshot cost the training thread.
        rate_mb_s: bytes of the state over the time to pull them.
        step_ms: median step before.
        is_equal: whether the newcomer ended with the others' bits.
        num_twice: chunks fetched more often than once.
    """

    heal_s: float
    pull_s: float
    step_ratio: float
    pull_ratio: float
    follow_ratio: float
    settled_ratio: float
    dozes: bool
    worst_ms: float
    copy_ms: float
    rate_mb_s: float
    step_ms: float
    is_equal: bool
    num_twice: int


def heal_once(
    state_mb: float,
    *,
    num_seats: int = 2,
    is_killed: bool = False,
    is_busy: bool = False,
    compute_s: float = 0.03,
    rate_mbps: float | None = None,
    timeout_s: float = 120.0,
) -> Heal:
    """Trains, heals a newcomer, and looks at what both noticed."""
    numel = int(state_mb * MB / 12)
    settings = HealingSettings(rate_mbps=rate_mbps, log_bytes_max=4 << 30)
    job = Job(num_seats, numel, compute_s, is_busy, settings)
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


def figures_of(job: Job, began_s: float, num_before: int, timeout_s: float) -> Heal:
    """Stops the job and reads off its figures."""
    ready_s = job.ready_s
    assert ready_s is not None
    job.run_until(lambda: job.steps[-1][2] > ready_s + FOLLOW_S, timeout_s)
    job.tell("order", job.steps[-1][0] + STOP_AFTER, to=job.names)
    job.run_until(lambda: all(name in job.ends for name in job.names), timeout_s)
    target = job.ends[job.names[0]][1]
    job.tell("order", target, to=["late"])
    job.run_until(lambda: "late" in job.ends, timeout_s)
    started_s = next(at_s for kind, at_s, _ in job.events if kind == "heal_start")
    before = [end - begin for _, begin, end, *_ in job.steps if end <= began_s][-num_before:]
    pulled_s = next(at_s for kind, at_s, _ in job.events if kind == "heal_state")

    def steps_between(since_s: float, until_s: float) -> list[float]:
        return [end - begin for _, begin, end, *_ in job.steps if end > since_s and begin < until_s]

    during = steps_between(started_s, ready_s)
    digest, committed, length_bytes, pull_s, num_fetched, _ = job.ends["late"]
    usual_s = median(before)
    return Heal(
        heal_s=ready_s - started_s,
        pull_s=pull_s,
        step_ratio=statistics.mean(during) / usual_s,
        pull_ratio=statistics.mean(steps_between(started_s, pulled_s)) / usual_s,
        follow_ratio=statistics.mean(steps_between(ready_s, ready_s + FOLLOW_S - SETTLED_S)) / usual_s,
        settled_ratio=statistics.mean(steps_between(ready_s + FOLLOW_S - SETTLED_S, ready_s + FOLLOW_S))
        / usual_s,
        dozes=any(kind == "heal_dozing" for kind, *_ in job.events),
        worst_ms=(max(during) - usual_s) * 1e3,
        copy_ms=job.steps[-1][4] * 1e3,
        rate_mb_s=length_bytes / pull_s / MB,
        step_ms=usual_s * 1e3,
        is_equal=committed == target and all(job.ends[name][0] == digest for name in job.names),
        num_twice=num_fetched - -(-length_bytes // CHUNK_BYTES),
    )


def add(report: Report, name: str, heals: list[Heal]) -> None:
    """One row per case."""
    report.add(
        name,
        [heal.heal_s for heal in heals],
        "s",
        pull_s=median(heal.pull_s for heal in heals),
        rate_mb_s=median(heal.rate_mb_s for heal in heals),
        step_ms=median(heal.step_ms for heal in heals),
        mean_step_ratio=median(heal.step_ratio for heal in heals),
        pull_step_ratio=median(heal.pull_ratio for heal in heals),
        follow_step_ratio=median(heal.follow_ratio for heal in heals),
        settled_step_ratio=median(heal.settled_ratio for heal in heals),
        dozing=sum(heal.dozes for heal in heals),
        worst_ms=median(heal.worst_ms for heal in heals),
        copy_ms=median(heal.copy_ms for heal in heals),
    )


def main() -> int:
    """Measures and checks."""
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--sizes", default="10,30,100,300,1000", help="sizes of the state in MB")
    parser.add_argument(
        "--kill-sizes", default="30,100,300", help="sizes at which a source is killed halfway"
    )
    options = parse(parser)
    report = Report(
        "healing",
        "members in processes of their own; a step is 30 ms of waiting or computing, an all-reduce of a third of the "
        "state and AdamW; ratios are steps while a newcomer heals over steps before, in the same job",
        is_silent=options.json,
    )
    report.begin()
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
    everything: list[Heal] = []
    waiting: list[Heal] = []
    for name, case in cases:
        heals = [heal_once(**case) for _ in range(options.rounds)]
        everything += heals
        if not case.get("is_busy") and not case.get("is_killed"):
            waiting += heals
        add(report, name, heals)
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
        "mean step once a newcomer has settled as a spare, over before (median of all)",
        median(heal.settled_ratio for heal in waiting),
        SLOWDOWN_MAX,
        at_least=False,
    )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
