"""The end of one write, for threads, callbacks, futures and asyncio alike."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep._native import NativeEndpoint
    from farstep.engine.connection import Connection

__all__ = ["Completion", "CompletionDispatcher"]

_log = logging.getLogger("farstep.engine")
_BUSY_WAIT_NS = 20_000_000  # completions wake the thread; this bounds the wait for what does not
_IDLE_WAIT_NS = 250_000_000


class Completion:
    """A write that was posted. It ends when the peer has acknowledged all of its bytes, or with the connection."""

    __slots__ = ("_connection", "_failure", "_is_done", "_number")

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._is_done = False
        self._failure: Exception | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the write has ended. Ctrl-C interrupts it.

        Raises:
            WaitTimeout: it did not end within `timeout_s`.
            ConnectionFailed: the connection failed before.
            ConnectionAborted: the connection was given up before.
            EndpointClosed: the endpoint was closed before.
        """
        if not self.done():
            try:
                self._connection._wait_completion(self._number, timeout_s)
            finally:
                self.done()
        if self._failure is not None:
            raise self._failure

    def done(self) -> bool:
        """Whether the write has ended, well or not."""
        if not self._is_done:
            self._is_done, self._failure = self._connection._completion_state(self._number)
        return self._is_done

    def exception(self) -> Exception | None:
        """What ended the write other than success; None while it goes on or if it went well."""
        self.done()
        return self._failure

    def add_done_callback(self, callback: Callable[[Completion], Any]) -> None:
        """Calls `callback(self)` once the write has ended, from a thread of the endpoint; at once if it has.

        What a callback raises is logged (logger `farstep.engine`) and goes no further.
        """
        if self.done():
            _Pending(self, callback).call()
        else:
            self._connection._dispatcher.add(self, callback)

    def future(self) -> Future[None]:
        """Returns a standard future that ends with the write."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # bytes under way cannot be called back

        def finish(completion: Completion) -> None:
            failure = completion.exception()
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        self.add_done_callback(finish)
        return future

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self.future()).__await__()


class CompletionDispatcher:
    """Calls back for completions. Its thread starts with the first callback and ends some time after the last."""

    _LINGER_S = 5.0  # how long the thread waits for another callback before it ends

    def __init__(self, native: NativeEndpoint) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._thread: threading.Thread | None = None

    def add(self, completion: Completion, callback: Callable[[Completion], Any]) -> None:
        """Registers a callback."""
        entry = _Pending(completion, callback)
        with self._lock:
            self._pending.append(entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="farstep-completions", daemon=True)
                self._thread.start()
        if completion.done():  # it may have ended after the thread last looked
            with self._lock:
                is_ours = entry in self._pending
                if is_ours:
                    self._pending.remove(entry)
            if is_ours:
                entry.call()

    def _run(self) -> None:
        seen, idle_since_s = 0, time.monotonic()
        while True:
            finished = self._take_finished()
            for entry in finished:
                entry.call()
            now_s = time.monotonic()
            with self._lock:
                is_idle = not self._pending
                if not is_idle:
                    idle_since_s = now_s
                elif self._native.is_closed or now_s - idle_since_s >= self._LINGER_S:
                    self._thread = None
                    return
            del finished  # nothing of a finished write may outlive it here
            seen = self._native.wait_change(seen, _IDLE_WAIT_NS if is_idle else _BUSY_WAIT_NS)

    def _take_finished(self) -> list[_Pending]:
        with self._lock:
            pending = list(self._pending)
        finished = [entry for entry in pending if entry.completion.done()]
        with self._lock:
            finished = [entry for entry in finished if entry in self._pending]
            self._pending = [entry for entry in self._pending if entry not in finished]
        return finished


class _Pending:
    """A callback that has not been called. Compared by identity: the same one may be registered twice."""

    __slots__ = ("callback", "completion")

    def __init__(self, completion: Completion, callback: Callable[[Completion], Any]) -> None:
        self.completion = completion
        self.callback = callback

    def call(self) -> None:
        try:
            self.callback(self.completion)
        except KeyboardInterrupt:
            raise
        except BaseException:  # SystemExit or a cancellation would end the thread that serves all callbacks
            _log.exception("a callback of a completion raised; the others go on")
