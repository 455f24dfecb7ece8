"""How much a healthy member may send to those it heals, so that its own steps stay nearly as short as they were."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Account", "Cost", "Pacer"]

BURST_NS = 40_000_000
"""Of sending may happen at once after a pause."""
BASELINE_STEPS = 16
"""Undisturbed steps that are the yardstick: few, so that it follows a run whose steps become longer."""
BASELINE_STEPS_MIN = 3
OUTLIER = 2.0
"""A calm step counts as at most so many medians in the yardstick."""
WINDOW_STEPS = 4
"""Disturbed steps looked at together; one alone says little on a busy machine."""
WINDOW_NS = 200_000_000
"""And for at least so long, so that the rate changes a few times a second at most."""
FASTER, SLOWER = 1.25, 0.6
CREDIT_STEPS = 1.0
"""Of what a bound allows, so many steps' worth may be saved up: more would be a burst later."""
DEBT_STEPS = 20.0
"""Steps' worth of excess that is remembered at most, lest one hiccup of the machine hold healing up for ever."""
PAUSE_EVERY, PAUSE_STEPS = 48, 4
"""At the first few of so many steps all sources pause, told by the number of the step alone: they learn how long steps
are without them."""
FOLLOW_STEPS = 12
"""Steps with a follower whose median tells what following costs; eight are enough to begin with."""
FOLLOW_STEPS_MIN, FOLLOW_NS = 8, 300_000_000
FOLLOW_NOISE_NS = 2_000_000
"""Steps differ by so much for no reason on a machine that does other things too."""
STANDING_NS = 1_000_000_000
"""Without a step for so long, and three ordinary steps, there is nothing to disturb."""
RATE_MAX = 1e11
CLOSED_NS = 250_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What healing has cost.

    Attributes:
        excess_ns: by how much steps were longer than usual, in total; negative if they were shorter.
        own_ns: time in which the training thread copied for others, in total.
        num_steps: how many steps that were.
    """

    excess_ns: int
    own_ns: int
    num_steps: int


class Account:
    """Keeps the mean of many steps within a bound, whatever single steps do.

    Every step pays in what the bound allows it and takes out what it was longer than usual. Nothing is sent while the
    account is overdrawn, so that undisturbed steps pay back what a long one has cost.

    Args:
        slowdown: by how much the mean step may be longer than usual, as a fraction; None: without bound.
    """

    def __init__(self, slowdown: float | None) -> None:
        self._slowdown = slowdown
        self._balance = 0.0

    @property
    def is_bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self._slowdown is not None

    def is_open(self, excess: float = 0.0) -> bool:
        """Whether something may be sent.

        Args:
            excess: by how much the step under way is longer than usual already, in usual steps.
        """
        return self._slowdown is None or self._balance >= excess

    def note(self, step_ns: float, usual_ns: float) -> None:
        """Books a step. The balance is in usual steps, so that it keeps its meaning when those change."""
        if self._slowdown is not None:
            balance = self._balance + self._slowdown - (step_ns / usual_ns - 1)
            self._balance = min(max(balance, -DEBT_STEPS), CREDIT_STEPS * self._slowdown)


class Pacer:
    """Gives out permission to send, in bytes over time.

    Two things bound it. A rate is searched, a little up as long as steps stay within the limit, well down when they do
    not: it spreads the load over the steps. An account for state and one for gradients keep the mean of the steps
    within the bound even if each piece costs more than it allows. An overdrawn account leaves ``least_mbps``.

    Args:
        rate_mbps: upper limit of the rate in 10^6 bit/s, also while no step is under way; None: as fast as can be.
        start_mbps: where the search starts.
        least_mbps: what is sent in any case, so that healing ends.
        slowdown: by how much steps may become longer while state is sent, as a fraction.
        follow_slowdown: by how much while gradients are; None: those are never held back.
        now_ns: clock.
    """

    def __init__(
        self,
        *,
        rate_mbps: float | None = None,
        start_mbps: float = 200.0,
        least_mbps: float = 40.0,
        slowdown: float = 0.10,
        follow_slowdown: float | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_limited = rate_mbps is not None
        self._most = _bytes_per_ns(rate_mbps) if rate_mbps is not None else RATE_MAX
        self._rate = min(_bytes_per_ns(start_mbps), self._most)
        self._least = min(_bytes_per_ns(least_mbps), self._most)
        self._slowdown = slowdown
        self._state_account = Account(slowdown)
        self._gradient_account = Account(follow_slowdown)
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._free_ns = self._least_free_ns = self._most_free_ns = 0
        self._boundary_ns: int | None = None
        self._step = 0
        self._sent_in_step = 0
        self._was_engaged = self._was_disturbed = self._was_followed = False
        self._num_standing = 0
        self._followed: deque[int] = deque(maxlen=FOLLOW_STEPS)
        self._follow_cost = 0.0
        self._calm: deque[int] = deque(maxlen=BASELINE_STEPS)
        self._usual_ns = 0.0
        self._window: list[int] = []
        self._window_ns = 0
        self._spent = Cost(0, 0, 0)

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

    @property
    def cost(self) -> "Cost":
        """What healing has cost the steps since somebody began."""
        with self._lock:
            return self._spent

    def stand_still(self, is_standing: bool) -> None:
        """While no step is under way there is nothing to disturb, and only the upper limit holds anything back.

        May be nested: every call with True has one with False.
        """
        with self._lock:
            self._num_standing += 1 if is_standing else -1
            self._boundary_ns = None  # what was waited for is no part of the next step

    def wait_ns(self) -> int:
        """How long to wait until the next piece of state may be sent; 0: now."""
        with self._lock:
            return self._wait_ns(self._state_account)

    def gradient_wait_ns(self, *, is_new: bool) -> int:
        """How long to wait until a gradient may be sent; 0: now.

        Args:
            is_new: of the newest step, wanted by one that follows every step. It need not wait for a pause to end.
        """
        with self._lock:
            account = self._gradient_account
            if not account.is_bounded:
                return 0
            now = self._now_ns()
            if account.is_open(self._excess(now)) and (is_new or not self._is_pause()):
                return max(0, self._most_free_ns - now) if self._is_limited else 0
            return self._wait_ns(account)

    def spend(self, length_bytes: int) -> None:
        """Notes that so many bytes are sent now."""
        with self._lock:
            now = self._now_ns()
            self._free_ns = max(self._free_ns, now - BURST_NS) + int(length_bytes / self._rate)
            self._most_free_ns = max(self._most_free_ns, now - BURST_NS) + int(length_bytes / self._most)
            self._least_free_ns = now + int(length_bytes / self._least)
            self._sent_in_step += length_bytes

    def step_ended(
        self, step: int | None = None, *, is_engaged: bool = False, is_followed: bool = False, own_ns: int = 0
    ) -> None:
        """Notes that this member has ended a step.

        Args:
            step: number of steps committed, the same on all members; None: one more.
            is_engaged: somebody is being healed or follows.
            is_followed: somebody follows, whoever feeds it: all step together, and who is held up holds up the others.
            own_ns: of it, copies that the training thread made for others.
        """
        now = self._now_ns()
        with self._lock:
            was_pause = self._is_pause()
            self._step = self._step + 1 if step is None else step
            before, self._boundary_ns = self._boundary_ns, now
            sent, self._sent_in_step = self._sent_in_step, 0
            if before is None:
                return
            # What was sent at the end of one step may still travel in the next.
            is_disturbed, self._was_disturbed = sent > 0 or self._was_disturbed, sent > 0
            was_followed, self._was_followed = self._was_followed, is_followed
            was_engaged, self._was_engaged = self._was_engaged, is_engaged
            is_busy = is_disturbed or is_engaged or was_engaged or is_followed or was_followed
            self._book(now - before, own_ns, is_busy)
            if is_disturbed:
                self._judge(now - before)
            if is_followed:
                self._note_followed(now - before)
            elif not is_disturbed and (was_pause or not is_busy):
                self._note_calm(max(now - before - own_ns, 1))

    # -- inside, with the lock held -------------------------------------------------------------------------------

    def _wait_ns(self, account: Account) -> int:
        now = self._now_ns()
        if self._num_standing or self._is_standing(now):
            self._free_ns = self._least_free_ns = now
            return max(0, self._most_free_ns - now) if self._is_limited else 0
        if self._is_pause():
            return CLOSED_NS
        is_open = account.is_open(self._excess(now))
        return max(0, (self._free_ns if is_open else self._least_free_ns) - now)

    def _excess(self, now: int) -> float:
        """By how much the step under way is longer than usual already, in usual steps; 0 if that is unknown."""
        usual = self._usual_ns
        if not usual or self._boundary_ns is None:
            return 0.0
        return max(0.0, (now - self._boundary_ns) / usual - 1)

    def _is_pause(self) -> bool:
        is_pulled = self._was_engaged and not self._was_followed
        return is_pulled and self._step % PAUSE_EVERY < PAUSE_STEPS

    def _book(self, step_ns: int, own_ns: int, is_busy: bool) -> None:
        usual = self._usual_ns
        if not usual:
            return
        booked = step_ns if is_busy else usual  # what a calm step is longer is nobody's fault
        self._state_account.note(booked, usual)
        self._gradient_account.note(booked, usual)
        before = self._spent
        self._spent = (
            Cost(before.excess_ns + step_ns - int(usual), before.own_ns + own_ns, before.num_steps + 1)
            if is_busy
            else Cost(0, 0, 0)
        )

    def _note_calm(self, step_ns: int) -> None:
        self._calm.append(step_ns)
        if len(self._calm) >= BASELINE_STEPS_MIN:
            # The mean: the median would count what every mean has more as slowness.
            most = OUTLIER * statistics.median(self._calm)
            self._usual_ns = statistics.fmean(min(calm_ns, most) for calm_ns in self._calm)
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
        self._rate = min(max(self._rate * (SLOWER if is_slow else FASTER), self._least), self._most)
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


def _bytes_per_ns(rate_mbps: float) -> float:
    return rate_mbps * 1e6 / 8 / 1e9
