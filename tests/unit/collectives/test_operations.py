"""The order of operations, and where they run."""

import threading
import time

import pytest

from farstep.collectives import CommunicatorAborted, CommunicatorTimeout
from farstep.collectives.operations import OperationQueue


@pytest.fixture
def operations():
    queue = OperationQueue("test")
    yield queue
    queue.close(5)


def test_runs_in_the_caller_when_nothing_is_queued(operations):
    seen = []
    operations.issue("one", lambda: seen.append(threading.current_thread()), background=False)
    assert seen == [threading.current_thread()]


def test_runs_in_order_behind_what_is_queued(operations):
    seen = []
    gate = threading.Event()
    first = operations.issue("first", gate.wait, background=True)
    handles = [operations.issue(str(n), lambda n=n: seen.append(n), background=True) for n in range(5)]
    assert not first.done()
    assert not any(handle.done() for handle in handles)
    threading.Timer(0.05, gate.set).start()
    operations.issue("last", lambda: seen.append("last"), background=False)
    assert seen == [0, 1, 2, 3, 4, "last"]
    assert all(handle.done() for handle in handles)


def test_errors_reach_whoever_waits(operations):
    def fail():
        raise KeyError("here")

    with pytest.raises(KeyError):
        operations.issue("inline", fail, background=False)
    handle = operations.issue("queued", fail, background=True)
    with pytest.raises(KeyError):
        handle.wait(5)
    assert isinstance(handle.exception(), KeyError)
    called = []
    handle.add_done_callback(called.append)
    assert called == [handle]


def test_a_wait_that_is_too_short_says_so(operations):
    gate = threading.Event()
    handle = operations.issue("slow thing", gate.wait, background=True)
    with pytest.raises(CommunicatorTimeout, match=r"slow thing has not ended within 0\.01 s"):
        handle.wait(0.01)
    gate.set()
    handle.wait(5)


def test_closing_lets_queued_operations_end():
    queue = OperationQueue("test")
    seen = []
    queue.issue("a", lambda: time.sleep(0.02), background=True)
    queue.issue("b", lambda: seen.append(1), background=True)
    queue.close(5)
    assert seen == [1]
    with pytest.raises(CommunicatorAborted, match="c: the communicator is closed"):
        queue.issue("c", lambda: None, background=True)


def test_only_one_runs_at_a_time_from_many_threads(operations):
    running, most = [0], [0]

    def action():
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.0005)
        running[0] -= 1

    def issue():
        for number in range(20):
            operations.issue("x", action, background=number % 2 == 0)

    threads = [threading.Thread(target=issue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    operations.issue("end", lambda: None, background=False)
    assert most[0] == 1
