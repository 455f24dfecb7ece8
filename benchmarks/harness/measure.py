"""Rounds, medians, and reports that say on what and how they were measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import farstep

median = statistics.median


def environment() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "farstep": getattr(farstep, "__version__", "?"),
        "commit": _commit(),
        "load_at_start": os.getloadavg()[0],
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def interleave(
    rounds: int, variants: Mapping[str, Callable[[], float]], *, settle_s: float = 0.1
) -> dict[str, list[float]]:
    """Runs every variant once per round, so that what else the machine does hits all of them alike.

    Returns:
        Per variant one figure for each round; the figures of one round belong together.
    """
    figures: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for n in range(rounds):
        for name in names[n % len(names) :] + names[: n % len(names)]:
            figures[name].append(variants[name]())
            time.sleep(settle_s)
    return figures


def ratios(figures: Mapping[str, Sequence[float]], ours: str, other: str) -> list[float]:
    """Ours divided by the other's, round by round."""
    return [a / b for a, b in zip(figures[ours], figures[other], strict=True)]


@dataclass
class Check:
    """A figure with the bound it must keep."""

    name: str
    value: float
    bound: float
    is_lower_bound: bool = True
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value >= self.bound if self.is_lower_bound else self.value <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.is_lower_bound else "<="
        unit = f" {self.unit}" if self.unit else ""
        verdict = "holds" if self.holds else "MISSED"
        return f"{self.name}: {self.value:.4g}{unit} (must be {sign} {self.bound:g}{unit}): {verdict}"


@dataclass
class Report:
    """Collects what a benchmark finds and prints it, as text or as JSON."""

    title: str
    method: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=environment)
    is_silent: bool = False

    def add(self, name: str, figures: Sequence[float], unit: str, **more: Any) -> float:
        """Adds a row with median and spread; returns the median."""
        row = {
            "name": name,
            "median": median(figures),
            "unit": unit,
            "low": min(figures),
            "high": max(figures),
        }
        row |= {"rounds": len(figures), **more}
        self.rows.append(row)
        self.say(
            f"  {name:52s} {row['median']:10.4g} {unit:6s} ({row['low']:.4g} to {row['high']:.4g})"
            + "".join(
                f"  {key} {value:.4g}" if isinstance(value, float) else f"  {key} {value}"
                for key, value in more.items()
            )
        )
        return float(row["median"])

    def check(self, name: str, value: float, bound: float, *, at_least: bool = True, unit: str = "") -> None:
        """Adds a verdict."""
        self.checks.append(Check(name, value, bound, at_least, unit))
        self.say(f"  {self.checks[-1]}")

    def begin(self) -> None:
        """Prints what is measured, how and on what."""
        self.say(self.title)
        self.say(f"  method: {self.method}")
        self.say("  " + ", ".join(f"{key} {value}" for key, value in self.environment.items()))

    def say(self, line: str) -> None:
        """Prints a line of the text form."""
        if not self.is_silent:
            print(line, flush=True)

    def end(self) -> int:
        """Prints the JSON form if that was asked for; returns the exit code: 0, or 1 if a bound was missed."""
        if self.is_silent:
            checks = [{**asdict(check), "holds": check.holds} for check in self.checks]
            facts = {"title": self.title, "method": self.method, "environment": self.environment}
            print(json.dumps({**facts, "rows": self.rows, "checks": checks}))
        return 0 if all(check.holds for check in self.checks) else 1


def arguments(description: str, *, rounds: int = 5) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="rounds to take the median of (%(default)s)"
    )
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line; `--quick` means one round."""
    options = parser.parse_args()
    if options.rounds < 1:
        sys.exit("error: --rounds must be at least 1")
    if options.quick:
        options.rounds = 1
    return options
