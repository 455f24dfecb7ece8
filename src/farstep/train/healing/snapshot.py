"""What a healthy member keeps for those it heals: a copy of its state, and the gradients of the steps since.

Copies are made by the training thread, at a step boundary; everything else happens in other threads.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from farstep.train.healing.errors import StateNotPortable
from farstep.train.healing.image import CHUNK_BYTES, ImagePlan, StateImage, allocate, populate
from farstep.train.healing.line import NOTHING, lower_priority

__all__ = ["GradientLog", "LogEntry", "Snapshot", "SnapshotStore", "StateAdapter"]

SPARE_BUFFERS = 2
"""Buffers held ready for the next gradients: the first use of new memory costs ten times the copy."""


POPULATE_BYTES, POPULATE_PAUSE_S = 2 << 20, 0.0005
FREE_AT_ONCE_BYTES = 16 << 20
FREE_PAUSE_S = 0.01


class StateAdapter(Protocol):
    """What healing needs of a trainer. Called by the thread that trains, or while that thread stands still."""

    @property
    def committed(self) -> int:
        """Number of steps the state has seen."""

    def capture(self) -> dict[str, Any]:
        """The state, nested; the same to the bit on every seat. Its tensors may be live: they are copied."""

    def restore(self, state: dict[str, Any]) -> None:
        """Replaces the state. The tensors given are only lent and must be copied."""

    def apply_reduced(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Applies one step from its reduced gradient exactly as a seat commits it. The tensors are only lent."""


