"""Packets on their way: runs of equal segments, the batches they leave in, and the counts of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farstep.lab.buffers import Chunk

SEGMENTS_MAX = 64
"""Segments of one segmentation-offload send; the kernel's own limit (UDP_MAX_SEGMENTS) before 6.9."""

SEND_BYTES_MAX = 65_000
"""Bytes of one segmentation-offload send: below the largest UDP payload over IPv4 and IPv6."""

DROP_CAUSES = ("outage", "queue", "loss", "memory")
"""Why a packet was dropped: channel down, queue full, random loss, the emulator's buffers full."""


class Exit(Protocol):
    """Where packets leave the emulation."""

    def send(self, views: Sequence[memoryview], segment_bytes: int, count: int, tos: int) -> None:
        """Sends `count` datagrams lying one after the other in `views`; only the last may be shorter."""


@dataclass(slots=True)
class Counters:
    """What became of the packets of one channel; bytes are UDP payload."""

    offered_packets: int = 0
    offered_bytes: int = 0
    delivered_packets: int = 0
    delivered_bytes: int = 0
    duplicated: int = 0
    corrupted: int = 0
    reordered: int = 0
    ecn_marked: int = 0
    drops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DROP_CAUSES, 0))
    late_ns_sum: int = 0
    """Sum over releases of how long after its due time the first packet left."""
    late_ns_max: int = 0
    releases: int = 0


class Run:
    """Equally spaced segments of equal size on their way to one exit."""

    __slots__ = (
        "chunk",
        "count",
        "delay_ns",
        "due_ns",
        "exit",
        "gap_ns",
        "offset",
        "segment_bytes",
        "tos",
        "view",
    )

    def __init__(
        self,
        view: memoryview,
        offset: int,
        segment_bytes: int,
        count: int,
        due_ns: int,
        gap_ns: int,
        delay_ns: int,
        tos: int,
        exit: Exit,
        chunk: Chunk,
    ) -> None:
        self.view = view
        self.offset = offset
        self.segment_bytes = segment_bytes
        self.count = count
        self.due_ns = due_ns
        self.gap_ns = gap_ns
        self.delay_ns = delay_ns
        self.tos = tos
        self.exit = exit
        self.chunk = chunk


class Batch:
    """Datagrams collected for one send: equal sizes, the last possibly shorter."""

    __slots__ = ("bytes", "count", "counters", "exit", "is_closed", "segment_bytes", "sent", "tos", "views")

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.sent = 0
        self.views: list[memoryview] = []
        self.exit: Exit | None = None
        self.count = self.bytes = self.segment_bytes = self.tos = 0
        self.is_closed = False

    def add(self, run: Run, take: int) -> None:
        """Takes segments off the front of a run."""
        size = run.segment_bytes
        while take > 0:
            if (
                run.exit is not self.exit
                or run.tos != self.tos
                or self.is_closed
                or size > self.segment_bytes
                or self.count >= SEGMENTS_MAX
                or self.bytes + size > SEND_BYTES_MAX
                or size == 0
            ):
                self.flush()
                self.exit, self.tos, self.segment_bytes = run.exit, run.tos, size
            num = min(take, SEGMENTS_MAX - self.count, max(1, (SEND_BYTES_MAX - self.bytes) // max(1, size)))
            if size < self.segment_bytes:
                num = 1
                self.is_closed = True
            end = run.offset + num * size
            self.views.append(run.view[run.offset : end])
            self.count += num
            self.bytes += num * size
            run.offset = end
            run.count -= num
            run.due_ns += num * run.gap_ns
            take -= num

    def flush(self) -> None:
        """Sends what is collected."""
        if self.exit is not None and self.count:
            self.exit.send(self.views, self.segment_bytes, self.count, self.tos)
            self.sent += self.count
            self.counters.delivered_packets += self.count
            self.counters.delivered_bytes += self.bytes
        self.views = []
        self.exit = None
        self.count = self.bytes = self.segment_bytes = 0
        self.is_closed = False
