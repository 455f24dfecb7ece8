"""Ten minutes of one failure every 15 s: how much training is left of it, and whether the model is as good.

Calm training between the failures, in the same job on the same machine, is what the rest is held against.
The loss is compared with that of one undisturbed replica group that makes as many steps of the same samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.measure import Report, arguments, median, parse
from harness.recovery import Farstep, Group, Job
from recovery.workload import loss_floor

GOODPUT_MIN, LOSS_MAX = 0.8, 0.01
HANG_S = 4.0
COORDINATOR_DOWN_S = (0.1, 1.0)
BLOCK = 4
"""Failures between two calm spans."""

STALL_FACTOR = 3.0
"""A step that takes so many times the calm median counts as a stall."""

LOSS_SHARE = 0.1
"""Share of the steps, the last ones, over which the loss is averaged."""


@dataclass
class Chaos:
    """What was done, and when.

    Attributes:
        calm: spans of time without failures, in ns.
        rough: spans with them.
        done: number of injuries by kind.
        died: groups that ended though nobody had killed them.
    """

    calm: list[tuple[int, int]] = field(default_factory=list)
    rough: list[tuple[int, int]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    died: int = 0


def hurt(job: Job, options: argparse.Namespace) -> Chaos:
    """Trains calmly, under failures, calmly again, and so on: what else the machine does hits all of it alike."""
    chaos, draw = Chaos(), random.Random(options.seed)
    left = max(1, round(options.minutes * 60 / options.every_s))
    chaos.calm.append(_calm(options.calm_s))
    while left:
        began_ns = time.monotonic_ns()
        for number in range(1, min(left, BLOCK) + 1):
            _injure(job, draw.choice(options.kinds), draw, chaos)
            left -= 1
            time.sleep(max(0.0, (began_ns + number * options.every_s * 1e9 - time.monotonic_ns()) / 1e9))
        chaos.rough.append((began_ns, time.monotonic_ns()))
        chaos.died += _restart_dead(job)
        job.wait_back(time.monotonic_ns())
        chaos.calm.append(_calm(options.calm_s))
    return chaos


def _calm(duration_s: float) -> tuple[int, int]:
    began_ns = time.monotonic_ns()
    time.sleep(duration_s)
    return began_ns, time.monotonic_ns()


def _injure(job: Job, kind: str, draw: random.Random, chaos: Chaos) -> None:
    """Does one thing to the job and takes it back at once, or soon."""
    chaos.died += _restart_dead(job)
    chaos.done[kind] = chaos.done.get(kind, 0) + 1
    if kind == "coordinator":
        job.kill_coordinator()
        time.sleep(draw.uniform(*COORDINATOR_DOWN_S))
        job.start_coordinator()
        return
    training = job.active()
    if len(training) < 2:
        return  # the machine is so busy that nobody is back yet; this one is left out of the failures
    victim = draw.choice(training)
    assert victim.process is not None, "a group that trains has a process"
    if kind == "hang":
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(HANG_S)
        victim.process.send_signal(signal.SIGCONT)
    else:
        victim.process.kill()
        victim.process.wait()
        job.start(victim)


def _restart_dead(job: Job) -> int:
    dead = [group for group in job.groups if not group.is_alive]
    for group in dead:
        job.start(group)
    return len(dead)


@dataclass(frozen=True)
class Curve:
    """The run's committed steps: each once, by whoever told of it first."""

    t_ns: list[int]
    samples: list[int]
    losses: list[float]
    conflicts: int

    def samples_in(self, span: tuple[int, int]) -> int:
        """Samples committed in a span of time."""
        return sum(n for t, n in zip(self.t_ns, self.samples, strict=True) if span[0] <= t < span[1])

    def gaps_ns(self, span: tuple[int, int]) -> list[int]:
        """Times between the steps of a span."""
        times = [t for t in self.t_ns if span[0] <= t < span[1]]
        return [b - a for a, b in itertools.pairwise(times)]


def curve_of(groups: list[Group]) -> Curve:
    """Puts together what the groups have written."""
    by_step: dict[int, dict[str, Any]] = {}
    conflicts = 0
    for group in groups:
        for line in group.steps():
            known = by_step.setdefault(line["step"], line)
            conflicts += known["loss"] != line["loss"]
            if line["t_ns"] < known["t_ns"]:
                by_step[line["step"]] = line
    lines = [by_step[step] for step in sorted(by_step)]
    return Curve(
        t_ns=[line["t_ns"] for line in lines],
        samples=[line["samples"] for line in lines],
        losses=[line["loss"] for line in lines],
        conflicts=conflicts,
    )


