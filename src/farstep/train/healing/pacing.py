"""How fast a healthy member may send to those it heals, so that its own steps stay nearly as short as they were."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["Pacer"]

BURST_NS = 40_000_000
"""Of sending may happen at once after a pause."""
BASELINE_STEPS = 16
"""Undisturbed steps whose median is the yardstick: few, so that it follows a run whose steps become longer."""
BASELINE_STEPS_MIN = 3
WINDOW_STEPS = 4
"""Disturbed steps looked at together; one alone says little on a busy machine."""
WINDOW_NS = 200_000_000
"""And for at least so long, so that the rate changes a few times a second at most."""
FASTER, SLOWER = 1.25, 0.6
FOLLOW_STEPS = 12
"""Steps with a follower whose median tells what following costs; eight are enough to begin with."""
FOLLOW_STEPS_MIN, FOLLOW_NS = 8, 300_000_000
FOLLOW_NOISE_NS = 2_000_000
"""Steps differ by so much for no reason on a machine that does other things too."""
STANDING_NS = 1_000_000_000
"""Without a step for so long, and three ordinary steps, there is nothing to disturb."""
RATE_MAX = 1e11


class Pacer:
    """Gives out permission to send, in bytes over time.

    With a fixed rate it is a token bucket. Otherwise it searches the rate: a little up as long as steps stay within
    the limit, well down when they do not.

    Args:
        rate_mbps: fixed rate in 10^6 bit/s, or None to search.
        start_mbps: where the search starts.
        least_mbps: below which it does not go.
        slowdown: by how much steps may become longer, as a fraction.
        now_ns: clock.
    """

    def __init__(
        self,
        *,
        rate_mbps: float | None = None,
        start_mbps: float = 200.0,
        least_mbps: float = 40.0,
        slowdown: float = 0.10,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_fixed = rate_mbps is not None
        self._rate = (rate_mbps if rate_mbps is not None else start_mbps) * 1e6 / 8 / 1e9
        self._least = least_mbps * 1e6 / 8 / 1e9
        self._slowdown = slowdown
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._free_ns = 0
        self._boundary_ns: int | None = None
        self._sent_in_step = 0
        self._was_disturbed = self._was_followed = False
        self._num_standing = 0
        self._followed: deque[int] = deque(maxlen=FOLLOW_STEPS)
        self._follow_cost = 0.0
        self._calm: deque[int] = deque(maxlen=BASELINE_STEPS)
        self._window: list[int] = []
        self._window_ns = 0

    @property
    def rate_mbps(self) -> float:
        """Rate now, in 10^6 bit/s."""
        return self._rate * 8 * 1e9 / 1e6

    @property
    def step_ns(self) -> int:
        """An ordinary step of this member, 0 if none is known yet."""
        with self._lock:
            return int(statistics.median(self._calm)) if self._calm else sum(self._window[-1:])

    @property
    def follow_cost(self) -> float:
        """By how much steps are longer while gradients are sent to followers, as a fraction; 0 as long as unknown."""
        with self._lock:
            return self._follow_cost

    def stand_still(self, is_standing: bool) -> None:
        """While no step is under way there is nothing to disturb, and a rate that was searched holds nothing back.

        May be nested: every call with True has one with False.
        """
        with self._lock:
            self._num_standing += 1 if is_standing else -1
            self._boundary_ns = None  # what was waited for is no part of the next step

    def wait_ns(self) -> int:
        """How long to wait until the next piece may be sent; 0: now."""
        with self._lock:
            now = self._now_ns()
            if not self._is_fixed and (self._num_standing or self._is_standing(now)):
                self._free_ns = now
                return 0
            return max(0, self._free_ns - now)

    def spend(self, length_bytes: int) -> None:
        """Notes that so many bytes are sent now."""
        with self._lock:
            now = self._now_ns()
            self._free_ns = max(self._free_ns, now - BURST_NS) + int(length_bytes / self._rate)
            self._sent_in_step += length_bytes

    def step_ended(self, *, is_followed: bool = False) -> None:
        """Notes that this member has ended a step.

        Args:
            is_followed: somebody follows, whoever feeds it: all step together, and who is held up holds up the others.
        """
        now = self._now_ns()
        with self._lock:
            before, self._boundary_ns = self._boundary_ns, now
            sent, self._sent_in_step = self._sent_in_step, 0
            if before is None:
                return
            # What was sent at the end of one step may still travel in the next.
            is_disturbed, self._was_disturbed = sent > 0 or self._was_disturbed, sent > 0
            was_followed, self._was_followed = self._was_followed, is_followed
            if is_disturbed and not self._is_fixed:
                self._judge(now - before)
            if is_followed:
                self._note_followed(now - before)
            elif not is_disturbed and not was_followed:
                self._calm.append(now - before)
                self._window.clear()
                self._window_ns = 0
                self._followed.clear()
                self._follow_cost = 0.0

    def _judge(self, step_ns: int) -> None:
        self._window.append(step_ns)
        self._window_ns += step_ns
        is_full = len(self._window) >= WINDOW_STEPS and self._window_ns >= WINDOW_NS
        if not is_full or len(self._calm) < BASELINE_STEPS_MIN:
            return
        usual = statistics.median(self._calm)
        is_slow = statistics.median(self._window) > usual * (1 + self._slowdown)
        self._rate = min(max(self._rate * (SLOWER if is_slow else FASTER), self._least), RATE_MAX)
        self._window.clear()
        self._window_ns = 0

    def _note_followed(self, step_ns: int) -> None:
        self._followed.append(step_ns)
        is_enough = len(self._followed) >= FOLLOW_STEPS_MIN and sum(self._followed) >= FOLLOW_NS
        if is_enough and len(self._calm) >= BASELINE_STEPS_MIN:
            usual = statistics.median(self._calm)
            excess = statistics.median(self._followed) - usual
            self._follow_cost = excess / usual if excess > FOLLOW_NOISE_NS else 0.0

    def _is_standing(self, now: int) -> bool:
        if self._boundary_ns is None:
            return True
        usual = int(statistics.median(self._calm)) if self._calm else 0
        return now - self._boundary_ns > max(STANDING_NS, 3 * usual)
