"""Callbacks of completions, against a stand-in for the compiled endpoint."""

import logging
import threading
import time

from farstep.engine.completion import Completion, CompletionDispatcher


class FakeNative:
    """Counts changes like the compiled endpoint."""

    def __init__(self):
        self.changed = threading.Condition()
        self.number = 0
        self.is_closed = False

    def change(self):
        with self.changed:
            self.number += 1
            self.changed.notify_all()

    def wait_change(self, seen, timeout_ns):
        with self.changed:
            self.changed.wait_for(lambda: self.number != seen, timeout_ns / 1e9)
            return self.number


class FakeConnection:
    def __init__(self):
        self.native = FakeNative()
        self._dispatcher = CompletionDispatcher(self.native)
        self.finished = {}

    def _completion_state(self, number):
        return number in self.finished, self.finished.get(number)

    def _wait_completion(self, number, timeout_s):
        end_s = time.monotonic() + (timeout_s or 60)
        while number not in self.finished and time.monotonic() < end_s:
            time.sleep(0.001)
        if number not in self.finished:
            raise TimeoutError
        if self.finished[number] is not None:
            raise self.finished[number]

    def finish(self, number, failure=None):
        self.finished[number] = failure
        self.native.change()


def test_callbacks_are_called_once_each_in_the_order_they_were_added():
    connection = FakeConnection()
    completion = Completion(connection, 1)
    called, done = [], threading.Event()
    for i in range(5):
        completion.add_done_callback(lambda _, i=i: called.append(i))
    completion.add_done_callback(lambda _: done.set())
    assert not called
    connection.finish(1)
    assert done.wait(10)
    assert called == [0, 1, 2, 3, 4]


def test_one_callback_may_be_added_twice():
    connection = FakeConnection()
    completion = Completion(connection, 1)
    calls = threading.Semaphore(0)

    def callback(_):
        calls.release()

    completion.add_done_callback(callback)
    completion.add_done_callback(callback)
    connection.finish(1)
    assert calls.acquire(timeout=10)
    assert calls.acquire(timeout=10)


def test_a_callback_may_add_another():
    connection = FakeConnection()
    done = threading.Event()
    Completion(connection, 1).add_done_callback(
        lambda _: Completion(connection, 2).add_done_callback(lambda _: done.set())
    )
    connection.finish(1)
    connection.finish(2)
    assert done.wait(10)


def test_a_write_that_ends_while_its_callback_is_added_is_not_overlooked():
    for n in range(300):
        connection = FakeConnection()
        done = threading.Event()
        finisher = threading.Thread(target=connection.finish, args=(n,))
        finisher.start()
        Completion(connection, n).add_done_callback(lambda _, done=done: done.set())
        assert done.wait(10)
        finisher.join()
        connection.native.is_closed = True
        connection.native.change()


def test_failures_reach_futures():
    connection = FakeConnection()
    future = Completion(connection, 1).future()
    connection.finish(1, ValueError("why"))
    assert str(future.exception(10)) == "why"


def test_a_raising_callback_is_logged_even_when_called_at_once(caplog):
    connection = FakeConnection()
    connection.finish(1)
    with caplog.at_level(logging.ERROR, logger="farstep.engine"):
        Completion(connection, 1).add_done_callback(lambda _: 1 / 0)
    assert "ZeroDivisionError" in caplog.text


def test_the_thread_ends_with_the_endpoint():
    connection = FakeConnection()
    done = threading.Event()
    Completion(connection, 1).add_done_callback(lambda _: done.set())
    thread = connection._dispatcher._thread
    connection.finish(1)
    assert done.wait(10)
    connection.native.is_closed = True
    connection.native.change()
    thread.join(10)
    assert not thread.is_alive()
    assert connection._dispatcher._thread is None
