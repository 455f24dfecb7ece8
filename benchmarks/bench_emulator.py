"""Measures the path emulator: throughput, rate accuracy, delay accuracy, idle CPU and time to start.

Sender and receiver are two threads of this process, the emulator is another process, so that two cores carry
everything. Run `python benchmarks/bench_emulator.py`; a name as argument runs one measurement only.
"""

from __future__ import annotations

import platform
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable

from farstep.fabric import HEADER_BYTES, EmulatedNetwork, full_mesh
from farstep.lab import Emulator

UDP_SEGMENT, UDP_GRO = 103, 104
PAYLOAD_BYTES = 4096 + 64
BUFFER_BYTES = 4 << 20


def udp(bind: tuple[str, int] = ("127.0.0.1", 0), *, gro: bool = True) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    if gro:
        made.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    made.bind(bind)
    return made


class Receiver(threading.Thread):
    """Counts what arrives, with the time of the first and last datagram."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.sock = sock
        self.packets = self.bytes = 0
        self.first = self.last = 0.0
        self.is_done = False

    def run(self) -> None:
        """Receives until told that all is sent."""
        self.sock.settimeout(0.2)
        buffer = bytearray(65_536 + 4096)
        view = memoryview(buffer)[:65_536]
        while not self.is_done:
            try:
                size, ancillary, _, _ = self.sock.recvmsg_into([view], 64)
            except TimeoutError:
                continue
            now = time.monotonic()
            self.first = self.first or now
            self.last = now
            segment = size
            for level, _, data in ancillary:
                if level == socket.IPPROTO_UDP:
                    segment = struct.unpack("=i", data[:4])[0]
            self.packets += -(-size // segment)
            self.bytes += size


def carry(
    network: EmulatedNetwork, *, offered_mbps: float, seconds: float, burst: int, size: int
) -> dict[str, float]:
    """Sends at a constant rate through the emulator; returns what arrived and what it cost."""
    with Emulator(network) as emulator:
        sink = udp()
        receiver = Receiver(sink)
        receiver.start()
        target = emulator.expose("b", 0, sink.getsockname())["a"]
        source = udp()
        source.connect(target)
        payload = bytes(burst * size)
        segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))] if burst > 1 else []
        interval = burst * (size + HEADER_BYTES) * 8 / (offered_mbps * 1e6)
        before = emulator.stats()
        start = time.monotonic()
        sent = 0
        while (now := time.monotonic()) - start < seconds:
            due = int((now - start) / interval) + 1
            while sent < due:
                source.sendmsg([payload], segment)
                sent += 1
            time.sleep(min(0.001, interval))
        elapsed = time.monotonic() - start
        time.sleep(0.3 + 2 * max(path.delay_ms for path in network.paths) / 1e3)
        after = emulator.stats()
        receiver.is_done = True
        receiver.join()
    channel = after["channels"][0]
    cpu_s = after["cpu_s"] - before["cpu_s"]
    delivered_bits = 8 * (channel["delivered_bytes"] + HEADER_BYTES * channel["delivered_packets"])
    wire_bytes = receiver.bytes + receiver.packets * HEADER_BYTES
    wire_bytes -= min(receiver.packets, burst) * (
        size + HEADER_BYTES
    )  # the first burst only starts the clock
    return {
        "offered_mbps": sent * burst * (size + HEADER_BYTES) * 8 / elapsed / 1e6,
        "arrived_mbps": wire_bytes * 8 / (receiver.last - receiver.first) / 1e6,
        "lost_percent": 100 * (1 - receiver.packets / (sent * burst)),
        "overflow": after["overflow_packets"],
        "queue_drops": channel["drops"]["queue"],
        "cpu_percent": 100 * cpu_s / (after["elapsed_s"] - before["elapsed_s"]),
        "cpu_us_per_packet": cpu_s / max(1, channel["delivered_packets"]) * 1e6,
        "mbps_per_core": delivered_bits / cpu_s / 1e6,
        "late_us_mean": channel["late_us_mean"],
        "late_us_max": channel["late_us_max"],
    }


def show(name: str, figures: dict[str, float]) -> None:
    print(f"{name:44s} " + "  ".join(f"{key} {value:,.4g}" for key, value in figures.items()), flush=True)


def throughput() -> None:
    for burst in (15, 1):
        for offered in (500, 1000, 1500, 2000, 3000):
            network = full_mesh(("a", "b"), rate_mbps=10_000.0, delay_ms=2.0, queue_limit_kb=20_000.0)
            figures = carry(network, offered_mbps=offered, seconds=3, burst=burst, size=PAYLOAD_BYTES)
            show(f"throughput, {burst} x {PAYLOAD_BYTES} B, {offered} Mbit/s", figures)


def rate() -> None:
    for mbps in (50.0, 200.0, 1000.0):
        for burst in (15, 1):
            network = full_mesh(("a", "b"), rate_mbps=mbps, delay_ms=25.0)
            figures = carry(network, offered_mbps=1.3 * mbps, seconds=3, burst=burst, size=PAYLOAD_BYTES)
            figures["rate_error_percent"] = 100 * (figures["arrived_mbps"] / mbps - 1)
            show(f"rate {mbps:g} Mbit/s overloaded, burst {burst}", figures)


def delay() -> None:
    for delay_ms in (0.0, 1.0, 25.0):
        with Emulator(full_mesh(("a", "b"), delay_ms=delay_ms)) as emulator:
            sink, source = udp(), udp()
            source.connect(emulator.expose("b", 0, sink.getsockname())["a"])
            samples = []
            for _ in range(300):
                start = time.monotonic()
                source.send(b"x")
                sink.recv(10)
                samples.append((time.monotonic() - start) * 1e3)
                time.sleep(0.002)
        samples.sort()
        show(
            f"one-way delay {delay_ms:g} ms",
            {"median_ms": statistics.median(samples), "p99_ms": samples[296], "max_ms": samples[-1]},
        )


def idle() -> None:
    with Emulator(full_mesh(("a", "b"), planes=8, rate_mbps=200.0, delay_ms=25.0)) as emulator:
        sinks = [udp() for _ in range(8)]
        for plane, sink in enumerate(sinks):
            emulator.expose("b", plane, sink.getsockname())
        before = emulator.stats()
        time.sleep(5)
        after = emulator.stats()
    seconds = after["elapsed_s"] - before["elapsed_s"]
    show(
        "idle, 8 exposed ports",
        {
            "cpu_percent": 100 * (after["cpu_s"] - before["cpu_s"]) / seconds,
            "wakeups_per_s": (after["wakeups"] - before["wakeups"]) / seconds,
        },
    )


def start() -> None:
    samples = []
    for _ in range(5):
        begin = time.monotonic()
        with Emulator(full_mesh(("a", "b"))):
            samples.append(time.monotonic() - begin)
    show("start to ready", {"median_s": statistics.median(samples), "max_s": max(samples)})


MEASUREMENTS: dict[str, Callable[[], None]] = {
    "start": start,
    "idle": idle,
    "delay": delay,
    "rate": rate,
    "throughput": throughput,
}


def main() -> int:
    chosen = sys.argv[1:] or list(MEASUREMENTS)
    unknown = [name for name in chosen if name not in MEASUREMENTS]
    if unknown:
        print(f"unknown measurement {unknown[0]!r}; valid: {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}", flush=True)
    for name in chosen:
        MEASUREMENTS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
