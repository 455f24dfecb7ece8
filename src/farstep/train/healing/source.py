"""The healthy side: answers every receiver from a thread of its own, at a pace that leaves training nearly alone."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from farstep.collectives import Store
from farstep.collectives.transport import Endpoint
from farstep.engine import EngineError
from farstep.train.healing.line import (
    FOLLOWING,
    NOTHING,
    SOURCE,
    Answer,
    Line,
    Outcome,
    Request,
    Status,
    Wish,
    request_of,
)
from farstep.train.healing.pacing import Pacer
from farstep.train.healing.settings import HealingSettings
from farstep.train.healing.snapshot import LogEntry, Snapshot, SnapshotStore

__all__ = ["Served", "SourceService"]

logger = logging.getLogger(__name__)

WISHES_MAX = 256
"""Wishes of one receiver that wait; one that sends more has gone wrong."""
SLOTS_MAX = 256
TICK_S = 0.25


@dataclass
class Served:
    """What a source has sent, in total."""

    chunks: int = 0
    chunk_bytes: int = 0
    gradients: int = 0
    gradient_bytes: int = 0
    receivers: set[str] = field(default_factory=set)


class SourceService:
    """Serves all receivers of one member.

    Args:
        endpoint: the member's.
        kept: its snapshots and log.
        pacer: its permission to send.
        settings: timeouts and sizes.
    """

    def __init__(
        self, endpoint: Endpoint, kept: SnapshotStore, pacer: Pacer, settings: HealingSettings
    ) -> None:
        self.served = Served()
        self._endpoint = endpoint
        self._kept = kept
        self._pacer = pacer
        self._settings = settings
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._is_closed = False

    def open(self, receiver: str, name: str, store: Store) -> None:
        """Starts to serve a receiver; returns at once."""
        with self._lock:
            if self._is_closed or name in self._sessions:
                return
            session = self._sessions[name] = _Session(self, receiver, name)
            self.served.receivers.add(receiver)
        threading.Thread(
            target=lambda: session.run(self._endpoint, store),
            name=f"farstep-heal-source-{receiver}",
            daemon=True,
        ).start()

    @property
    def num_sessions(self) -> int:
        """Receivers connected now, or whose data is kept for their return."""
        with self._lock:
            return len(self._sessions)

    @property
    def is_followed(self) -> bool:
        """Whether somebody takes every step, from here or elsewhere, and does not rest just now."""
        with self._lock:
            return any(session.is_following for session in self._sessions.values())

    @property
    def is_engaged(self) -> bool:
        """Whether somebody pulls a state or waits for gradients."""
        with self._lock:
            return any(session.is_engaged for session in self._sessions.values())

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends all sessions."""
        with self._lock:
            self._is_closed = True
            sessions = list(self._sessions.values())
        for session in sessions:
            session.leave("this member stops to heal others")
        for session in sessions:
            session.ended.wait(timeout_s)

    def _forget(self, session: "_Session") -> None:
        with self._lock:
            self._sessions.pop(session.name, None)


