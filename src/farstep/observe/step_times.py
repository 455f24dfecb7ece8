"""How long steps took, and what each fault cost in time.

Percentiles are by nearest rank: every percentile is a step time that was measured, and P100 is the
slowest. The cost of a fault is what the steps in its window took beyond the median of the healthy
steps around it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from farstep.observe.timeline import Fault, StepRow, Timeline

ONSET_STEPS = 3
"""Steps in which a transport that reroutes must be through with it: the one that is hit and two more."""
STEPS_AROUND = 20
"""Healthy steps taken before and after a fault to compare with: enough for a steady median, and close
enough in time to be of the same conditions."""


def percentile(values: Sequence[int], percent: float) -> int:
    """Returns the smallest value that at least `percent` of all values do not exceed.

    Raises:
        ValueError: `values` is empty, or `percent` is outside 0..100.
    """
    if not values:
        raise ValueError("a percentile needs at least one value")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must lie in 0..100, not {percent}")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Distribution of the time of a step, in nanoseconds."""

    num_steps: int
    p50_ns: int
    p99_ns: int
    p100_ns: int
    slowest_step: int
    """Number of the step that took `p100_ns`."""
    allreduce_p50_ns: int

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> StepTimes | None:
        """Measures the steps; None without any."""
        if not rows:
            return None
        times = [row.step_time_ns for row in rows]
        slowest = max(rows, key=lambda row: row.step_time_ns)
        return cls(
            len(rows),
            percentile(times, 50),
            percentile(times, 99),
            slowest.step_time_ns,
            slowest.step,
            percentile([row.allreduce_ns for row in rows], 50),
        )


@dataclass(frozen=True, slots=True)
class FaultCost:
    """What one fault cost.

    Excesses may be negative: steps vary, and a fault that costs nothing is as likely to fall on quick
    steps as on slow ones. `noise_ns` says how far the excess of as many healthy steps typically strays
    from zero.
    """

    fault: Fault
    num_steps: int
    """Steps that ran while the fault lasted, the step in which it was taken back included."""
    median_ns: int
    """Median time of the healthy steps around."""
    onset_ns: int
    """Excess of the first `ONSET_STEPS` steps: the price of noticing and rerouting."""
    excess_ns: int
    """Excess of all steps in the window."""
    onset_waiting_ns: int
    """The same as `onset_ns`, of the time spent waiting for gradients alone: what the network has to answer for."""
    excess_waiting_ns: int
    """The same as `excess_ns`, of the time spent waiting for gradients alone."""
    noise_ns: int

    @property
    def onset_steps(self) -> float:
        """`onset_ns` in healthy steps."""
        return self.onset_ns / self.median_ns

    @property
    def excess_steps(self) -> float:
        """`excess_ns` in healthy steps."""
        return self.excess_ns / self.median_ns


def fault_costs(timeline: Timeline) -> list[FaultCost]:
    """Prices every fault during which a step ended, in the order of the script's effect.

    A fault without a healthy step before or after it has no cost that could be told, and is left out.
    """
    rows = timeline.rows
    healthy = [row for row in rows if not any(_overlaps(row, fault) for fault in timeline.faults)]
    costs = []
    for fault in timeline.faults:
        window = [row for row in rows if _overlaps(row, fault)]
        before = [row for row in healthy if row.end_ns <= fault.start_ns][-STEPS_AROUND:]
        after = [row for row in healthy if fault.end_ns is not None and row.start_ns >= fault.end_ns]
        around = [*before, *after[:STEPS_AROUND]]
        if not window or not around:
            continue
        times_ns = [row.step_time_ns for row in around]
        median_ns = round(statistics.median(times_ns))
        if median_ns == 0:
            continue
        spread_ns = 1.4826 * statistics.median(abs(time_ns - median_ns) for time_ns in times_ns)
        waiting_ns = round(statistics.median(row.allreduce_ns for row in around))
        excesses = [row.step_time_ns - median_ns for row in window]
        waiting = [row.allreduce_ns - waiting_ns for row in window]
        costs.append(
            FaultCost(
                fault=fault,
                num_steps=len(window),
                median_ns=median_ns,
                onset_ns=sum(excesses[:ONSET_STEPS]),
                excess_ns=sum(excesses),
                onset_waiting_ns=sum(waiting[:ONSET_STEPS]),
                excess_waiting_ns=sum(waiting),
                noise_ns=round(spread_ns * math.sqrt(len(window))),
            )
        )
    return costs


def _overlaps(row: StepRow, fault: Fault) -> bool:
    return row.end_ns > fault.start_ns and (fault.end_ns is None or row.start_ns < fault.end_ns)
