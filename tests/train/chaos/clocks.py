"""A wall clock that jumps: on SIGUSR1 everything in this process that asks for the time of day gets another.

The monotonic clock, by which all deadlines go, cannot be set on Linux; what a stopped machine does to it is what
SIGSTOP does.
"""

from __future__ import annotations

import datetime
import random
import signal
import time
from typing import Any

__all__ = ["install"]

JUMPS_S = (-86_400.0 * 400, -3_600.0, -2.5, 2.5, 3_600.0, 86_400.0 * 400)


class _Clock:
    offset_s = 0.0


_time, _time_ns = time.time, time.time_ns


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.fromtimestamp(time.time(), tz)


def install(seed: int) -> None:
    """Has the wall clock of this process jump at every SIGUSR1."""
    draw = random.Random(seed)

    def jump(number: int, frame: Any) -> None:
        _Clock.offset_s += draw.choice(JUMPS_S)
        _Clock.offset_s = max(-86_400.0 * 1000, min(_Clock.offset_s, 86_400.0 * 1000))

    time.time = lambda: _time() + _Clock.offset_s
    time.time_ns = lambda: _time_ns() + round(_Clock.offset_s * 1e9)
    import farstep.coordinator.journal as journal

    journal.datetime = _Datetime  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, jump)
