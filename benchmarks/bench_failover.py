"""One of eight paths silently drops everything in mid-transfer: how long nothing arrives, how soon all is well."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import numpy as np

from farstep.fabric import full_mesh
from harness.emulated import EmulatedPair
from harness.measure import Report, arguments, median, parse
from harness.remote import RemoteEngine

PATHS = 8
RATE_MBPS = 100.0
WRITE_BYTES = 4_000_000
SAMPLE_S = 0.0005
PART = 0.85


def longest_gap_ms(samples: list[tuple[int, int]], begin_ns: int, end_ns: int) -> float:
    """Longest time without a new byte, in milliseconds; an upper bound, since it includes what the sampler slept."""
    news = [at_ns for (_, before), (at_ns, received) in itertools.pairwise(samples) if received != before]
    inside = [at_ns for at_ns in news if begin_ns <= at_ns <= end_ns]
    return max((b - a for a, b in itertools.pairwise(inside)), default=0) / 1e6


def rate(samples: list[tuple[int, int]], begin_ns: int, end_ns: int) -> float:
    """Bytes per second between two moments, interpolated."""
    times, counts = zip(*samples, strict=True)
    first, last = np.interp([begin_ns, end_ns], times, counts)
    return float(last - first) / (end_ns - begin_ns) * 1e9


def recovery_ms(samples: list[tuple[int, int]], cut_ns: int, before: float, window_ns: int) -> float:
    """Time after the cut from which goodput over one window stays at `PART` of what it was."""
    end_ns = samples[-1][0] - int(0.3e9)  # the last writes trickle in
    ends = range(cut_ns + window_ns, end_ns, window_ns // 4)
    low = [end for end in ends if rate(samples, end - window_ns, end) < PART * before]
    return (low[-1] - cut_ns) / 1e6 if low else 0.0


def cut_once(delay_ms: float, lead_s: float, tail_s: float) -> dict[str, Any]:
    """Runs a transfer with one cut; returns what the receiver saw."""
    network = full_mesh(("a", "b"), planes=PATHS, rate_mbps=RATE_MBPS, delay_ms=delay_ms)
    count = int((lead_s + tail_s) * PATHS * RATE_MBPS * 125_000 * 0.95 / WRITE_BYTES)
    with EmulatedPair(network, RemoteEngine, length_bytes=WRITE_BYTES) as pair:
        pair.b.call("start_sampling", SAMPLE_S)
        pair.b.start("receive", count)
        pair.a.start("send", WRITE_BYTES, count, 8)
        time.sleep(lead_s)
        cut_ns = time.monotonic_ns()
        pair.emulator.apply({"kind": "path_down", "path": network.paths[3].name})
        applied_ns = time.monotonic_ns()
        pair.a.result()
        pair.b.result()
        samples = pair.b.call("stop_sampling")
        exact = pair.b.call("is_exact", WRITE_BYTES)
        stats = pair.a.call("stats")
    assert exact, "what arrived is not what was sent"
    rtt_ns = int(2 * delay_ms * 1e6) + 1_000_000
    settled_ns = cut_ns - int(lead_s * 0.5e9)
    window_ns = max(rtt_ns, 20_000_000)
    before = rate(samples, settled_ns, cut_ns)
    end_ns = samples[-1][0] - window_ns
    return {
        "gap_ms": longest_gap_ms(samples, cut_ns, end_ns),
        "calm_gap_ms": longest_gap_ms(samples, settled_ns, cut_ns),
        "before": before,
        "after": rate(samples, cut_ns + 10 * rtt_ns, cut_ns + 10 * rtt_ns + 4 * window_ns),
        "recovery_ms": recovery_ms(samples, applied_ns, before, window_ns),
        "stats": stats,
    }


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--delay", type=float, nargs="*", default=[2.0, 25.0], help="one-way delays in ms")
    parser.add_argument("--verbose", action="store_true", help="print the sender's counters")
    options = parse(parser)
    report = Report(
        f"one of {PATHS} paths of {RATE_MBPS:g} Mbit/s drops everything, unannounced",
        f"received bytes sampled every {SAMPLE_S * 1e3:g} ms in the receiving process; median of {options.rounds} "
        f"runs. Goodput counts as back when it stays at {PART:g} of what it was, over windows of a round trip",
        is_silent=options.json,
    )
    report.begin()
    for delay_ms in options.delay:
        rtt_ms = 2 * delay_ms
        lead_s = 1.0 + 0.04 * rtt_ms
        runs = [cut_once(delay_ms, lead_s, 1.0 + 0.02 * rtt_ms) for _ in range(options.rounds)]
        name = f"{rtt_ms:g} ms round trip"
        gap = report.add(f"{name}: longest gap after the cut", [r["gap_ms"] for r in runs], "ms")
        report.add(f"{name}: longest gap before the cut", [r["calm_gap_ms"] for r in runs], "ms")
        report.add(f"{name}: goodput before", [r["before"] / 1e6 for r in runs], "MB/s")
        back = report.add(
            f"{name}: goodput 10 round trips later", [r["after"] / r["before"] for r in runs], "x"
        )
        report.add(f"{name}: until it stays at {PART:g}", [r["recovery_ms"] for r in runs], "ms")
        report.check(f"{name}: gap", gap, 5 + 3 * rtt_ms, at_least=False, unit="ms")
        report.check(f"{name}: goodput after 10 round trips", back, PART, unit="x")
        if options.verbose:
            report.say(f"    {median([r['gap_ms'] for r in runs])} {runs[0]['stats']}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
