"""Runs operations one after the other: in the caller when nothing is queued, else in a worker thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from farstep.collectives.errors import CommunicatorAborted, CommunicatorTimeout


class Handle:
    """An operation that is queued, running or ended."""

    __slots__ = ("_future", "name")

    def __init__(self, name: str, future: Future[None] | None = None) -> None:
        self.name = name
        self._future: Future[None] = future if future is not None else Future()

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the operation has ended.

        Raises:
            CommunicatorTimeout: it has not ended in time; it goes on.
            CommunicatorError: it failed.
        """
        try:
            self._future.result(timeout_s)
        except TimeoutError as error:
            if self._future.done():
                raise
            raise CommunicatorTimeout(f"{self.name} has not ended within {timeout_s} s") from error

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def exception(self) -> BaseException | None:
        """The error of an operation that has ended, if it failed."""
        return self._future.exception(timeout=0) if self._future.done() else None

    def add_done_callback(self, callback: Callable[[Handle], Any]) -> None:
        """Calls back once the operation has ended, from the thread that ended it."""
        self._future.add_done_callback(lambda _: callback(self))

    def future(self) -> Future[None]:
        """The same as a standard future."""
        return self._future

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the operation; later calls change nothing."""
        if self._future.done():
            return
        if error is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(error)


class OperationQueue:
    """Executes operations strictly in the order they are issued."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._num_pending = 0
        self._queue: queue.SimpleQueue[tuple[Handle, Callable[[], None]] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._is_closed = False

    def issue(self, name: str, action: Callable[[], None], *, background: bool) -> Handle:
        """Runs an action after all earlier ones.

        Args:
            name: names the operation in errors.
            action: does the work.
            background: returns at once; otherwise the action has ended when this returns, and runs in the
                calling thread if nothing is queued, which saves two thread switches.

        Raises:
            CommunicatorAborted: the queue is closed.
            BaseException: what the action raised, unless in the background.
        """
        handle = Handle(name)
        with self._lock:
            if self._is_closed:
                raise CommunicatorAborted(f"{name}: the communicator is closed")
            run_here = not background and self._num_pending == 0
            self._num_pending += 1
            if run_here:
                self._running.acquire()
            else:
                self._queue.put((handle, action))
                self._start_worker()
        if run_here:
            self._run_here(handle, action)
        elif not background:
            handle.wait()
        return handle

    def _run_here(self, handle: Handle, action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            handle.finish(error)
            raise
        else:
            handle.finish()
        finally:
            self._end_one()

    def _end_one(self) -> None:
        with self._lock:
            self._running.release()
            self._num_pending -= 1

    def _start_worker(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._worker.start()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            handle, action = item
            self._running.acquire()
            error: BaseException | None = None
            try:
                action()
            except BaseException as raised:  # handed to whoever waits for the operation
                error = raised
            self._end_one()
            handle.finish(error)
            del item, handle, action, error

    def close(self, timeout_s: float) -> None:
        """Lets queued operations end, then stops the worker."""
        with self._lock:
            self._is_closed = True
            worker = self._worker
        if worker is not None:
            self._queue.put(None)
            if worker is not threading.current_thread():
                worker.join(timeout_s)
