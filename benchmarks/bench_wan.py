"""All-reduce of 16 MB between two sites 50 ms apart on 200 Mbit/s, through the path emulator."""

from __future__ import annotations

import sys

from farstep.fabric import full_mesh
from harness.emulated import EmulatedPair, RemoteRank
from harness.measure import Report, arguments, parse
from harness.remote import RemoteEngine

RATE_MBPS = 200.0
DELAY_MS = 25.0
VECTOR_BYTES = 16_000_000
BOUNDS = {0.0: 20.0, 0.1: 20.0, 1.0: 18.0}
"""Least MB/s per percentage of loss. The line carries 25 MB/s; TCP under Gloo 14.8 to 0.3 (docs/performance.md)."""


def main() -> int:
    parser = arguments(__doc__ or "", rounds=7)
    parser.add_argument("--loss", type=float, nargs="*", default=list(BOUNDS), help="loss rates in percent")
    parser.add_argument(
        "--engine", action="store_true", help="exchange both ways over one connection as well"
    )
    options = parse(parser)
    report = Report(
        f"all-reduce of 16 MB, 2 ranks, {2 * DELAY_MS:g} ms round trip, {RATE_MBPS:g} Mbit/s",
        f"float32 sum, every element checked, slower rank's time; median of {options.rounds} operations after one "
        "to warm up; MB/s is bytes of the vector over time (25 is the line)",
        is_silent=options.json,
    )
    report.begin()
    for loss in options.loss:
        network = full_mesh(("a", "b"), rate_mbps=RATE_MBPS, delay_ms=DELAY_MS, loss_percent=loss)
        for kind, rates in (("learned", None), ("configured", [RATE_MBPS])):
            with EmulatedPair(network, RemoteRank, rates_mbps=rates) as pair:
                first = pair.all_reduce_s(VECTOR_BYTES, 1)
                times = pair.all_reduce_s(VECTOR_BYTES, options.rounds)
            found = report.add(
                f"loss {loss:g} %, rate {kind}",
                [VECTOR_BYTES / 1e6 / t for t in times],
                "MB/s",
                first=VECTOR_BYTES / 1e6 / first[0],
            )
            if loss in BOUNDS:
                report.check(f"loss {loss:g} %, rate {kind}", found, BOUNDS[loss], unit="MB/s")
            if options.engine:
                with EmulatedPair(network, RemoteEngine, rates_mbps=rates, length_bytes=VECTOR_BYTES) as pair:
                    spans = [pair.both("exchange", VECTOR_BYTES, 1) for _ in range(options.rounds + 1)]
                    stats = pair.a.call("stats")
                    assert all(pair.both("is_exact", VECTOR_BYTES)), "what arrived is not what was sent"
                seconds = [(max(a[1], b[1]) - min(a[0], b[0])) / 1e9 for a, b in spans[1:]]
                report.add(
                    f"  exchange over one connection, {kind}",
                    [VECTOR_BYTES / 1e6 / s for s in seconds],
                    "MB/s",
                )
                report.say(f"    {stats}")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
