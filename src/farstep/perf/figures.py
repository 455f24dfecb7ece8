"""What a measurement comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from farstep.engine import ConnectionStats

__all__ = ["ConnectionFigures", "Interval", "LatencyFigures", "PerfResult", "Sample"]


_COUNTED = (
    "sent_bytes",
    "sent_writes",
    "received_bytes",
    "received_writes",
    "packets",
    "retransmitted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counters of one connection at one end, since its start.

    Attributes:
        sent_bytes: confirmed by the peer, writes of ours that are through.
        received_bytes: placed in memory here.
        retransmitted: packets sent again.
    """

    sent_bytes: int = 0
    sent_writes: int = 0
    received_bytes: int = 0
    received_writes: int = 0
    packets: int = 0
    retransmitted: int = 0
    cwnd_bytes: int = 0
    rtt_us: float = 0.0

    @classmethod
    def of(cls, stats: ConnectionStats, size_bytes: int, total_bytes: int | None) -> Sample:
        """Takes them from a connection."""
        sent = stats.completed * size_bytes
        return cls(
            sent_bytes=sent if total_bytes is None else min(sent, total_bytes),
            sent_writes=stats.completed,
            received_bytes=stats.rx_bytes,
            received_writes=stats.messages_received,
            packets=stats.tx_packets,
            retransmitted=stats.retransmitted_packets,
            cwnd_bytes=stats.congestion.cwnd_bytes,
            rtt_us=stats.srtt_ns / 1e3,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures(Sample):
    """What one connection, or all together, did in a span of time, seen from one end."""

    seconds: float

    @property
    def sent_bits_per_s(self) -> float:
        """Goodput of what was sent."""
        return 8 * self.sent_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def received_bits_per_s(self) -> float:
        """Goodput of what was received."""
        return 8 * self.received_bytes / self.seconds if self.seconds > 0 else 0.0

    @classmethod
    def between(cls, first: Sample, last: Sample, seconds: float) -> ConnectionFigures:
        """What happened between two samples."""
        moved = {name: getattr(last, name) - getattr(first, name) for name in _COUNTED}
        return cls(seconds=seconds, cwnd_bytes=last.cwnd_bytes, rtt_us=last.rtt_us, **moved)

    @classmethod
    def together(cls, each: Sequence[ConnectionFigures], seconds: float) -> ConnectionFigures:
        """Adds up connections, which share their window; the round trip is the mean."""
        moved = {name: sum(getattr(one, name) for one in each) for name in _COUNTED}
        return cls(
            seconds=seconds,
            cwnd_bytes=max((one.cwnd_bytes for one in each), default=0),
            rtt_us=sum(one.rtt_us for one in each) / len(each) if each else 0.0,
            **moved,
        )

    def table(self) -> dict[str, Any]:
        """Returns it as plain values, rates included."""
        rates = {
            "sent_bits_per_s": self.sent_bits_per_s,
            "received_bits_per_s": self.received_bits_per_s,
            "sent_writes_per_s": self.sent_writes / self.seconds if self.seconds > 0 else 0.0,
            "received_writes_per_s": self.received_writes / self.seconds if self.seconds > 0 else 0.0,
        }
        return asdict(self) | rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A span of a measurement.

    Attributes:
        start_s: since its beginning.
        end_s: likewise.
        is_omitted: whether the summary leaves it out.
        total: of all connections.
        connections: of each.
    """

    start_s: float
    end_s: float
    is_omitted: bool
    total: ConnectionFigures
    connections: tuple[ConnectionFigures, ...]

    def table(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "is_omitted": self.is_omitted,
            "total": self.total.table(),
            "connections": [one.table() for one in self.connections],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyFigures:
    """Times of writes in one direction: half of what one there and one back take."""

    count: int
    min_us: float
    mean_us: float
    median_us: float
    p99_us: float
    p999_us: float
    max_us: float

    @classmethod
    def of(cls, round_trips_ns: Sequence[int]) -> LatencyFigures:
        """Summarises; at least one is needed."""
        times_us = np.asarray(round_trips_ns, dtype=np.float64) / 2e3
        median, p99, p999 = np.quantile(times_us, [0.5, 0.99, 0.999])
        return cls(
            count=len(times_us),
            min_us=float(times_us.min()),
            mean_us=float(times_us.mean()),
            median_us=float(median),
            p99_us=float(p99),
            p999_us=float(p999),
            max_us=float(times_us.max()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfResult:
    """A measurement as one end saw it.

    Attributes:
        total: of all connections, without what was omitted.
        connections: of each.
        latency: where that was measured.
        path_mode: how packets found their way.
        protection: what was done to packets: off, authenticate or encrypt.
        mtu_bytes: payload of a full packet.
        planes: per plane: packets sent, paths good and paths in all, over all connections.
        processor_share: of one core, that the transport's thread took.
        cause: why it was broken off; empty if it was not.
        peer: what the other end says, as plain values; empty if it could not.
    """

    total: ConnectionFigures
    connections: tuple[ConnectionFigures, ...]
    path_mode: str
    protection: str
    mtu_bytes: int
    planes: tuple[dict[str, int], ...]
    processor_share: float
    latency: LatencyFigures | None = None
    cause: str = ""
    peer: dict[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """Returns it as plain values."""
        return {
            "total": self.total.table(),
            "connections": [one.table() for one in self.connections],
            "latency": None if self.latency is None else asdict(self.latency),
            "path_mode": self.path_mode,
            "protection": self.protection,
            "mtu_bytes": self.mtu_bytes,
            "planes": list(self.planes),
            "processor_share": self.processor_share,
            "cause": self.cause,
            "peer": self.peer,
        }
