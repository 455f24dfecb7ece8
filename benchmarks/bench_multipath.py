"""Two emulated paths as one connection: equal ones, and 200 + 50 Mbit/s with the share learned."""

from __future__ import annotations

import sys

from farstep.engine import EndpointProfile
from farstep.fabric import EmulatedNetwork, EmulatedPath
from farstep.mrc.profiles import EvProfile, Share
from harness.emulated import EmulatedPair, RemoteRank
from harness.measure import Report, arguments, parse

VECTOR_BYTES = 16_000_000


def network(rates_mbps: tuple[float, ...], delay_ms: float) -> EmulatedNetwork:
    """One plane per rate, all with the same delay."""
    paths = tuple(
        EmulatedPath(name=f"p{plane}", plane=plane, rate_mbps=rate, delay_ms=delay_ms)
        for plane, rate in enumerate(rates_mbps)
    )
    return EmulatedNetwork(sites=("a", "b"), paths=paths)


def profile(share: Share) -> EndpointProfile:
    """The default with another share."""
    return EndpointProfile(ev=EvProfile(active_per_plane=8, backup_per_plane=4, share=share))


def main() -> int:
    parser = arguments(__doc__ or "", rounds=7)
    parser.add_argument("--delay", type=float, nargs="*", default=[0.2, 25.0], help="one-way delays in ms")
    options = parse(parser)
    report = Report(
        "all-reduce of 16 MB, 2 ranks, over two paths",
        f"float32 sum, every element checked, slower rank's time; median of {options.rounds} operations after two "
        "in which rates are learned; MB/s is bytes of the vector over time. Bounds are for the short delay",
        is_silent=options.json,
    )
    report.begin()
    cases: list[tuple[str, tuple[float, ...], Share, bool, float | None]] = [
        ("200 + 200, equal, learned", (200.0, 200.0), "equal", False, 45.0),
        ("200 + 200, equal, configured", (200.0, 200.0), "equal", True, 45.0),
        ("200 + 200, capacity, learned", (200.0, 200.0), "capacity", False, 45.0),
        ("200 + 50, capacity, learned", (200.0, 50.0), "capacity", False, 28.0),
        ("200 + 50, capacity, configured", (200.0, 50.0), "capacity", True, 28.0),
        ("200 + 50, equal, learned", (200.0, 50.0), "equal", False, None),
    ]
    for delay_ms in options.delay:
        for name, rates, share, is_configured, bound in cases:
            with EmulatedPair(
                network(rates, delay_ms),
                RemoteRank,
                profile=profile(share),
                rates_mbps=list(rates) if is_configured else None,
            ) as pair:
                first = pair.all_reduce_s(VECTOR_BYTES, 2)
                times = pair.all_reduce_s(VECTOR_BYTES, options.rounds)
            title = f"{name}, {2 * delay_ms:g} ms round trip"
            found = report.add(
                title, [VECTOR_BYTES / 1e6 / t for t in times], "MB/s", first=VECTOR_BYTES / 1e6 / first[0]
            )
            if bound is not None and delay_ms < 1:
                report.check(title, found, bound, unit="MB/s")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
