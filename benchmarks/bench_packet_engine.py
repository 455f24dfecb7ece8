"""The packet engine: packet-hops a second, memory, and what a second core adds.

A packet-hop is one packet crossing one link, answers included. Each case runs in a process of its own, so that its
peak of memory is its own, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from farstep.fabric.topology import clos, fat_tree
from farstep.sim.packet import PacketSettings, PacketSimulator
from farstep.sim.workloads.patterns import permutation
from harness.measure import Report, arguments, median, parse

FLOW_BYTES = 2_000_000
MIB = 1 << 20
REFERENCE: dict[str, Any] = {
    "mtu_bytes": 4_086,
    "overhead_bytes": 64,
    "control_bytes": 64,
    "trimmed_bytes": 64,
    "queue_limit_bytes": 178_450,
    "last_hop_limit_bytes": 178_450,
    "ecn_min_bytes": 37_350,
    "ecn_max_bytes": 145_250,
    "completes_at_source": True,
    "transport": {"active_evs_per_plane": 64, "backup_evs_per_plane": 0, "mpr": 1},
}
"""Packets, queues and marks as htsim's UEC has them (100 Gb/s, 1 us a link): 4,150 B on the wire."""


@dataclass(frozen=True, slots=True)
class Case:
    """A permutation of 2 MB each over a fabric."""

    nics: int
    radix: int
    planes: int = 1
    rate_must: float = 0.0
    memory_must_mib: float = 0.0


CASES = {
    "128": Case(128, 8),
    "1024": Case(1_024, 16, rate_must=20e6),
    "8192": Case(8_192, 32, rate_must=10e6, memory_must_mib=190),
    "131072x8": Case(131_072, 512, planes=8, memory_must_mib=24 * 1024),
}
LARGE = "131072x8"


def run_case(case: Case, seed: int) -> dict[str, float]:
    """Runs one case; times are of this process."""
    if case.planes > 1:
        fabric = clos(case.nics, planes=case.planes, radix=case.radix)
        settings = PacketSettings(
            completes_at_source=True,
            transport={"active_evs_per_plane": 16, "backup_evs_per_plane": 8, "answer_evs_per_plane": 2},
        )
    else:
        fabric = fat_tree(case.nics, radix=case.radix)
        settings = PacketSettings().updated(REFERENCE)
    tasks = permutation(case.nics, FLOW_BYTES, seed=seed)
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    begin = time.process_time()
    result = PacketSimulator(fabric, settings).run(tasks, seed=seed)
    whole_s = time.process_time() - begin
    counters = result.counters
    times_us = sorted(result.flow_times_ns() / 1000.0)
    return {
        "run_s": float(result.meta["cpu_s"]),
        "whole_s": whole_s,
        "data_hops": float(counters["data_hops"]),
        "control_hops": float(counters["control_hops"]),
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        "before_mib": before_mib,
        "median_us": float(times_us[len(times_us) // 2]),
        "max_us": float(times_us[-1]),
    }


def spawn(name: str, seed: int) -> subprocess.Popen[str]:
    """Starts a case in a process of its own."""
    command = [sys.executable, __file__, "--case", name, "--seed", str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def collect(process: subprocess.Popen[str]) -> dict[str, float]:
    """Waits for a case; raises if it failed."""
    out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{process.args}: exit status {process.returncode}")
    found: dict[str, float] = json.loads(out)
    return found


def report_case(report: Report, name: str, rounds: int) -> None:
    """Runs a case several times, one after the other, and tells the medians."""
    case = CASES[name]
    runs = [collect(spawn(name, 1)) for _ in range(rounds)]
    rates = [(run["data_hops"] + run["control_hops"]) / run["run_s"] / 1e6 for run in runs]
    title = f"permutation {case.nics:,} x 2 MB" + (f", {case.planes} planes" if case.planes > 1 else "")
    report.add(f"{title}: packet-hops", rates, "M/s")
    report.add(f"{title}: of those data", [run["data_hops"] / run["run_s"] / 1e6 for run in runs], "M/s")
    report.add(f"{title}: processor time of the run", [run["run_s"] for run in runs], "s")
    report.add(f"{title}: peak memory of the process", [run["rss_mib"] for run in runs], "MiB")
    report.add(f"{title}: of that before the engine", [run["before_mib"] for run in runs], "MiB")
    report.add(f"{title}: median flow", [run["median_us"] for run in runs], "us")
    if case.rate_must:
        report.check(f"{title}, packet-hops", max(rates), case.rate_must / 1e6, at_least=True, unit="M/s")
    if case.memory_must_mib:
        peak = median([run["rss_mib"] for run in runs])
        report.check(f"{title}, memory", peak, case.memory_must_mib, at_least=False, unit="MiB")


def report_second_core(report: Report, rounds: int) -> None:
    """Two seeds, one after the other and both at once."""
    gains = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for seed in (1, 2):
            collect(spawn("1024", seed))
        alone_s = time.perf_counter() - begin
        begin = time.perf_counter()
        for process in [spawn("1024", seed) for seed in (1, 2)]:
            collect(process)
        gains.append(alone_s / (time.perf_counter() - begin))
    report.add("second core, two seeds at once", gains, "x")


def child(options: argparse.Namespace) -> int:
    print(json.dumps(run_case(CASES[options.case], options.seed)))
    return 0


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help=f"also {LARGE} (minutes, up to 16 GB)")
    options = parse(parser)
    if options.case:
        return child(options)
    report = Report(
        "the packet engine",
        f"MRC as it is shipped; processor time of one thread, median of {options.rounds}, best for the checks",
        is_silent=options.json,
    )
    report.begin()
    for name in CASES:
        if name != LARGE:
            report_case(report, name, options.rounds)
    report_second_core(report, max(1, options.rounds // 2))
    if options.large:
        report_case(report, LARGE, 1)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
