"""Sweeps: what a second core adds to one seed after the other.

Both ways are what a user types, `farstep sweep -j 1` and `-j 2`, started from nothing, with every result written to a
file. Needs a machine of two cores that does nothing else.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from harness.measure import Report, arguments, interleave, parse, ratios

SCENARIO = """\
[fabric]
kind = "fat-tree"
nics = {nics}
radix = {radix}

[workload]
kind = "permutation"
size_bytes = {size_bytes}
"""
GAIN_MIN = 1.6


def sweep_s(scenario: Path, level: str, seeds: int, processes: int) -> float:
    """Wall time of a whole sweep.

    Raises:
        RuntimeError: not every seed came to an end.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "farstep", "sweep", str(scenario), "--quiet", "--level", level]
        command += ["--seeds", f"0:{seeds}", "-j", str(processes), "--out", folder]
        begin = time.perf_counter()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        took_s = time.perf_counter() - begin
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()}")
        with Path(folder, "results.csv").open(encoding="utf-8") as file:
            ended = [row for row in csv.DictReader(file) if row["status"] == "done"]
        if len(ended) != seeds:
            raise RuntimeError(f"{len(ended)} of {seeds} seeds came to an end")
        return took_s


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--nics", type=int, default=1024, help="NICs of the fat tree (%(default)s)")
    parser.add_argument("--radix", type=int, default=16, help="ports of a switch (%(default)s)")
    parser.add_argument("--size-bytes", type=int, default=2_000_000, help="bytes of a flow (%(default)s)")
    parser.add_argument("--seeds", type=int, default=64, help="simulations of a sweep (%(default)s)")
    parser.add_argument("--level", choices=("packet", "flow"), default="packet")
    options = parse(parser)
    report = Report(
        "sweeps",
        f"wall time of farstep sweep, in turns; gain pair by pair, median of {options.rounds}",
        is_silent=options.json,
    )
    report.begin()
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "permutation.toml")
        scenario.write_text(
            SCENARIO.format(nics=options.nics, radix=options.radix, size_bytes=options.size_bytes),
            encoding="utf-8",
        )
        figures = interleave(
            options.rounds,
            {
                f"-j {processes}": partial(sweep_s, scenario, options.level, options.seeds, processes)
                for processes in (1, 2)
            },
        )
    title = (
        f"{options.seeds} seeds of {options.nics:,} x {options.size_bytes / 1e6:g} MB, {options.level} level"
    )
    for name, values in figures.items():
        report.add(f"{title}, {name}", values, "s")
    gain = report.add("what a second core gains", ratios(figures, "-j 1", "-j 2"), "x")
    report.check("second core, seeds in parallel", gain, GAIN_MIN, unit="x")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
