"""What protection costs: goodput of one connection over loopback in every mode, against raw UDP with offloads."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench_goodput import HEADERS_BYTES, SEND_MAX_BYTES, WRITE_BYTES, Engines, udp_bytes_per_s
from farstep.coordinator.certificates import make_certificates
from farstep.engine import EndpointProfile, Identity, Protection, SecurityProfile
from harness.measure import Report, arguments, interleave, parse, ratios

MODES = (("off", 128), ("authenticate", 128), ("encrypt", 128), ("encrypt", 256))


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--writes", type=int, default=16, help="64 MiB writes per measurement (%(default)s)")
    parser.add_argument(
        "--mtu", type=int, default=None, help="payload of a packet (default: the engine's own choice)"
    )
    options = parse(parser)
    writes = 4 if options.quick else options.writes
    total = writes * WRITE_BYTES
    mtu = options.mtu or 16_000
    report = Report(
        f"goodput over loopback by mode of protection, {mtu} B packets",
        f"{writes} writes of 64 MiB with 4 in flight, peers in two processes; variants interleaved, median of "
        f"{options.rounds} rounds, ratios round by round",
        is_silent=options.json,
    )
    report.begin()
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder), ["bench"])
        identity = Identity.in_directory(folder, "bench")

        def ours(mode: str, key_bits: int) -> float:
            wish = SecurityProfile(identity=identity, within_site=Protection(mode), key_bits=key_bits)
            engines = Engines(EndpointProfile(mtu_bytes=options.mtu, security=wish))
            try:
                return engines.transfer(writes, 4)
            finally:
                engines.close()

        segment = mtu + HEADERS_BYTES
        variants = {f"{mode}, AES-{bits}" if mode != "off" else mode: (mode, bits) for mode, bits in MODES}
        measured = {name: (lambda v=variant: ours(*v)) for name, variant in variants.items()}
        measured["raw UDP"] = lambda: udp_bytes_per_s(total, segment, SEND_MAX_BYTES // segment)
        figures = interleave(options.rounds, measured)
    for name, values in figures.items():
        report.add(name, [v / 1e9 for v in values], "GB/s")
    for name in variants:
        found = report.add(f"{name} / raw UDP", ratios(figures, name, "raw UDP"), "x")
        if name == "encrypt, AES-128":
            report.check("goodput with encryption against UDP", found, 0.5, unit="x")
    for name in list(variants)[1:]:
        report.add(f"{name} / off", ratios(figures, name, "off"), "x")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
