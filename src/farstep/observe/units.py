"""Quantities as people read them: few digits, a unit always, and lines made of block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=+*#@"
_PREFIXES = ("", "k", "M", "G", "T", "P")


def quantity_text(value: float, unit: str) -> str:
    """Returns a quantity with three digits and a decimal prefix: 4,432,000 B/s is `4.43 MB/s`."""
    if not math.isfinite(value):
        return f"{value} {unit}".rstrip()
    prefix = 0
    while abs(value) >= 999.5 and prefix < len(_PREFIXES) - 1:
        value /= 1000
        prefix += 1
    digits = 0 if prefix == 0 and value == int(value) else max(0, 2 - int(math.log10(max(abs(value), 1))))
    return f"{value:.{digits}f} {_PREFIXES[prefix]}{unit}".rstrip()


def bytes_text(num_bytes: float) -> str:
    """Returns a number of bytes, such as `4.43 MB`."""
    return quantity_text(num_bytes, "B")


def rate_text(bytes_per_s: float) -> str:
    """Returns bytes per second, such as `4.43 MB/s`."""
    return quantity_text(bytes_per_s, "B/s")


def milliseconds_text(time_ns: float) -> str:
    """Returns a time in milliseconds, such as `21.3 ms`, with digits for about one part in a thousand."""
    time_ms = time_ns / 1e6
    digits = 2 if abs(time_ms) < 10 else 1 if abs(time_ms) < 100 else 0
    return f"{time_ms:,.{digits}f} ms"


def duration_text(seconds: float) -> str:
    """Returns a duration as a clock shows it, such as `1:02:03` or `2:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def spark_line(
    values: Sequence[float],
    width: int,
    *,
    low: float | None = 0.0,
    high: float | None = None,
    ascii_only: bool = False,
) -> str:
    """Returns the latest values as one line of block characters, padded on the left to `width`.

    With `low` at zero, a value of exactly zero is a blank, so that silence differs from little.

    Args:
        values: oldest first.
        width: characters.
        low: value of the lowest block; None for the smallest value shown.
        high: value of the highest block; None for the largest value shown.
        ascii_only: for terminals that cannot show block characters.
    """
    shown = [value for value in values[-width:] if math.isfinite(value)] if width > 0 else []
    if not shown:
        return " " * max(0, width)
    bottom = min(shown) if low is None else low
    top = max(shown) if high is None else high
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    scale = (len(blocks) - 1) / (top - bottom) if top > bottom else 0.0
    line = ""
    for value in shown:
        level = min(len(blocks) - 1, max(0, round((value - bottom) * scale)))
        line += " " if value == low == 0.0 else blocks[level]
    return line.rjust(width)
