"""How a fabric is emulated on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from farstep.fabric.errors import ConfigError, quoted
from farstep.fabric.expected import expect_whole

__all__ = ["DELAY_MS_MIN", "LabOptions"]

DELAY_MS_MIN = 0.1
"""Shorter delays are left out: the kernel itself takes some 0.01 ms from end to end, and timers as much."""

RATE_SHAPED_MBPS_MAX = 20_000.0
"""Faster links are not held to their rate: no processor carries that much through a fabric anyway."""

BURST_MS = 0.5
"""What a shaper may send at once, in time at its rate..."""

BURST_PACKETS_MIN = 2
"""...but never less than so many packets."""

QUEUE_PACKETS_MIN = 8
"""A queue holds this many packets of full size at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions:
    """How a fabric is emulated.

    Args:
        rate_scale: links have this part of the rates in the description; 0.001 makes 100 Gb/s 100 Mb/s.
        mtu_bytes: largest packet on a link.
        queue_ms: what waits in front of a link at most, in time at its rate.
        mark_ms: from how much waiting on ECN-capable packets are marked, in time at the link's rate; 0: never.
        delay: who holds packets back on links of `DELAY_MS_MIN` and more: the kernel (`netem`), or a process that
            carries them between TUN devices (`tunnel`); `none` on no link.

    Raises:
        ConfigError: a value cannot be used.
    """

    rate_scale: float = 1.0
    mtu_bytes: int = 9000
    queue_ms: float = 20.0
    mark_ms: float = 5.0
    delay: Literal["netem", "tunnel", "none"] = "tunnel"

    def __post_init__(self) -> None:
        _check_number("scale", self.rate_scale, 1e-9, 1e3)
        expect_whole("mtu", self.mtu_bytes, 1500, 65_000)
        _check_number("queue_ms", self.queue_ms, 0.01, 10_000.0)
        _check_number("mark_ms", self.mark_ms, 0.0, 10_000.0)
        if self.delay not in ("netem", "tunnel", "none"):
            raise ConfigError(f"delay = {quoted(self.delay)}: valid: netem, tunnel, none")

    def carries(self, delay_ms: float) -> bool:
        """Whether packets on a link of this delay go through a process that holds them back."""
        return self.delay == "tunnel" and delay_ms >= DELAY_MS_MIN

    def burst_bytes(self, rate_mbps: float) -> int:
        """Returns what a shaper of this rate may send at once."""
        return max(BURST_PACKETS_MIN * (self.mtu_bytes + 14), round(rate_mbps * BURST_MS * 125))

    def queue_bytes(self, rate_mbps: float) -> int:
        """Returns what may wait in front of a link of this rate."""
        return max(QUEUE_PACKETS_MIN * (self.mtu_bytes + 14), round(rate_mbps * self.queue_ms * 125))

    def mark_bytes(self, rate_mbps: float) -> int:
        """Returns how much may wait before packets are marked."""
        return max(self.mtu_bytes, round(rate_mbps * self.mark_ms * 125))


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name} = {quoted(value)}: valid: {low:g} to {high:g}")
