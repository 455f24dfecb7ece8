"""The end of one write, for threads, callbacks, futures and asyncio alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farstep._native import NativeEndpoint
    from farstep.engine.connection import Connection

__all__ = ["Completion", "CompletionDispatcher"]


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
        if not self._is_done:
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
        """Calls `callback(self)` once the write has ended, from a thread of the endpoint; at once if it has."""
        if self.done():
            callback(self)
        else:
            self._connection._dispatcher.add(self, callback)

    def future(self) -> Future[None]:
        """Returns a standard future that ends with the write."""
        future: Future[None] = Future()

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
    """Calls back for completions. Its thread starts with the first callback and ends when none is left."""

    _LINGER_S = 5.0  # how long the thread waits for another callback before it ends

    def __init__(self, native: NativeEndpoint) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._pending: list[tuple[Completion, Callable[[Completion], Any]]] = []
        self._thread: threading.Thread | None = None

    def add(self, completion: Completion, callback: Callable[[Completion], Any]) -> None:
        """Registers a callback."""
        with self._lock:
            self._pending.append((completion, callback))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="farstep-completions", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        seen = 0
        idle_s = 0.0
        while True:
            with self._lock:
                pending, self._pending = self._pending, []
                if not pending and idle_s >= self._LINGER_S:
                    self._thread = None
                    return
            remaining = [(c, f) for c, f in pending if not c.done()]
            finished = [(c, f) for c, f in pending if c.done() and (c, f) not in remaining]
            with self._lock:
                self._pending = remaining + self._pending
            for completion, callback in finished:
                callback(completion)
            wait_s = 0.02 if remaining else 0.25
            idle_s = 0.0 if pending else idle_s + wait_s
            seen = self._native.wait_change(seen, int(wait_s * 1e9))
            if self._native.is_closed and not self._pending:
                with self._lock:
                    if not self._pending:
                        self._thread = None
                        return
