"""Checks of builder arguments; every message names the argument, the value and what is valid."""

from __future__ import annotations

import math

from farstep.fabric.errors import ConfigError, quoted

RATE_GBPS_MAX = 100_000.0
"""Fastest link anything is built with; a TPU's links together are some 5 Tb/s."""

LATENCY_NS_MAX = 1e10
"""Ten seconds."""

RADIX_MAX = 65_536
"""Ports of one switch."""


def whole(key: str, value: object, *, low: int, high: int, why: str = "") -> int:
    """Returns a whole number within bounds.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"{key} = {quoted(value)}: valid: a whole number from {low} to {high}{why and f' ({why})'}"
        )
    return value


def number(key: str, value: object, *, low: float, high: float, above: bool = False) -> float:
    """Returns a number within bounds; with `above`, it must be greater than `low`.

    Raises:
        ConfigError: it is something else.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (above and value == low):  # type: ignore[operator]
        span = f"above {low:g} and up to {high:g}" if above else f"from {low:g} to {high:g}"
        raise ConfigError(f"{key} = {quoted(value)}: valid: a number {span}")
    return float(value)  # type: ignore[arg-type]


def rate(key: str, value: object) -> float:
    """Returns a rate in 10^9 bit/s."""
    return number(key, value, low=0.0, high=RATE_GBPS_MAX, above=True)


def latency(key: str, value: object) -> float:
    """Returns a latency in ns."""
    return number(key, value, low=0.0, high=LATENCY_NS_MAX)


def even_radix(value: object) -> int:
    """Returns the ports of a switch of which half lead down.

    Raises:
        ConfigError: it is no even number.
    """
    radix = whole("radix", value, low=2, high=RADIX_MAX)
    if radix % 2:
        raise ConfigError(f"radix = {radix}: valid: an even number, for half of the ports lead down")
    return radix


def divides(key: str, value: int, whole_key: str, total: int) -> int:
    """Returns how often `value` goes into `total`.

    Raises:
        ConfigError: it does not, without rest.
    """
    if total % value:
        below, over = total - total % value, total + value - total % value
        raise ConfigError(
            f"{whole_key} = {total}: must be a multiple of {key} = {value}, such as {below or over}"
        )
    return total // value