class Snapshot:
    """A copy of the state after some step, for as long as somebody uses it.

    Attributes:
        step: number of steps the state has seen.
        image: the copy, once it has been hashed.
        error: why there is none.
        users: who pulls it.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.image: StateImage | None = None
        self.error: str | None = None
        self.users: set[object] = set()
        self.length_bytes = 0


class LogEntry:
    """The reduced gradient of one step.

    Attributes:
        step: the step; it takes a state that has seen ``step`` steps to ``step + 1``.
        buffer: bytes of the gradient.
        num_readers: transfers that read the buffer now; it is reused only when there are none.
    """

    def __init__(self, step: int, plan: ImagePlan, buffer: np.ndarray[Any, Any]) -> None:
        self.step = step
        self.buffer = buffer
        self.num_readers = 0
        self._plan = plan
        self._image: StateImage | None = None
        self._lock = threading.Lock()

    def image(self) -> StateImage:
        """The gradient with its manifest; hashed by whoever asks first."""
        with self._lock:
            if self._image is None:
                self._image = self._plan.seal(self.buffer)
            return self._image


class _Buffers:
    """Buffers of one size, a few of them ready to be used at once. All calls but the filling are made by the owner."""

    def __init__(self) -> None:
        self._ready: list[np.ndarray[Any, Any]] = []
        self._length_bytes = 0
        self._is_filling = False
        self._lock = threading.Lock()

    @property
    def bytes_held(self) -> int:
        with self._lock:
            return sum(buffer.nbytes for buffer in self._ready)

    def take(self, length_bytes: int) -> np.ndarray[Any, Any]:
        """A buffer; others are made ready in the background."""
        with self._lock:
            if length_bytes != self._length_bytes:
                self._ready.clear()
                self._length_bytes = length_bytes
            buffer = self._ready.pop() if self._ready else None
            if len(self._ready) < SPARE_BUFFERS and length_bytes and not self._is_filling:
                self._is_filling = True
                threading.Thread(target=self._fill, name="farstep-heal-buffers", daemon=True).start()
        return buffer if buffer is not None else allocate(length_bytes)

    def give_back(self, buffer: np.ndarray[Any, Any]) -> None:
        """Keeps a buffer for the next gradient if there is need."""
        with self._lock:
            if buffer.nbytes == self._length_bytes and len(self._ready) < SPARE_BUFFERS:
                self._ready.append(buffer)

    def clear(self) -> None:
        """Frees everything."""
        with self._lock:
            self._ready.clear()
            self._length_bytes = 0

    def _fill(self) -> None:
        while True:
            with self._lock:
                length_bytes = self._length_bytes
                if not length_bytes or len(self._ready) >= SPARE_BUFFERS:
                    self._is_filling = False
                    return
            buffer = allocate(length_bytes)
            populate_gently(buffer)
            self.give_back(buffer)


def populate_gently(buffer: np.ndarray[Any, Any]) -> None:
    """Has the system back a buffer with memory, a little at a time.

    Meanwhile no other thread of the process gets memory, or gives any back. So a piece is short, and not at lower
    priority: a thread that waits for the processor in the middle of one would hold up the one that trains.
    """
    for start in range(0, buffer.nbytes, POPULATE_BYTES):
        populate(buffer[start : start + POPULATE_BYTES])
        time.sleep(POPULATE_PAUSE_S)


def free_slowly(buffers: list[np.ndarray[Any, Any]]) -> None:
    """Gives memory back to the system bit by bit, in a thread of its own.

    While the system takes back a lot of it at once, no other thread of the process gets any.
    """
    if sum(buffer.nbytes for buffer in buffers) < FREE_AT_ONCE_BYTES:
        return

    def run() -> None:
        while buffers:
            buffers.pop()
            time.sleep(FREE_PAUSE_S)

    threading.Thread(target=run, name="farstep-heal-free", daemon=True).start()


class GradientLog:
    """The gradients of the last steps, in memory that is bounded. Not thread-safe: its owner locks.

    Args:
        bytes_max: memory for gradients; the oldest are dropped when more is needed.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, LogEntry] = OrderedDict()
        self._pool = _Buffers()
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        """Memory in use, with what is kept for reuse."""
        return self._bytes + self._pool.bytes_held

    @property
    def newest_bytes(self) -> int:
        """Length of the newest gradient, 0 if the log is empty."""
        return self._entries[next(reversed(self._entries))].buffer.nbytes if self._entries else 0

    @property
    def oldest(self) -> int:
        """First step in the log; NOTHING if it is empty."""
        return next(iter(self._entries), NOTHING)

    def get(self, step: int) -> LogEntry | None:
        """The entry of a step, if it is in the log."""
        return self._entries.get(step)

    def append(self, step: int, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Copies the gradient of a step, dropping old ones if there is no room.

        A gradient larger than the whole bound is not kept: those who need it take snapshots.
        """
        if self._entries and step != next(reversed(self._entries)) + 1:
            self.clear()  # the state was replaced; older gradients lead nowhere
        plan = ImagePlan({"flats": list(flats), "meta": dict(meta)}, step, chunk_bytes=CHUNK_BYTES)
        while self._entries and self._bytes + plan.length_bytes > self._bytes_max:
            self._drop_oldest()
        if plan.length_bytes > self._bytes_max:
            return
        buffer = self._pool.take(plan.length_bytes)
        plan.copy_into(buffer)
        self._entries[step] = LogEntry(step, plan, buffer)
        self._bytes += buffer.nbytes

    def trim(self, need: int) -> None:
        """Drops what lies before a step."""
        while self._entries and self.oldest < need:
            self._drop_oldest()

    def clear(self) -> None:
        """Drops everything and frees the memory."""
        free_slowly([entry.buffer for entry in self._entries.values()])
        self._entries.clear()
        self._pool.clear()
        self._bytes = 0

    def _drop_oldest(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self._bytes -= entry.buffer.nbytes
        if entry.num_readers == 0:
            self._pool.give_back(entry.buffer)


class SnapshotStore:
    """Snapshots and log of one member, shared by its training thread and the threads that serve.

    Args:
        adapter: gives the state.
        log_bytes_max: bound of the gradient log.
        chunk_bytes: of images.
        niceness: of the thread that hashes.

    Attributes:
        changed: notified whenever something here changes; guards all of it.
        version: counts the changes, so that one that waits can tell whether it has seen the last.
        committed: number of steps the state has seen at the last boundary.
    """

    def __init__(self, adapter: StateAdapter, *, log_bytes_max: int, chunk_bytes: int, niceness: int) -> None:
        self.changed = threading.Condition()
        self.version = 0
        self.committed = 0
        self.is_standing = False
        self.copy_ns = 0
        """Time the training thread spent on the last copy of its state."""
        self._adapter = adapter
        self._chunk_bytes = chunk_bytes
        self._niceness = niceness
        self._wanted: dict[int, Snapshot] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._log = GradientLog(log_bytes_max)
        self._needs: dict[object, int] = {}
        self._prepared: np.ndarray[Any, Any] | None = None
        self._state_lock = threading.Lock()

    def notify(self) -> None:
        """Wakes all that wait for a change; called with the lock held."""
        self.version += 1
        self.changed.notify_all()

    # -- training thread ------------------------------------------------------------------------------------------

    def at_boundary(self, step: int) -> None:
        """Notes a boundary and takes the snapshot wanted of it, if any; next to nothing if nobody heals."""
        with self.changed:
            if step < self.committed:
                self._log.clear()  # the run went back to a checkpoint
            self.committed = step
            is_idle = not self._wanted and not self._needs
            if is_idle:
                return
            due = self._due()
            self.notify()
        if due is not None:
            self._take(due)
        elif self._wanted and self._prepared is None:
            self._prepare()

    def on_committed(self, flats: Sequence[Tensor], meta: Mapping[str, Any]) -> None:
        """Keeps the gradient of a step, if anybody needs it."""
        if not self._needs:
            return
        with self.changed:
            if self._needs and meta["step"] >= min(self._needs.values()):
                self._log.append(meta["step"], flats, meta)
                self._trim()
                self.notify()

    def stand_still(self, is_standing: bool) -> None:
        """While standing, the state does not change, and other threads may copy it."""
        with self._state_lock, self.changed:
            self.is_standing = is_standing
            self.notify()

    # -- threads that serve ---------------------------------------------------------------------------------------

    def want(self, user: object, step: int) -> Snapshot | None:
        """Asks for the snapshot of a step and all gradients since.

        Returns:
            The snapshot, whose image may be yet to come; None if that step is past.
        """
        with self.changed:
            snapshot = self._snapshots.get(step) or self._wanted.get(step)
            if snapshot is None:
                if step < self.committed or (step == self.committed and not self.is_standing):
                    return None
                snapshot = self._wanted[step] = Snapshot(step)
            snapshot.users.add(user)
            self._needs[user] = min(self._needs.get(user, step), step)
        self.take_standing()
        return snapshot

    def take_standing(self) -> None:
        """Takes the snapshot wanted of the present step, if training stands still."""
        with self._state_lock:
            with self.changed:
                due = self._due() if self.is_standing else None
            if due is not None:
                self._take(due)

    def release(self, user: object, *, keeps_need: bool = False) -> None:
        """Notes that somebody uses no snapshot any more, and unless told otherwise no gradients either."""
        with self.changed:
            for snapshots in (self._snapshots, self._wanted):
                for step, snapshot in list(snapshots.items()):
                    snapshot.users.discard(user)
                    if not snapshot.users:
                        del snapshots[step]
            if not keeps_need:
                self._needs.pop(user, None)
            self._trim()

    def need(self, user: object, step: int) -> None:
        """Notes the first step whose gradient somebody still needs."""
        with self.changed:
            self._needs[user] = step
            self._trim()

    def gradient(self, step: int, is_due: Callable[[], bool] = lambda: True) -> tuple[LogEntry | None, bool]:
        """The gradient of a step, with a reader counted in; and whether it may still come.

        Args:
            step: the step.
            is_due: whether it may be taken now; asked only if it is there.
        """
        with self.changed:
            entry = self._log.get(step)
            if entry is None:
                return None, step >= self.committed
            if not is_due():
                return None, True
            entry.num_readers += 1
            return entry, False

    def done_reading(self, entry: LogEntry) -> None:
        """Takes a reader out again."""
        with self.changed:
            entry.num_readers -= 1

    @property
    def newest_snapshot(self) -> int:
        """Step of the newest snapshot that others use; NOTHING if there is none."""
        return max(self._snapshots, default=NOTHING)

    @property
    def gradient_bytes(self) -> int:
        """Length of the newest gradient kept, 0 if there is none."""
        return self._log.newest_bytes

    @property
    def oldest_gradient(self) -> int:
        """First step of the log."""
        return self._log.oldest

    @property
    def bytes_held(self) -> int:
        """Memory for snapshots and gradients."""
        with self.changed:
            prepared = self._prepared.nbytes if self._prepared is not None else 0
            held = [*self._snapshots.values(), *self._wanted.values()]
            return self._log.bytes_held + prepared + sum(snapshot.length_bytes for snapshot in held)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _due(self) -> Snapshot | None:
        for step in [step for step in self._wanted if step < self.committed]:
            self._wanted.pop(step).error = f"step {step} is past"
        snapshot = self._wanted.pop(self.committed, None)
        if snapshot is not None:
            self._snapshots[self.committed] = snapshot
        return snapshot

    def _take(self, snapshot: Snapshot) -> None:
        began_ns = time.monotonic_ns()
        try:
            plan = ImagePlan(self._adapter.capture(), snapshot.step, chunk_bytes=self._chunk_bytes)
        except StateNotPortable as error:
            with self.changed:
                snapshot.error = str(error)
                self.notify()
            return
        with self.changed:
            prepared, self._prepared = self._prepared, None
        is_usable = prepared is not None and prepared.nbytes == plan.length_bytes
        buffer = prepared if prepared is not None and is_usable else allocate(plan.length_bytes)
        plan.copy_into(buffer)
        self.copy_ns = time.monotonic_ns() - began_ns
        snapshot.length_bytes = plan.length_bytes
        self._spawn("hash", lambda: self._seal(snapshot, plan, buffer))

    def _seal(self, snapshot: Snapshot, plan: ImagePlan, buffer: np.ndarray[Any, Any]) -> None:
        image = plan.seal(buffer)
        with self.changed:
            snapshot.image = image
            self.notify()

    def _prepare(self) -> None:
        """Has memory for the coming snapshot made ready, so that the boundary costs no more than the copy."""
        try:
            length_bytes = ImagePlan(self._adapter.capture()).length_bytes
        except StateNotPortable:
            return  # said when the snapshot is taken
        self._prepared = buffer = allocate(length_bytes)
        threading.Thread(
            target=lambda: populate_gently(buffer), name="farstep-heal-prepare", daemon=True
        ).start()

    def _spawn(self, what: str, action: Any) -> None:
        def run() -> None:
            lower_priority(self._niceness)
            action()

        threading.Thread(target=run, name=f"farstep-heal-{what}", daemon=True).start()

    def _trim(self) -> None:
        if not self._needs:
            self._log.clear()
            if not self._wanted:
                self._prepared = None
        else:
            self._log.trim(min(self._needs.values()))
