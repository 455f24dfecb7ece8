"""Whether the thread that trains still moves, told by the thread that sends heartbeats.

A worker whose training thread is stuck (a data loader in a deadlock, a kernel that never returns) goes on sending
heartbeats, and those who wait for it look just like it: nobody moves. What tells them apart is what each is at. The
training thread notes that in a beacon; whoever has been at work of its own for much longer than ever before is stuck.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Protocol

__all__ = ["Beacon", "Lamp"]

STEP_FACTOR = 10
"""A step's own work may take so many times the median of the latest ones."""

PAUSE_FACTOR = 3
"""Between two steps a loop may do so many times what it has done there at most: an evaluation, say."""

WARM_STEPS = 3
"""Steps before anybody is suspected: the first ones compile, allocate and load."""

WINDOW_STEPS = 64


class Lamp(Protocol):
    """What a heartbeat looks at."""

    def stuck_ns(self, now_ns: int) -> int | None:
        """Returns for how long the training thread has been stuck; None if it is not, or may not be."""


class _At(Enum):
    REST = "whatever may take as long as it likes"
    STEP = "a step's own work"
    PAUSE = "what the loop does between two steps"


class Beacon:
    """What the training thread is at; set by that thread alone, read by any.

    Args:
        stall_s: less time than this at one thing is never suspect, however short steps are.
        clock: monotonic time in ns.
    """

    def __init__(self, stall_s: float = 2.0, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._at = _At.REST
        self._own_ns: deque[int] = deque(maxlen=WINDOW_STEPS)
        self._own_so_far_ns = 0
        self._longest_pause_ns = 0
        self._num_steps = 0
        self._median_ns = 0
        self._state: tuple[int, float | None] = (
            clock(),
            None,
        )  # since when, and how long it may last; one object

    def begin_step(self) -> None:
        """A step begins here: what the loop did since the last one is over."""
        now_ns = self._clock()
        if self._at is _At.PAUSE:
            self._longest_pause_ns = max(self._longest_pause_ns, now_ns - self._state[0])
        self._own_so_far_ns = 0
        self._go(_At.STEP, now_ns)

    def end_step(self) -> None:
        """The step is committed; what comes next is the user's."""
        now_ns = self._clock()
        self._leave_step(now_ns)
        self._own_ns.append(self._own_so_far_ns)
        self._num_steps += 1
        self._median_ns = int(statistics.median_low(self._own_ns))
        self._go(_At.PAUSE, now_ns)

    def forget(self) -> None:
        """This member begins anew: its next steps are its first."""
        self._num_steps = 0
        self._go(_At.REST, self._clock())

    @contextmanager
    def resting(self) -> Iterator[None]:
        """While the context lasts nobody waits for this thread: it waits for others, or does what takes its time."""
        before, now_ns = self._at, self._clock()
        self._leave_step(now_ns)
        if before is _At.PAUSE:
            self._longest_pause_ns = max(self._longest_pause_ns, now_ns - self._state[0])
        self._go(_At.REST, now_ns)
        try:
            yield
        finally:
            self._go(before, self._clock())

    def stuck_ns(self, now_ns: int) -> int | None:
        """Returns for how long the thread has been at one thing beyond what that may take; None if it has not."""
        since_ns, limit_ns = self._state
        if limit_ns is None or now_ns - since_ns <= limit_ns:
            return None
        return int(now_ns - since_ns - limit_ns)

    def _leave_step(self, now_ns: int) -> None:
        if self._at is _At.STEP:
            self._own_so_far_ns += now_ns - self._state[0]

    def _go(self, at: _At, now_ns: int) -> None:
        self._at = at
        self._state = now_ns, self._limit_ns(at)

    def _limit_ns(self, at: _At) -> float | None:
        if at is _At.REST or self._num_steps < WARM_STEPS:
            return None
        limit_ns = max(self._stall_s * 1e9, STEP_FACTOR * self._median_ns)
        return max(limit_ns, PAUSE_FACTOR * self._longest_pause_ns) if at is _At.PAUSE else limit_ns
