"""Whether it is worth while for a newcomer to follow every step, or it had better doze: arithmetic, without a clock."""

import math
from dataclasses import dataclass

from farstep.train.healing.line import Status

__all__ = ["SURE", "Effort", "Progress", "following_cost", "patience_s"]

DEAR_S = 1.0
"""A follower that costs the others too much for so long dozes."""
HOPELESS_S = 3.0
"""So does one that is no closer to the newest step after this long, and as long as it took to pull the state."""
LAG_STEPS_MAX = 16
"""And one that is ready, but farther behind than this for so long: more than it lets pass at a time."""
SURE = 2.0
"""Following that is expected to cost so many times its bound is not tried."""
STEPS_PER_TAKEOVER = 3
TELLING_STEPS = 8
"""Steps during which state was sent that tell what that costs."""
TELLING_GRADIENTS = 0.5
"""As much of the state, in gradients, tells what sending costs."""
TAKEOVER_PART = 0.1
"""Of the time a newcomer has tried to get ready, so much may all wait for it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a follower is at some moment.

    Attributes:
        now_s: when.
        lag_steps: steps that it lacks.
        cost: by how much steps of the others are longer, as told last.
        is_ready: whether it has been at the newest step.
    """

    now_s: float
    lag_steps: int
    cost: float
    is_ready: bool


@dataclass(slots=True)
class Effort:
    """What following has come to since the state was pulled.

    Attributes:
        since_s: when it was there, and afterwards when ``lag`` was looked at.
        pull_s: how long the pull took.
        lag: steps that were missing then; -1 if not known yet.
        cost: by how much steps of the others are longer, as told last.
        dear_since_s: since when that is too much; nan before the first look.
        rest_at_s: when to let the others have some steps to themselves, so that they know how long those are.
        rest_after_s: pause between two such rests.
        first: what a source said soon after state began to arrive.
        first_bytes: how much had arrived by then.
        newest: what a source said last.
    """

    since_s: float
    pull_s: float = 0.0
    lag: int = -1
    cost: float = 0.0
    dear_since_s: float = math.nan
    rest_at_s: float = math.inf
    rest_after_s: float = 0.0
    first: Status | None = None
    first_bytes: int = 0
    newest: Status | None = None

    def note_pulled(self, status: Status, pulled_bytes: int) -> None:
        """Takes what a source says while state is pulled, and so much of it arrived.

        What it cost to copy and hash the state before says nothing about following. So everything counts from the
        second message on: the first may be older than the first chunk.
        """
        if self.newest is not None and status is not self.newest:
            if self.first is None:
                self.first, self.first_bytes = status, pulled_bytes
            since = status._replace(
                excess_ns=status.excess_ns - self.first.excess_ns,
                own_ns=status.own_ns - self.first.own_ns,
                num_steps=status.num_steps - self.first.num_steps,
            )
            self.cost = following_cost(since, pulled_bytes - self.first_bytes)
        self.newest = status

    def is_too_dear(self, now: Progress, bound: float) -> bool:
        """Whether to doze from now on.

        One that is not ready must come closer to the newest step in every span as long as the pull took, by one step at
        least: so it ends in one of two ways, at the newest step or dozing.

        Args:
            now: how things are.
            bound: by how much steps of the others may be longer.
        """
        self.cost = now.cost
        is_lagging = now.is_ready and now.lag_steps > LAG_STEPS_MAX
        if math.isnan(self.dear_since_s) or (now.cost <= bound and not is_lagging):
            self.dear_since_s = now.now_s
        is_dear = now.now_s - self.dear_since_s > DEAR_S
        if now.is_ready or is_dear:
            return is_dear
        if self.lag < 0:
            self.lag = now.lag_steps
        if now.now_s - self.since_s <= max(HOPELESS_S, self.pull_s):
            return False
        if now.lag_steps >= max(self.lag, 1):
            return True
        self.since_s, self.lag = now.now_s, now.lag_steps
        return False


def following_cost(status: Status, pulled_bytes: int) -> float:
    """What following will cost the others, told while the state is pulled.

    A gradient a step costs each step what so many bytes of state have cost on the average, besides the copies made of
    each gradient. As long as hardly anything has arrived only what keeping gradients costs is known, a part of it.

    Args:
        status: of a source.
        pulled_bytes: of the state from all sources.

    Returns:
        By how much steps become longer, as a fraction; 0 as long as too little is known to tell.
    """
    if status.num_steps < TELLING_STEPS or not status.gradient_bytes or not status.step_time_ns:
        return 0.0
    others_ns = max(status.excess_ns - status.own_ns, 0)
    num_gradients = pulled_bytes / status.gradient_bytes
    streaming_ns = others_ns / (num_gradients if num_gradients >= TELLING_GRADIENTS else status.num_steps)
    return (status.own_ns / status.num_steps + streaming_ns) / status.step_time_ns


def patience_s(takeover_s: float, step_s: float, tried_s: float) -> float:
    """How long all may wait for the state of a member that dozes to arrive.

    It grows with the time that member has tried in vain: otherwise a large state over a thin line never got a seat.

    Args:
        takeover_s: in any case.
        step_s: an ordinary step.
        tried_s: since the member has begun to heal.
    """
    return max(takeover_s, STEPS_PER_TAKEOVER * step_s, TAKEOVER_PART * tried_s)
