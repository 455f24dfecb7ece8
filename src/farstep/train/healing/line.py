"""A line between one receiver and one source: small control messages both ways, and payloads in numbered slots.

It is a communicator of two ranks on the endpoint a member trains with, so that healing uses the same paths. A payload
is written straight to where the receiver wants it, and only while the receiver waits for it.
"""

import contextlib
import os
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from farstep.collectives import Communicator, CommunicatorSettings, Handle, Store
from farstep.collectives.transport import Endpoint
from farstep.collectives.vector import allocate_pages
from farstep.engine import EngineError

__all__ = ["Answer", "Line", "Outcome", "Request", "Status", "Wish", "lower_priority"]

RECEIVER, SOURCE = 0, 1
_CONTROL_TAG = 0
_CONTROL_BYTES = 128
_CONTROL_POSTED = 32
"""Control messages a side can take while its callback is busy."""
_FOREVER_S = 1e9
SEND_TIMEOUT_S = 60.0
"""A payload the peer asked for and does not take for so long means that it has failed."""
_WORDS = struct.Struct("<16Q")
_VERSION = 3


class Wish(IntEnum):
    """What a receiver asks for."""

    STATUS = 1
    SNAPSHOT = 2
    CHUNK = 3
    GRADIENT = 4
    RELEASE = 5
    LEAVE = 6
    REST = 7
    """Nothing is needed for now, not even the gradients to come."""


class Request(NamedTuple):
    """A message of a receiver.

    Attributes:
        wish: what it asks for.
        slot: where it waits for a payload.
        step: of the snapshot or gradient.
        chunk: number of the chunk; of a status, FOLLOWING if the receiver takes every step as it comes.
        need: first step whose gradient it still needs, NOTHING if none.
    """

    wish: Wish
    slot: int
    step: int
    chunk: int
    need: int


NOTHING = (1 << 64) - 1
"""Instead of a step: none."""
FOLLOWING = 1


class Outcome(IntEnum):
    """What became of a wish."""

    STATUS = 1
    OFFER = 2
    MISSED = 3
    """The snapshot's step is past."""
    GRADIENT = 4
    GONE = 5
    """The gradient of that step is no longer kept."""
    REFUSED = 6
    """The wish makes no sense here."""


class Answer(NamedTuple):
    """A message of a source. Which fields count depends on the outcome; all say how many steps it has committed."""

    outcome: Outcome
    slot: int
    step: int
    manifest_bytes: int
    image_bytes: int
    committed: int = 0


class Status(NamedTuple):
    """How a source is.

    Attributes:
        committed: steps it has committed.
        snapshot: step of its newest copy, NOTHING if there is none.
        oldest: first step whose gradient it keeps, NOTHING if none.
        is_standing: whether no step is under way.
        step_time_ns: an ordinary step.
        follow_cost: by how much steps are longer because of followers, in thousandths.
        excess_ns: by how much all steps since somebody began to heal were longer.
        own_ns: of that, copies that the training thread made for those who heal.
        num_steps: how many steps those were.
        gradient_bytes: length of the newest gradient it keeps, 0 if none.
        rate_bytes_per_s: the largest at which a piece of state reached a receiver, without its wait for its turn.
    """

    committed: int
    snapshot: int
    oldest: int
    is_standing: bool
    step_time_ns: int
    follow_cost: int
    excess_ns: int = 0
    own_ns: int = 0
    num_steps: int = 0
    gradient_bytes: int = 0
    rate_bytes_per_s: int = 0


