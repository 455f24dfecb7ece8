"""The built-in demo: how long it takes, what it learns, and what the cut path costs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from farstep.observe.events import read_events
from farstep.observe.step_times import fault_costs
from farstep.observe.timeline import Timeline
from harness.measure import Report, arguments, parse

DEMO_LIMIT_S = 900
TIME_MAX_S = 180.0
COST_MAX_STEPS = 1.0


def run_demo() -> tuple[float, Timeline]:
    """Runs `farstep train` without arguments; returns the wall time in seconds and what was recorded."""
    with tempfile.TemporaryDirectory() as directory:
        began_s = time.monotonic()
        command = [sys.executable, "-m", "farstep", "train", "--plain", "--out", directory]
        subprocess.run(
            command, check=True, timeout=DEMO_LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        elapsed_s = time.monotonic() - began_s
        (folder,) = Path(directory).iterdir()
        return elapsed_s, Timeline.of(read_events(folder / "events.jsonl"))


def main() -> int:
    options = parse(arguments(__doc__ or "", rounds=1))
    report = Report(
        "the two-site demo",
        "one whole run of `farstep train`; the cost of the cut is the time of its first three steps beyond the median "
        "of the healthy steps around",
        is_silent=options.json,
    )
    report.begin()
    runs = [run_demo() for _ in range(options.rounds)]
    costs = [fault_costs(timeline)[0] for _, timeline in runs]
    walls_s = [elapsed_s for elapsed_s, _ in runs]
    report.add("wall time", walls_s, "s")
    report.add("held-out loss at the start, nats per token", [t.evals[0][2] for _, t in runs], "")
    report.add("held-out loss at the end, nats per token", [t.evals[-1][2] for _, t in runs], "")
    report.add("median step", [c.median_ns / 1e6 for c in costs], "ms")
    report.add("cost of the cut", [c.onset_steps for c in costs], "steps")
    report.check("wall time", max(walls_s), TIME_MAX_S, at_least=False, unit="s")
    report.check(
        "cost of the cut", max(c.onset_steps for c in costs), COST_MAX_STEPS, at_least=False, unit="steps"
    )
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
