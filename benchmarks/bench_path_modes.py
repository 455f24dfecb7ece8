"""Goodput of one connection over ::1 in both path modes; every path of `srv6` leads there, packet by packet."""

from __future__ import annotations

import ipaddress
import sys
import time
from dataclasses import dataclass

import numpy as np

from farstep.engine import Attachment, Endpoint, EndpointProfile, PortConfig
from farstep.mrc.addressing import PathTemplate
from harness.measure import Report, arguments, interleave, parse, ratios

WRITE_BYTES = 64 << 20
PACKETS_BYTES = (4096, 8192, 16_000)
UPLINKS = 16
WAIT_S = 60.0


@dataclass(frozen=True)
class Home:
    """A path of which nothing is left but the loopback address."""

    address = ipaddress.IPv6Address("::1")


class Pair:
    """Two endpoints of this process, each with a thread of its own."""

    def __init__(self, path_mode: str, mtu_bytes: int) -> None:
        profile = EndpointProfile(path_mode=path_mode, mtu_bytes=mtu_bytes)  # type: ignore[arg-type]
        self.ends = [
            Endpoint(
                [
                    PortConfig(
                        "[::1]:0",
                        attachment=Attachment(block=0xFCBBBBBB, leaf=leaf, downlink=0, uplinks=UPLINKS),
                    )
                ],
                profile=profile,
            )
            for leaf in range(2)
        ]
        connections = [end.create_connection() for end in self.ends]
        for one, other in (connections, connections[::-1]):
            one.connect(other.descriptor)
        self.connection = connections[0]
        source, target = np.full(WRITE_BYTES, 7, np.uint8), np.zeros(WRITE_BYTES, np.uint8)
        self.region, self.landing = self.ends[0].register(source), self.ends[1].register(target)

    def bytes_per_s(self) -> float:
        """Rate of one large write."""
        begin_s = time.perf_counter()
        self.connection.write(self.region, 0, WRITE_BYTES, self.landing.remote, 0).wait(WAIT_S)
        return WRITE_BYTES / (time.perf_counter() - begin_s)

    def close(self) -> None:
        """Ends both."""
        for end in self.ends:
            end.close()


def main() -> int:
    options = parse(arguments(__doc__ or "", rounds=15))
    Attachment.arrival = Attachment.gateway = lambda self, plane: Home.address  # type: ignore[method-assign]
    PathTemplate.path = lambda self, ev: Home()  # type: ignore[method-assign, assignment, return-value]
    report = Report(
        "path modes over loopback",
        f"writes of {WRITE_BYTES >> 20} MiB in turns, median of {options.rounds}",
        is_silent=options.json,
    )
    report.begin()
    for mtu_bytes in PACKETS_BYTES:
        pairs = {mode: Pair(mode, mtu_bytes) for mode in ("udp", "srv6")}
        figures = interleave(
            options.rounds, {mode: pair.bytes_per_s for mode, pair in pairs.items()}, settle_s=0.02
        )
        for pair in pairs.values():
            pair.close()
        for mode in pairs:
            report.add(f"{mode}, packets of {mtu_bytes} bytes", [f / 1e9 for f in figures[mode]], "GB/s")
        report.add(f"srv6 / udp, packets of {mtu_bytes} bytes", ratios(figures, "srv6", "udp"), "x")
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