def calm_losses(folder: Path, options: argparse.Namespace, steps: int) -> list[float]:
    """The losses of one replica group that nothing happens to."""
    record = folder / "calm.jsonl"
    program = Path(__file__).parent / "recovery" / "farstep_worker.py"
    command = [sys.executable, str(program), "0", str(record), options.size, str(options.batch), "seat"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BENCH_POLICY": "global", "BENCH_STEPS": str(steps)}
    environment.pop("FARSTEP_COORDINATOR", None)
    environment.pop("BENCH_SAMPLE_US", None)
    subprocess.run(command, env=environment, cwd=folder, check=True, timeout=3600)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def _rate(curve: Curve, spans: list[tuple[int, int]]) -> float:
    """Committed samples per second."""
    duration_s = sum(end - start for start, end in spans) / 1e9
    return sum(curve.samples_in(span) for span in spans) / duration_s


def tell(report: Report, chaos: Chaos, curve: Curve, calm_curve: list[float]) -> None:
    """Works out the figures."""
    calm_rates = [_rate(curve, [span]) for span in chaos.calm]
    rough_rates = [_rate(curve, [span]) for span in chaos.rough]
    rough_s = sum(end - start for start, end in chaos.rough) / 1e9
    usual_ns = median([gap for span in chaos.calm for gap in curve.gaps_ns(span)])
    gaps = [gap for span in chaos.rough for gap in curve.gaps_ns(span)]
    stalls = [(gap - usual_ns) / 1e9 for gap in gaps if gap > STALL_FACTOR * usual_ns]
    report.add("calm", calm_rates, "1/s")
    report.add("under failures", rough_rates, "1/s", **dict(chaos.done.items()))
    report.add("stalls", stalls or [0.0], "s", number=len(stalls), sum_s=sum(stalls))
    report.add("effective training time", [1 - sum(stalls) / rough_s], "")
    goodput = _rate(curve, chaos.rough) / _rate(curve, chaos.calm)
    report.check("goodput", goodput, GOODPUT_MIN)
    size = max(1, round(len(curve.losses) * LOSS_SHARE))
    ours = sum(curve.losses[-size:]) / size
    calm = sum(calm_curve[-size:]) / size
    floor = loss_floor()
    report.add(f"loss of the last {size} steps", [ours], "", calm=calm)
    report.add("what a perfect model would have", [floor], "", above=ours - floor, calm_above=calm - floor)
    report.check("loss off the calm run", abs(ours / calm - 1), LOSS_MAX, at_least=False)
    report.check("steps with two results", float(curve.conflicts), 0, at_least=False)
    report.check("groups that died by themselves", float(chaos.died), 0, at_least=False)


def main() -> int:
    """Hurts one job for some minutes."""
    parser = arguments(__doc__ or "", rounds=1)
    parser.add_argument("--minutes", type=float, default=10.0, help="with failures (%(default)s)")
    parser.add_argument("--every-s", type=float, default=15.0, help="one failure each (%(default)s)")
    parser.add_argument("--calm-s", type=float, default=20.0, help="each calm span (%(default)s)")
    parser.add_argument("--groups", type=int, default=3, help="replica groups (%(default)s)")
    parser.add_argument("--spares", type=int, default=0, help="hot spares (%(default)s)")
    parser.add_argument("--size", choices=("small", "big"), default="small", help="0.56 or 18.2 million")
    parser.add_argument("--batch", type=int, default=192, help="samples of a step (%(default)s)")
    parser.add_argument(
        "--sample-us",
        type=float,
        default=300.0,
        help="what a sample takes besides, asleep, as on an accelerator: the groups' own devices, not two cores "
        "for all of them (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of kinds, victims and moments (%(default)s)")
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=["kill", "hang", "coordinator"],
        help="kill, hang (SIGSTOP for 4 s), coordinator (kill -9, back within 1 s); default: all three",
    )
    options = parse(parser)
    if options.quick:
        options.minutes, options.calm_s = 0.5, 5.0
    kinds = ", ".join(options.kinds)
    report = Report(
        "Goodput under failures",
        f"{options.groups} groups and {options.spares} spares, {options.batch} samples a step; every "
        f"{options.every_s:g} s for {options.minutes:g} min one of: {kinds}; a sample takes {options.sample_us:g} us "
        f"asleep besides; goodput: committed samples/s against calm spans of {options.calm_s:g} s in between",
        is_silent=options.json,
    )
    os.environ["BENCH_SAMPLE_US"] = str(options.sample_us)
    report.begin()
    with tempfile.TemporaryDirectory(prefix="farstep-chaos-") as name:
        folder = Path(name)
        with Job(
            Farstep(policy="global"),
            folder,
            groups=options.groups,
            size=options.size,
            batch=options.batch,
            spares=options.spares,
        ) as job:
            chaos = hurt(job, options)
            curve = curve_of(job.groups)
        tell(report, chaos, curve, calm_losses(folder, options, len(curve.losses)))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
