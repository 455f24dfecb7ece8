"""Goodput of one connection over loopback, against raw UDP with offloads and against one TCP stream."""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory

from farstep.engine import EndpointProfile
from harness.measure import Report, arguments, interleave, parse, ratios
from harness.remote import Remote, RemoteEngine, join, page_aligned

UDP_SEGMENT, UDP_GRO = 103, 104
WRITE_BYTES = 64 << 20
SEND_MAX_BYTES = 65_000
HEADERS_BYTES = 44
BUFFER_BYTES = 4 << 20
OUTSTANDING_BYTES = 1 << 20
CACHED_BYTES = 1 << 20


class UdpReceiver:
    """Counts what a socket with receive offload takes in, and publishes the count in shared memory."""

    def __init__(self, counter: str) -> None:
        self._shared = shared_memory.SharedMemory(counter)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(5)

    def address(self) -> tuple[str, int]:
        """Where to send to."""
        host, port = self._socket.getsockname()
        return host, port

    def receive(self, total_bytes: int) -> int:
        """Returns when that much has come (monotonic ns)."""
        buffer, count, view = page_aligned(1 << 16), 0, self._shared.buf
        receive = self._socket.recv_into
        pack = struct.Struct("=Q").pack_into
        while count < total_bytes:
            count += receive(buffer)
            pack(view, 0, count)
        return time.monotonic_ns()


class UdpSender:
    """Sends segments from a large buffer, never more outstanding than the receiver's queue holds."""

    def __init__(self, counter: str) -> None:
        self._shared = shared_memory.SharedMemory(counter)
        self._source = page_aligned(WRITE_BYTES)

    def send(
        self, to: tuple[str, int], total_bytes: int, segment_bytes: int, segments: int, memory_bytes: int
    ) -> int:
        """Goes round `memory_bytes` of the buffer; returns when it began (monotonic ns)."""
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        if segments > 1:
            out.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, segment_bytes)
        out.connect(to)
        chunk = segment_bytes * segments
        view = memoryview(self._source)
        pieces = [view[at : at + chunk] for at in range(0, max(memory_bytes - chunk, 1), chunk)]
        unpack, counter = struct.Struct("=Q").unpack_from, self._shared.buf
        begin_ns, sent, n = time.monotonic_ns(), 0, 0
        while sent < total_bytes:
            while sent - unpack(counter)[0] > OUTSTANDING_BYTES:
                time.sleep(0)
            out.send(pieces[n % len(pieces)])
            sent += chunk
            n += 1
        out.close()
        return begin_ns


def udp_bytes_per_s(
    total_bytes: int, segment_bytes: int, segments: int, memory_bytes: int = WRITE_BYTES
) -> float:
    """Rate of raw UDP with segmentation and receive offload between two processes, without loss."""
    shared = shared_memory.SharedMemory(create=True, size=8)
    try:
        with Remote(UdpReceiver, shared.name) as receiver, Remote(UdpSender, shared.name) as sender:
            to = receiver.call("address")
            chunk = segment_bytes * segments
            total_bytes -= total_bytes % chunk
            receiver.start("receive", total_bytes)
            sender.start("send", to, total_bytes, segment_bytes, segments, memory_bytes)
            begin_ns, end_ns = sender.result(), receiver.result()
    finally:
        shared.close()
        shared.unlink()
    return total_bytes / (end_ns - begin_ns) * 1e9


