"""The communicator of one generation, as the trainer uses it.

One endpoint serves a process for its whole life; every generation gets a communicator of its own, so that what a
member of an older one still sends can neither arrive in a newer one nor hold it up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from farstep.collectives import Communicator, CommunicatorSettings, Handle
from farstep.collectives.reduction import ReduceOp
from farstep.collectives.transport import Endpoint, Store
from farstep.collectives.vector import Vector
from farstep.membership import Generation

__all__ = ["BreakableStore", "Lane"]

STORE_SLICE_S = 0.02
"""How often a wait for another member's address looks whether the generation is over already."""


class BreakableStore:
    """A store whose waits end when the lane is aborted, or the run has ended."""

    def __init__(self, store: Store, is_over: threading.Event, look: Callable[[], None]) -> None:
        self._store = store
        self._is_over = is_over
        self._look = look

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value."""
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for a value; raises TimeoutError when it is over."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            self._look()
            if self._is_over.is_set() or left_s <= 0:
                raise TimeoutError(f"no value for {key!r}")
            try:
                return self._store.get(key, min(left_s, STORE_SLICE_S))
            except TimeoutError:
                continue


class Lane:
    """The members of a generation, joined by a communicator; rank i of each replica group is on lane i.

    From the start it opens links to all others in the background; what is done on it begins once they are there.

    Args:
        endpoint: the process's own.
        store: scope of this generation, the same on all members.
        generation: the membership.
        seat: own index in it.
        index: rank within the replica group.
        timeout_s: how long a collective may take.
        has_ended: looked at while addresses are waited for: whether they will not come, because the run has ended.
        on_opened: called once with the lane when all links are there, or cannot be made; from another thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        store: Store,
        generation: Generation,
        seat: int,
        *,
        index: int,
        timeout_s: float,
        has_ended: Callable[[], bool],
        on_opened: Callable[[Lane], None] = lambda lane: None,
    ) -> None:
        self.generation = generation
        self.seat = seat
        self.num_seats = len(generation.seats)
        self.broken_because: str | None = None
        self._is_over = threading.Event()
        self._has_ended = has_ended
        self._pending: list[Handle] = []
        sites = [member.site for member in generation.seats]
        self._communicator = Communicator(
            endpoint,
            rank=seat,
            size=self.num_seats,
            store=BreakableStore(store, self._is_over, self._look),
            name=f"{generation.run_id}/g{generation.number}/lane{index}",
            sites=sites if len(set(sites)) > 1 else None,
            settings=CommunicatorSettings(timeout_s=timeout_s),
            identities=[member.name for member in generation.seats],
        )
        self._opening = self._communicator.open_links(background=self.num_seats > 1)
        self._opening.add_done_callback(lambda handle: on_opened(self))

    @property
    def is_open(self) -> bool:
        """Whether the links to all others are there."""
        return self._opening.done() and self._opening.exception() is None

    @property
    def open_failure(self) -> BaseException | None:
        """Why they cannot be made, if that is so."""
        return self._opening.exception()

    def wait_open(self) -> None:
        """Waits for the links to all others.

        Raises:
            farstep.engine.EngineError: they cannot be made.
        """
        self._opening.wait()

    def _look(self) -> None:
        if not self._is_over.is_set() and self._has_ended():
            self.abort("the run has ended")

    @property
    def communicator(self) -> Communicator:
        """The communicator itself, for other parts that need a collective at a boundary."""
        return self._communicator

    def start_reduce(self, vector: Vector, op: ReduceOp) -> None:
        """Starts to reduce in the background; :meth:`wait_all` ends it."""
        self._pending.append(self._communicator.all_reduce(vector, op, background=True))

    def wait_all(self) -> None:
        """Waits until everything that was started is in place, or has failed.

        When this returns or raises, no memory handed in is touched any more.

        Raises:
            farstep.engine.EngineError: the first failure.
        """
        pending, self._pending = self._pending, []
        failure: BaseException | None = None
        for handle in pending:
            try:
                handle.wait()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def drain(self) -> None:
        """Waits until nothing handed in is touched any more, however it ends."""
        pending, self._pending = self._pending, []
        for handle in pending:
            try:
                handle.wait()
            except Exception:  # what failed was told when it happened
                continue

    def minimum(self, words: np.ndarray[Any, Any]) -> None:
        """Replaces int64 words on every member by their least values over all."""
        self._communicator.all_reduce(words, "min")

    def gather(self, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the rows of all members, by seat."""
        rows = np.zeros((self.num_seats, len(row)), dtype=row.dtype)
        self._communicator.all_gather(rows, row)
        return rows

    def broadcast(self, data: np.ndarray[Any, Any], root: int) -> None:
        """Replaces the array of every member by that of one seat."""
        self._communicator.broadcast(data, root)

    def abort(self, reason: str) -> None:
        """Fails everything under way at once, here and on the peers. From any thread."""
        if self.broken_because is None:
            self.broken_because = reason
        self._is_over.set()
        self._communicator.abort(reason)

    def close(self) -> None:
        """Ends the communicator; if it is in order, only after what was sent has arrived."""
        self._is_over.set()
        self._communicator.close()