class _Session:
    """One receiver. Its thread alone sends; what waits is tried again whenever something has changed."""

    def __init__(self, service: SourceService, receiver: str, name: str) -> None:
        self.name = name
        self.ended = threading.Event()
        self.is_following = False
        self._service = service
        self._receiver = receiver
        self._kept = service._kept
        self._changed = service._kept.changed
        self._inbox: deque[Request] = deque()
        self._waiting: list[Request] = []
        self._seen = -1
        self._snapshots: dict[int, Snapshot] = {}
        self._rate_bytes_per_s = 0.0
        self._heard_s = time.monotonic()
        self._broken: str | None = None
        self._has_left = False
        self._line: Line | None = None

    @property
    def is_engaged(self) -> bool:
        """Whether the receiver pulls a state or waits for gradients."""
        return self._line is not None and self._broken is None and bool(self._waiting or self._snapshots)

    # -- callbacks of the line ------------------------------------------------------------------------------------

    def _on_control(self, words: tuple[int, ...]) -> None:
        request = request_of(words)
        with self._changed:
            self._heard_s = time.monotonic()
            if (
                request is None
                or request.slot >= SLOTS_MAX
                or len(self._inbox) + len(self._waiting) > WISHES_MAX
            ):
                self._broken = self._broken or f"{self._receiver} sent a wish that makes no sense"
            else:
                self._inbox.append(request)
            self._changed.notify_all()

    def _on_failure(self, reason: str) -> None:
        with self._changed:
            self._broken = self._broken or reason
            self._changed.notify_all()

    def leave(self, reason: str) -> None:
        """Ends the session without waiting for the receiver's return."""
        with self._changed:
            self._has_left = True
            self._broken = self._broken or reason
            self._changed.notify_all()

    # -- thread ---------------------------------------------------------------------------------------------------

    def run(self, endpoint: Endpoint, store: Store) -> None:
        """Serves until the receiver leaves, or does not come back."""
        # Not at lower priority, unlike the threads that hash: this one holds the interpreter's lock now and then, and
        # would keep the training thread waiting for it while others have the processor.
        try:
            line = self._line = Line(endpoint, SOURCE, store, self.name, self._on_control, self._on_failure)
            while self._broken is None:
                self._serve(line)
            line.close(self._broken)
            self.is_following = False
            self._linger()
        except EngineError as error:
            logger.warning("cannot heal %s: %s", self._receiver, error)
        finally:
            if self._line is not None:
                self._line.close()
            self._kept.release(self)
            self._service._forget(self)
            self.ended.set()

    def _linger(self) -> None:
        """Keeps what the receiver may still need, should it connect again."""
        end_s = time.monotonic() + self._service._settings.linger_s
        with self._changed:
            self._changed.wait_for(lambda: self._has_left, max(0.0, end_s - time.monotonic()))

    def _serve(self, line: Line) -> None:
        with self._changed:
            if not self._inbox and self._seen == self._kept.version:
                self._changed.wait(self._pause_s())
            self._seen = self._kept.version
            arrived, self._inbox = list(self._inbox), deque()
            # A receiver says something several times a second as long as it lives.
            if time.monotonic() - self._heard_s > 2 * self._service._settings.silence_s:
                self._broken = f"{self._receiver} has been silent"
        for request in arrived:
            self._note(request)
            if request.wish in (Wish.CHUNK, Wish.GRADIENT, Wish.SNAPSHOT):
                self._waiting.append(request)
            else:
                self._answer_at_once(line, request)
        self._waiting = [request for request in self._waiting if not self._try(line, request)]

    def _pause_s(self) -> float:
        pauses_ns = [self._wait_ns(request) for request in self._waiting if self._has_come(request)]
        return min(TICK_S, max(min(pauses_ns) / 1e9, 1e-4)) if pauses_ns else TICK_S

    def _has_come(self, request: Request) -> bool:
        """Whether what is wished waits for its turn alone."""
        is_past = request.wish is Wish.GRADIENT and request.step < self._kept.committed
        return is_past or request.wish is Wish.CHUNK

    def _wait_ns(self, request: Request) -> int:
        """How long a piece of state or a gradient that is there must wait for its turn."""
        pacer = self._service._pacer
        if request.wish is Wish.CHUNK:
            return pacer.wait_ns()
        return pacer.gradient_wait_ns(is_new=request.step + 1 >= self._kept.committed)

    def _note(self, request: Request) -> None:
        if request.need != NOTHING:
            self._kept.need(self, request.need)
        if request.wish is Wish.STATUS:
            self.is_following = request.need != NOTHING and request.chunk == FOLLOWING

    def _answer_at_once(self, line: Line, request: Request) -> None:
        if request.wish is Wish.STATUS:
            kept = self._kept
            cost = self._service._pacer.cost
            with self._changed:
                status = Status(
                    kept.committed,
                    kept.newest_snapshot,
                    kept.oldest_gradient,
                    kept.is_standing,
                    self._service._pacer.step_ns,
                    int(self._service._pacer.follow_cost * 1e3),
                    max(cost.excess_ns, 0),
                    cost.own_ns,
                    cost.num_steps,
                    kept.gradient_bytes,
                    int(self._rate_bytes_per_s),
                )
            line.answer_status(status)
        elif request.wish is Wish.RELEASE:
            self._waiting = [other for other in self._waiting if other.wish is not Wish.SNAPSHOT]
            self._snapshots.clear()
            self._kept.release(self, keeps_need=True)
        elif request.wish is Wish.REST:
            for other in self._waiting:  # every wish is answered, or its slot would be lost to the receiver
                if other.wish is Wish.GRADIENT:
                    line.answer(Answer(Outcome.GONE, other.slot, other.step, 0, 0))
                elif other.wish is Wish.CHUNK:  # a few, so that what they need can go
                    self._send_chunk(line, other)
            self._waiting = [other for other in self._waiting if other.wish is Wish.SNAPSHOT]
            self._snapshots.clear()
            self._kept.release(self)
        else:
            self.leave(f"{self._receiver} has left")

    def _try(self, line: Line, request: Request) -> bool:
        """Fulfils a wish if that is possible now; True if it is settled."""
        tries: dict[Wish, Callable[[Line, Request], bool]] = {
            Wish.SNAPSHOT: self._try_snapshot,
            Wish.CHUNK: self._try_chunk,
            Wish.GRADIENT: self._try_gradient,
        }
        return tries[request.wish](line, request)

    def _try_snapshot(self, line: Line, request: Request) -> bool:
        snapshot = self._snapshots.get(request.step)
        if snapshot is None:
            found = self._kept.want(self, request.step)
            if found is None:
                line.answer(Answer(Outcome.MISSED, request.slot, request.step, 0, 0))
                return True
            snapshot = self._snapshots[request.step] = found
        if snapshot.error is not None:
            del self._snapshots[request.step]
            line.answer(Answer(Outcome.MISSED, request.slot, request.step, 0, 0))
            return True
        if snapshot.image is None:
            return False
        text = snapshot.image.manifest.encoded
        line.answer(Answer(Outcome.OFFER, request.slot, request.step, len(text), snapshot.length_bytes))
        line.send(text, request.slot)
        return True

    def _try_chunk(self, line: Line, request: Request) -> bool:
        if self._wait_ns(request) > 0:
            return False
        self._send_chunk(line, request)
        return True

    def _send_chunk(self, line: Line, request: Request) -> None:
        snapshot = self._snapshots.get(request.step)
        image = snapshot.image if snapshot is not None else None
        if image is None or request.chunk >= image.manifest.num_chunks:
            line.answer(Answer(Outcome.REFUSED, request.slot, request.step, 0, 0))
            return
        start, stop = image.manifest.chunk(request.chunk)
        self._service._pacer.spend(stop - start)
        self._service.served.chunks += 1
        self._service.served.chunk_bytes += stop - start
        sent_s = time.monotonic()

        def on_arrival(error: BaseException | None) -> None:
            if error is None:
                rate = (stop - start) / max(time.monotonic() - sent_s, 1e-6)
                self._rate_bytes_per_s = max(self._rate_bytes_per_s, rate)

        line.send(image.buffer[start:stop], request.slot, on_arrival)

    def _try_gradient(self, line: Line, request: Request) -> bool:
        entry, may_come = self._kept.gradient(request.step, lambda: self._wait_ns(request) == 0)
        if entry is None:
            if not may_come:
                line.answer(Answer(Outcome.GONE, request.slot, request.step, 0, 0))
            return not may_come
        self._service._pacer.spend(entry.buffer.nbytes)
        self._send_gradient(line, request, entry)
        return True

    def _send_gradient(self, line: Line, request: Request, entry: LogEntry) -> None:
        image = entry.image()
        text = image.manifest.encoded
        self._service.served.gradients += 1
        self._service.served.gradient_bytes += image.buffer.nbytes
        # Who is told that this is the newest step is at the newest step, rather than where the last status was.
        committed = self._kept.committed
        line.answer(
            Answer(Outcome.GRADIENT, request.slot, request.step, len(text), image.buffer.nbytes, committed)
        )
        line.send(text, request.slot)
        if image.buffer.nbytes:
            line.send(image.buffer, request.slot, lambda error: self._kept.done_reading(entry))
        else:
            self._kept.done_reading(entry)
