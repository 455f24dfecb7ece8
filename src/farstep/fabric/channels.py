"""One direction of one path, and what it does to packets.

A fault script speaks of paths, planes and sites. Whatever carries it out (the path emulator, a lab of
namespaces, a simulator) works on channels: a path has one channel in each direction, with its own queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HEADER_BYTES = 28
"""IPv4 (20 B) and UDP (8 B) headers: counted, with the payload, against a channel's rate and queue."""

QUEUE_DEFAULT_MS = 50.0
"""A queue without a stated limit holds this much at the rate in force: one round trip of a long-haul path,
the classic rule for one flow."""

QUEUE_DEFAULT_BYTES_MIN = 256_000
"""...but never less than a few full segmentation bursts (64 KB each), or a slow path would drop them all."""


class Channel(NamedTuple):
    """One direction of one path."""

    path: str
    """Name of the path, unique in the network."""
    plane: int
    """Plane (independent sub-network) the path belongs to."""
    from_site: str
    """Site packets enter at."""
    to_site: str
    """Site packets leave at."""

    def __str__(self) -> str:
        return f"{self.path} {self.from_site}->{self.to_site}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """What a channel does to packets at one moment.

    Shares (`*_percent`) are per packet, in 0..100.
    """

    is_down: bool = False
    """Nothing passes."""
    is_detected: bool = False
    """The outage is signalled (link-down) instead of being a silent black hole."""
    rate_mbps: float | None = None
    """Serialisation rate in 10^6 bit/s, headers counted (`HEADER_BYTES`); None: unlimited."""
    delay_ms: float = 0.0
    """Propagation delay in this direction."""
    jitter_ms: float = 0.0
    """Each packet takes up to this much more than `delay_ms`, uniformly; order is kept."""
    loss_percent: float = 0.0
    """Share of packets lost at random."""
    loss_burst_packets: float = 1.0
    """Mean number of consecutive packets a loss takes; 1: losses are independent."""
    reorder_percent: float = 0.0
    """Share of packets held back so that later ones overtake them."""
    reorder_delay_ms: float = 1.0
    """How long a reordered packet is held back."""
    duplicate_percent: float = 0.0
    """Share of packets delivered twice."""
    corrupt_percent: float = 0.0
    """Share of packets with one payload bit flipped (under a checksum that still fits)."""
    ecn_threshold_bytes: int | None = None
    """ECN-capable packets that find more than this in the queue are marked; None: no marking."""
    queue_limit_bytes: int | None = None
    """A packet that does not fit below this is dropped; None: the default of `queue_bytes_max`."""

    @property
    def queue_bytes_max(self) -> int | None:
        """Queue limit in force, in bytes; None when the rate is unlimited, since then nothing queues."""
        if self.rate_mbps is None:
            return None
        if self.queue_limit_bytes is not None:
            return self.queue_limit_bytes
        return max(QUEUE_DEFAULT_BYTES_MIN, bytes_in_ms(self.rate_mbps, QUEUE_DEFAULT_MS))


def bytes_in_ms(rate_mbps: float, duration_ms: float) -> int:
    """Returns the bytes a rate carries in a time.

    Example:
        >>> bytes_in_ms(200.0, 50.0)
        1250000
    """
    return round(rate_mbps * duration_ms * 125.0)
