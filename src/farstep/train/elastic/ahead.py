"""The lane of a planned generation is opened while the steps of the one in force go on.

Opening a lane takes several messages through the coordinator to and from everybody, and memory for every link. With
a planned generation nobody has to wait for that: its members open the lane as soon as they hear of it, and tell the
others that they know of it, by the vote on a step, only when all their links are there. So the switch at a step
boundary finds the lane ready, and a newcomer that dies, or a coordinator that does, before it is so holds nobody up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from farstep.membership import Generation
from farstep.train.elastic.lane import Lane

__all__ = ["LaneAhead"]

CLOSE_TIMEOUT_S = 10.0
"""Longest wait for lanes that were dropped: twice what closing one may take."""


class LaneAhead:
    """Holds at most one lane that is not in force yet.

    Args:
        make: makes the lane of a generation for a seat, and starts to open it.
    """

    def __init__(self, make: Callable[[Generation, int], Lane]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._newest = 0
        self._closing: list[threading.Thread] = []

    def begin(self, generation: Generation, seat: int) -> None:
        """Starts to open the lane of a planned generation in the place of an earlier one. From any thread."""
        with self._lock:
            if generation.number <= self._newest:
                return  # it was made when somebody waited for it, before it was told
            self._drop(f"generation {generation.number} is planned instead")
            self._newest = generation.number
            self._lane = self._make(generation, seat)

    def take(self, generation: Generation, seat: int) -> Lane:
        """Returns the lane of a generation that comes into force, however far it is."""
        with self._lock:
            lane = self._lane
            if lane is not None and lane.generation.number == generation.number:
                self._lane = None
                return lane
            self._drop(f"generation {generation.number} has come instead")
            self._newest = max(self._newest, generation.number)
            return self._make(generation, seat)

    def is_opening(self, number: int) -> bool:
        """Whether the lane of a generation is here and some of its links are not."""
        with self._lock:
            lane = self._lane
        return lane is not None and lane.generation.number == number and not lane.is_open

    def drop(self, reason: str) -> None:
        """Gives up the lane, if there is one; nothing is left of it soon afterwards. From any thread."""
        with self._lock:
            self._drop(reason)

    def forget(self) -> None:
        """This member begins anew, perhaps in another run, whose generations count from 1."""
        with self._lock:
            self._drop("this member begins anew")
            self._newest = 0

    def close(self) -> None:
        """Ends everything."""
        with self._lock:
            self._drop("this member ends")
            closing = list(self._closing)
        for thread in closing:
            thread.join(CLOSE_TIMEOUT_S)

    def _drop(self, reason: str) -> None:
        lane, self._lane = self._lane, None
        if lane is None:
            return
        lane.abort(reason)
        # It ends in its own time: whoever drops it has better things to do.
        thread = threading.Thread(target=lane.close, name="farstep-lane-close", daemon=True)
        self._closing = [other for other in self._closing if other.is_alive()]
        self._closing.append(thread)
        thread.start()