class TcpReceiver:
    """Takes one stream into a buffer as large as a write."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = page_aligned(WRITE_BYTES)

    def address(self) -> tuple[str, int]:
        """Where to send to."""
        host, port = self._listener.getsockname()
        return host, port

    def receive(self, total_bytes: int, memory_bytes: int) -> int:
        """Goes round `memory_bytes` of the buffer; returns when that much has come (monotonic ns)."""
        stream, _ = self._listener.accept()
        view, count = memoryview(self._target)[:memory_bytes], 0
        while count < total_bytes:
            count += stream.recv_into(view[count % memory_bytes :])
        stream.sendall(b"k")
        stream.close()
        return time.monotonic_ns()


class TcpSender:
    """Sends a large buffer again and again over one stream."""

    def __init__(self) -> None:
        self._source = page_aligned(WRITE_BYTES)

    def send(self, to: tuple[str, int], total_bytes: int, memory_bytes: int) -> tuple[int, int]:
        """Returns when it began and when the receiver had all (monotonic ns)."""
        view = memoryview(self._source)[:memory_bytes]
        stream = socket.create_connection(to)
        begin_ns = time.monotonic_ns()
        for _ in range(total_bytes // memory_bytes):
            stream.sendall(view)
        stream.recv(1)
        end_ns = time.monotonic_ns()
        stream.close()
        return begin_ns, end_ns


def tcp_bytes_per_s(total_bytes: int, memory_bytes: int = WRITE_BYTES) -> float:
    """Rate of one TCP stream, acknowledged by the application at its end."""
    with Remote(TcpReceiver) as receiver, Remote(TcpSender) as sender:
        to = receiver.call("address")
        receiver.start("receive", total_bytes, memory_bytes)
        begin_ns, end_ns = sender.call("send", to, total_bytes, memory_bytes)
        receiver.result()
    return total_bytes / (end_ns - begin_ns) * 1e9


class Engines:
    """Two endpoints in two processes, joined over loopback."""

    def __init__(self, profile: EndpointProfile, ports: int = 1) -> None:
        arguments = (["127.0.0.1"] * ports, profile, "", WRITE_BYTES)
        self.a, self.b = Remote(RemoteEngine, *arguments), Remote(RemoteEngine, *arguments)
        join(self.a, self.b)
        self.transfer(2, 2)  # touches all pages, measures the path

    def transfer(self, count: int, in_flight: int) -> float:
        """Bytes per second of writes, from the first post to the last completion."""
        self.b.start("receive", count)
        begin_ns, end_ns = self.a.call("send", WRITE_BYTES, count, in_flight)
        self.b.result()
        return count * WRITE_BYTES / (end_ns - begin_ns) * 1e9

    def close(self) -> None:
        """Ends both, once it is clear that what arrived is right."""
        assert self.b.call("is_exact", WRITE_BYTES)
        self.a.close()
        self.b.close()


def add_variants(report: Report, ours: Callable[..., float], total: int, options: argparse.Namespace) -> None:
    """Measures other packet sizes, burst lengths and settings, beside raw UDP of the same sizes."""
    others = {
        f"mtu {m}, burst {b}": EndpointProfile(mtu_bytes=m, burst_segments=b)
        for m, b in ((4096, 1), (4096, 4), (4096, 15), (8192, 7))
    }
    more = {name: (lambda p=p: ours(p)) for name, p in others.items()}
    more["icrc off"] = lambda: ours(EndpointProfile(mtu_bytes=options.mtu, icrc=False))
    more["one write at a time"] = lambda: ours(EndpointProfile(mtu_bytes=options.mtu), in_flight=1)
    more["4 ports"] = lambda: ours(EndpointProfile(mtu_bytes=options.mtu), ports=4)
    more["raw UDP 15 x 4140 B"] = lambda: udp_bytes_per_s(total, 4140, 15)
    more["raw UDP 1 x 4140 B"] = lambda: udp_bytes_per_s(total // 4, 4140, 1)
    found = interleave(max(1, min(options.rounds, 3)), more)
    for name, values in found.items():
        report.add(name, [v / 1e9 for v in values], "GB/s")
    report.add(
        "mtu 4096, burst 15 / raw UDP 15 x 4140 B",
        ratios(found, "mtu 4096, burst 15", "raw UDP 15 x 4140 B"),
        "x",
    )


def main() -> int:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--writes", type=int, default=16, help="64 MiB writes per measurement (%(default)s)")
    parser.add_argument(
        "--mtu",
        type=int,
        default=None,
        help="payload of a packet of the main comparison (default: the engine's own choice)",
    )
    parser.add_argument("--only-main", action="store_true", help="leave the variants out")
    options = parse(parser)
    writes = 4 if options.quick else options.writes
    total = writes * WRITE_BYTES
    report = Report(
        "goodput over loopback, 64 MiB writes, encryption off, invariant CRC on",
        f"{writes} writes with 4 in flight, peers in two processes; variants interleaved, median of "
        f"{options.rounds} rounds, ratios round by round",
        is_silent=options.json,
    )
    report.begin()
    mtu = options.mtu or 16_000
    profile = EndpointProfile(mtu_bytes=options.mtu)
    segment, segments = mtu + HEADERS_BYTES, SEND_MAX_BYTES // (mtu + HEADERS_BYTES)

    def ours(settings: EndpointProfile, in_flight: int = 4, ports: int = 1) -> float:
        engines = Engines(settings, ports)
        try:
            return engines.transfer(writes, in_flight)
        finally:
            engines.close()

    variants = {
        "farstep": lambda: ours(profile),
        "udp": lambda: udp_bytes_per_s(total, segment, segments),
        "tcp": lambda: tcp_bytes_per_s(total),
        "udp from cache": lambda: udp_bytes_per_s(total, segment, segments, segment * segments),
        "tcp from cache": lambda: tcp_bytes_per_s(total, CACHED_BYTES),
    }
    figures = interleave(options.rounds, variants)
    names = {
        "farstep": "farstep",
        "udp": f"raw UDP, {segments} x {segment} B per send",
        "tcp": "one TCP stream",
        "udp from cache": "raw UDP, always the same burst",
        "tcp from cache": "one TCP stream, always the same megabyte",
    }
    for key, name in names.items():
        report.add(name, [f / 1e9 for f in figures[key]], "GB/s")
    # The others may also send and receive in memory that stays in the cache, which no transfer of 64 MiB can: the
    # bounds are kept against whichever is faster.
    for other, bound in (("udp", 0.5), ("tcp", 1.2)):
        found = {
            kind: report.add(f"farstep / {names[kind]}", ratios(figures, "farstep", kind), "x")
            for kind in (other, f"{other} from cache")
        }
        report.check(f"goodput against {other.upper()}", min(found.values()), bound, unit="x")
    if not options.only_main:
        add_variants(report, ours, total, options)
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