class Line:
    """One end. All callbacks come from the line's own threads and must return quickly.

    Args:
        endpoint: of this member.
        role: RECEIVER or SOURCE.
        store: exchanges addresses.
        name: the same at both ends, never used twice.
        on_control: takes each control message, as words.
        on_failure: called once, with the reason, when the line is of no use any more; not after :meth:`close`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        role: int,
        store: Store,
        name: str,
        on_control: Callable[[tuple[int, ...]], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.name = name
        self._peer = 1 - role
        self._on_control = on_control
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self.failure: str | None = None
        settings = CommunicatorSettings(timeout_s=SEND_TIMEOUT_S)
        self._communicator = Communicator(
            endpoint, rank=role, size=2, store=store, name=name, settings=settings
        )
        for _ in range(_CONTROL_POSTED):
            self._post(allocate_pages(_CONTROL_BYTES))

    # -- control --------------------------------------------------------------------------------------------------

    def _post(self, buffer: np.ndarray[Any, Any]) -> None:
        handle = self._communicator.receive(
            buffer, self._peer, _CONTROL_TAG, background=True, timeout_s=_FOREVER_S
        )
        handle.add_done_callback(lambda done: self._on_message(buffer, done))

    def _on_message(self, buffer: np.ndarray[Any, Any], handle: Handle) -> None:
        error = handle.exception()
        if error is not None:
            self.fail(str(error))
            return
        words = _WORDS.unpack_from(buffer.data)
        try:
            self._post(buffer)
        except EngineError as failure:
            self.fail(str(failure))
            return
        if words[0] != _VERSION:
            self.fail(f"the peer speaks version {words[0]} of healing; this member speaks {_VERSION}")
            return
        self._on_control(words[1:])

    def _send_control(
        self, *words: int, on_done: Callable[[BaseException | None], None] | None = None
    ) -> None:
        buffer = np.zeros(_CONTROL_BYTES, np.uint8)
        _WORDS.pack_into(buffer.data, 0, _VERSION, *words, *[0] * (15 - len(words)))
        self._issue(
            lambda: self._communicator.send(buffer, self._peer, _CONTROL_TAG, background=True), on_done
        )

    def request(self, request: Request) -> None:
        """Sends a wish; does nothing on a line that has failed."""
        self._send_control(*request)

    def say_goodbye(self, timeout_s: float) -> None:
        """Tells the source that nothing more is needed, and waits, not for long, until it holds the message."""
        arrived = threading.Event()
        self._send_control(Wish.LEAVE, 0, 0, 0, NOTHING, on_done=lambda error: arrived.set())
        arrived.wait(timeout_s)

    def answer(self, answer: Answer) -> None:
        """Sends an answer; does nothing on a line that has failed."""
        self._send_control(*answer)

    def answer_status(self, status: Status) -> None:
        """Sends how this source is."""
        self._send_control(Outcome.STATUS, *map(int, status))

    # -- payloads -------------------------------------------------------------------------------------------------

    def send(
        self, data: Any, slot: int, on_done: Callable[[BaseException | None], None] | None = None
    ) -> None:
        """Sends a payload; the bytes must stay until ``on_done`` has been called."""
        self._issue(lambda: self._communicator.send(data, self._peer, 1 + slot, background=True), on_done)

    def receive(self, buffer: Any, slot: int, on_done: Callable[[BaseException | None], None]) -> None:
        """Waits for the payload of a slot; nobody can write to the buffer after ``on_done`` has been called."""

        def issue() -> Handle:
            return self._communicator.receive(
                buffer, self._peer, 1 + slot, background=True, timeout_s=_FOREVER_S
            )

        self._issue(issue, on_done)

    def _issue(
        self, action: Callable[[], Handle], on_done: Callable[[BaseException | None], None] | None
    ) -> None:
        try:
            handle = action()
        except EngineError as error:
            self.fail(str(error))
            if on_done is not None:
                on_done(error)
            return
        if on_done is not None:
            handle.add_done_callback(lambda done: on_done(done.exception()))

    # -- ending ---------------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Gives the line up at once; both ends learn of it."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = reason
        self._communicator.abort(reason)
        self._on_failure(reason)

    def close(self, reason: str = "healing is over") -> None:
        """Ends the line and frees what it holds; not to be called from its callbacks."""
        with self._lock:
            is_first = self.failure is None
            self.failure = self.failure or reason
        if is_first:
            self._communicator.abort(reason)
        with contextlib.suppress(EngineError):
            self._communicator.close()


def request_of(words: tuple[int, ...]) -> Request | None:
    """Reads a receiver's message; None if it makes no sense."""
    try:
        return Request(Wish(words[0]), *words[1:5])
    except ValueError:
        return None


def answer_of(words: tuple[int, ...]) -> Answer | Status | None:
    """Reads a source's message; None if it makes no sense."""
    try:
        outcome = Outcome(words[0])
    except ValueError:
        return None
    if outcome is Outcome.STATUS:
        return Status(words[1], words[2], words[3], bool(words[4]), *words[5:11])
    return Answer(outcome, *words[1:6])


def lower_priority(niceness: int) -> None:
    """Lets the calling thread run after those that compute, where the system can do that for one thread."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
