"""Every wait ends: with what was waited for, in time, or with an error that says why."""

import asyncio
import concurrent.futures
import dataclasses
import gc
import logging
import math
import threading
import time
import weakref

import numpy as np
import pytest

from farstep.engine import (
    ConnectionAborted,
    ConnectionFailed,
    Endpoint,
    EndpointClosed,
    EngineError,
    InvalidFieldError,
    WaitTimeout,
)
from tests.integration.engine_pair import IMPATIENT, WAIT_S, engine_pair

PROMPT_S = 3.0
"""What is to happen at once happens within this, even on a loaded machine."""


@pytest.fixture
def pair():
    with engine_pair(["127.0.0.1"]) as made:
        yield made


@pytest.fixture
def stuck():
    """A pair whose side b does not exist for a: writes never complete, the retry budget lasts for minutes."""
    with Endpoint(["127.0.0.1"], name="a") as a, Endpoint(["127.0.0.1"], name="b") as b:
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        to_b.connect(to_a.descriptor)
        yield a, to_b, a.register(bytes(1000)), b.register(bytearray(1000))


def in_threads(count, work):
    """Starts `work(i)` in threads; returns a function that joins them and gives results or errors."""
    results: dict[int, object] = {}

    def run(i):
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()

    def join():
        end_s = time.monotonic() + PROMPT_S
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
            assert not thread.is_alive(), "a waiter was left behind"
        return [results[i] for i in range(count)]

    return join


@pytest.mark.parametrize("timeout_s", [0, 0.05, -1])
def test_a_wait_that_takes_too_long_says_what_did_not_come(stuck, timeout_s):
    _, to_b, region, landing = stuck
    start_s = time.monotonic()
    with pytest.raises(WaitTimeout, match=r"to 'b': an immediate did not come within") as caught:
        to_b.wait_immediate(timeout_s)
    completion = to_b.write(region, 0, 1000, landing.remote, 0)
    with pytest.raises(TimeoutError, match="the end of a write did not come within"):
        completion.wait(timeout_s)
    assert time.monotonic() - start_s < PROMPT_S
    assert caught.value.peer == "b"
    assert caught.value.connection.startswith("<Connection 0x")
    assert not completion.done()
    assert completion.exception() is None


def test_a_wait_of_any_length_can_be_asked_for(pair):
    *_, region, landing = pair.buffers(10)
    for timeout_s in (None, math.inf, 1e300, 3):
        pair.to_b.write(region, 0, 10, landing.remote, 0, immediate=4).wait(timeout_s)
        assert pair.to_a.wait_immediate(timeout_s) == 4
    with pytest.raises(InvalidFieldError, match="timeout_s = nan"):
        pair.to_a.wait_immediate(math.nan)


def test_abort_from_another_thread_ends_every_wait_at_once(stuck):
    _, to_b, region, landing = stuck
    writes = [to_b.write(region, 0, 1000, landing.remote, 0) for _ in range(2000)]  # beyond the send queue

    def wait(i):
        return to_b.wait_immediate(60) if i % 2 else writes[i * 100].wait(60)

    join = in_threads(16, wait)
    time.sleep(0.2)
    start_s = time.monotonic()
    to_b.abort("the operator said so")
    errors = join()
    assert time.monotonic() - start_s < PROMPT_S
    for error in errors:
        assert isinstance(error, ConnectionAborted)
        assert str(error).endswith("to 'b': the operator said so")
    assert all(write.done() for write in writes)
    assert isinstance(writes[-1].exception(), ConnectionAborted)
    with pytest.raises(ConnectionAborted, match="the operator said so"):
        to_b.write(region, 0, 1, landing.remote, 0)
    assert not to_b.is_open


def test_abort_of_the_endpoint_ends_all_connections(pair):
    join = in_threads(2, lambda i: pair.to_a.wait_immediate(60))
    time.sleep(0.1)
    pair.b.abort("regroup")
    for error in join():
        assert isinstance(error, ConnectionAborted)
        assert error.cause == "regroup"
    with pytest.raises(ConnectionAborted, match="the peer gave it up"):
        pair.to_b.wait_immediate(WAIT_S)


def test_abort_before_connect_is_kept(pair):
    connection = pair.a.create_connection(peer_name="c")
    with pytest.raises(EngineError, match="not connected yet"):
        connection.wait_immediate(0)
    connection.abort("never mind")
    with pytest.raises(ConnectionAborted, match="never mind"):
        connection.wait_immediate(0)
    with pytest.raises(ConnectionAborted, match="never mind"):
        connection.connect(pair.to_a.descriptor)


def test_the_first_cause_of_a_failure_stays(pair):
    pair.to_a.abort("first")
    with pytest.raises(ConnectionAborted, match="the peer gave it up"):
        pair.to_b.wait_immediate(WAIT_S)
    pair.to_b.abort("second")
    with pytest.raises(ConnectionAborted, match="the peer gave it up"):
        pair.to_b.wait_immediate(WAIT_S)


def test_closing_the_endpoint_ends_every_wait(stuck):
    a, to_b, region, landing = stuck
    write = to_b.write(region, 0, 1000, landing.remote, 0)
    join = in_threads(8, lambda i: to_b.wait_immediate(60) if i % 2 else write.wait(60))
    time.sleep(0.1)
    a.close()
    assert all(isinstance(error, EndpointClosed) for error in join())
    for call in (
        lambda: to_b.wait_immediate(1),
        lambda: to_b.poll_immediate(),
        lambda: to_b.write(region, 0, 1, landing.remote, 0),
        lambda: a.register(b"x"),
        lambda: a.create_connection(),
        lambda: a.stats(),
        lambda: a.take_path_events(),
        lambda: a.set_port_up(0, is_up=False),
        lambda: write.wait(1),
    ):
        with pytest.raises(EndpointClosed, match="closed"):
            call()
    assert isinstance(write.exception(), EndpointClosed)
    to_b.close()
    a.close()


def test_closing_a_connection_ends_its_waits_and_no_others(pair):
    other = pair.a.create_connection(peer_name="other")
    join = in_threads(2, lambda i: pair.to_b.wait_immediate(60))
    time.sleep(0.1)
    pair.to_b.close()
    for error in join():
        assert isinstance(error, ConnectionAborted)
        assert "closed here" in str(error)
    assert pair.a.create_connection(peer_name="next").peer_name == "next"
    other.close()


def test_a_wait_does_not_slip_into_the_next_connection_of_its_slot(pair):
    join = in_threads(1, lambda i: pair.to_b.wait_immediate(60))
    time.sleep(0.1)
    pair.to_b.close()
    to_b, to_a = pair.a.create_connection(peer_name="b2"), pair.b.create_connection(peer_name="a2")
    to_b.connect(to_a.descriptor)
    to_a.connect(to_b.descriptor)
    region, landing = pair.b.register(b"x"), pair.a.register(bytearray(1))
    to_a.write(region, 0, 1, landing.remote, 0, immediate=5).wait(WAIT_S)
    assert isinstance(join()[0], ConnectionAborted)
    assert to_b.wait_immediate(WAIT_S) == 5


def test_a_peer_that_closes_is_named_as_the_cause(pair):
    join = in_threads(1, lambda i: pair.to_b.wait_immediate(60))
    time.sleep(0.1)
    pair.b.close()
    (error,) = join()
    assert isinstance(error, ConnectionFailed)
    assert "to 'b': the peer closed it" in str(error)


def test_every_one_of_many_peers_hears_of_a_close():
    with Endpoint(["127.0.0.1"], name="hub") as hub, Endpoint(["127.0.0.1"], name="rim") as rim:
        ways = []
        for i in range(40):
            out, back = hub.create_connection(peer_name=f"r{i}"), rim.create_connection(peer_name="hub")
            out.connect(back.descriptor)
            back.connect(out.descriptor)
            ways.append(back)
        time.sleep(0.1)
        hub.close()
        start_s = time.monotonic()
        for back in ways:
            with pytest.raises(ConnectionFailed, match="the peer closed it"):
                back.wait_immediate(WAIT_S)
        assert time.monotonic() - start_s < PROMPT_S


def test_what_arrived_before_a_close_is_still_delivered(pair):
    *_, region, landing = pair.buffers(100)
    for i in range(5):
        pair.to_b.write(region, 0, 100, landing.remote, 0, immediate=i).wait(WAIT_S)
    pair.a.close()
    time.sleep(0.1)
    assert [pair.to_a.wait_immediate(1) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ConnectionFailed, match="the peer closed it"):
        pair.to_a.wait_immediate(1)


@pytest.mark.parametrize("what", ["endpoint", "connection"])
def test_a_peer_may_close_as_soon_as_it_has_everything(what):
    # Its last acknowledgement must not be overtaken by the news that it is gone.
    for _ in range(30):
        with engine_pair(["127.0.0.1"]) as pair:
            *_, region, landing = pair.buffers(20_000)
            completion = pair.to_b.write(region, 0, 20_000, landing.remote, 0, immediate=1)
            assert pair.to_a.wait_immediate(WAIT_S) == 1
            (pair.b if what == "endpoint" else pair.to_a).close()
            completion.wait(WAIT_S)


def test_a_completed_write_stays_completed_after_close(pair):
    *_, region, landing = pair.buffers(100)
    known = pair.to_b.write(region, 0, 100, landing.remote, 0, immediate=1)
    known.wait(WAIT_S)
    unasked = pair.to_b.write(region, 0, 100, landing.remote, 0, immediate=2)
    end_s = time.monotonic() + WAIT_S
    while pair.to_b.stats().completed < 2:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    pair.to_b.close()
    for completion in (known, unasked):
        assert completion.done()
        assert completion.exception() is None
        completion.wait(1)


def test_a_silent_peer_is_given_up_within_the_retry_budget():
    with Endpoint(["127.0.0.1"], profile=IMPATIENT, name="a") as a, Endpoint(["127.0.0.1"], name="b") as b:
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        to_b.connect(to_a.descriptor)  # b never connects: its endpoint knows no such queue pair
        region, landing = a.register(bytes(1000)), b.register(bytearray(1000))
        start_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match="no path to the peer answers any more") as caught:
            to_b.write(region, 0, 1000, landing.remote, 0).wait(WAIT_S)
        assert time.monotonic() - start_s < PROMPT_S
        assert caught.value.peer == "b"
        with pytest.raises(ConnectionFailed, match="retry budget"):
            to_b.write(region, 0, 1000, landing.remote, 0)


# ---- callbacks, futures, asyncio -------------------------------------------------------------------------------------


def test_a_callback_is_called_once_the_write_has_ended(pair):
    *_, region, landing = pair.buffers(1 << 20)
    called: list[object] = []
    happened = threading.Event()

    def remember(completion):
        called.append((completion, threading.current_thread().name))
        happened.set()

    completion = pair.to_b.write(region, 0, 1 << 20, landing.remote, 0)
    completion.add_done_callback(remember)
    assert happened.wait(WAIT_S)
    assert called[0][0] is completion
    completion.add_done_callback(remember)
    assert called[1] == (completion, threading.current_thread().name), "one that has ended is told at once"
    time.sleep(0.05)
    assert len(called) == 2


def test_a_callback_that_raises_is_logged_and_silences_no_other(pair, caplog):
    *_, region, landing = pair.buffers(1 << 20)
    happened = threading.Event()
    completion = pair.to_b.write(region, 0, 1 << 20, landing.remote, 0)
    with caplog.at_level(logging.ERROR, logger="farstep.engine"):
        completion.add_done_callback(lambda _: 1 / 0)
        completion.add_done_callback(lambda _: happened.set())
        assert happened.wait(WAIT_S)
        later = threading.Event()
        pair.to_b.write(region, 0, 1 << 20, landing.remote, 0).add_done_callback(lambda _: later.set())
        assert later.wait(WAIT_S)
    assert "a callback of a completion raised" in caplog.text


def test_callbacks_come_promptly_under_many_writes(pair):
    *_, region, landing = pair.buffers(100)
    done = threading.Semaphore(0)
    start_s = time.monotonic()
    for _ in range(200):
        pair.to_b.write(region, 0, 100, landing.remote, 0).add_done_callback(lambda _: done.release())
        assert done.acquire(timeout=WAIT_S)
    assert time.monotonic() - start_s < 10, "none sat out the dispatcher's idle wait"


def test_futures_combine_with_others(pair):
    *_, region, landing = pair.buffers(1 << 20)
    futures = [pair.to_b.write(region, 0, 1 << 20, landing.remote, 0).future() for _ in range(10)]
    finished, pending = concurrent.futures.wait(futures, WAIT_S)
    assert not pending
    assert all(future.result() is None for future in finished)


def test_a_future_cannot_call_bytes_back(stuck):
    a, to_b, region, landing = stuck
    future = to_b.write(region, 0, 10, landing.remote, 0).future()
    assert not future.cancel()
    a.close()
    assert isinstance(future.exception(WAIT_S), EndpointClosed)


def test_awaiting_a_write(pair):
    *_, region, landing = pair.buffers(1 << 20)

    async def work():
        writes = [pair.to_b.write(region, 0, 1 << 20, landing.remote, 0) for _ in range(8)]
        await asyncio.wait_for(asyncio.gather(*writes), WAIT_S)
        return all(write.done() for write in writes)

    assert asyncio.run(work())


def test_awaiting_a_write_that_fails(stuck):
    _, to_b, region, landing = stuck

    async def work():
        write = to_b.write(region, 0, 10, landing.remote, 0)
        asyncio.get_running_loop().call_later(0.05, to_b.abort, "stop")
        await asyncio.wait_for(write, WAIT_S)

    with pytest.raises(ConnectionAborted, match="stop"):
        asyncio.run(work())


def test_an_await_that_is_cancelled_leaves_the_write_alone(stuck):
    _, to_b, region, landing = stuck
    write = to_b.write(region, 0, 10, landing.remote, 0)

    async def work():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(write.future()), 0.05)

    asyncio.run(work())
    assert not write.done()
    to_b.abort("enough")
    assert isinstance(write.exception(), ConnectionAborted)


# ---- life ------------------------------------------------------------------------------------------------------------


def test_an_endpoint_nobody_refers_to_is_closed():
    before = {t.ident for t in threading.enumerate()}
    a, b = Endpoint(name="a"), Endpoint(name="b")
    to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
    to_b.connect(to_a.descriptor)
    to_a.connect(to_b.descriptor)
    target = np.zeros(1000, np.uint8)
    landing, region = b.register(target), a.register(bytes(1000))
    to_b.write(region, 0, 1000, landing.remote, 0, immediate=1).wait(WAIT_S)
    gone = [weakref.ref(x) for x in (a, b, to_b, to_a, landing, region)]
    del a, b, to_b, to_a, landing, region
    gc.collect()
    assert [ref() for ref in gone] == [None] * 6
    assert {t.ident for t in threading.enumerate()} <= before


def test_counters_and_the_garbage_collector_get_along(pair):
    # Cycles that hold regions die while counters are read: the collector then needs the loop's lock itself.
    class Node:
        pass

    gc.collect()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            node = Node()
            node.me, node.region = node, pair.a.register(bytearray(10))
            del node
            pair.to_b.stats(with_paths=True)
            pair.a.stats()
    finally:
        gc.set_threshold(*threshold)


def test_many_threads_use_one_endpoint(pair):
    *_, region, landing = pair.buffers(2_000)
    stop = threading.Event()
    counts = [0] * 6

    def work(i):
        while not stop.is_set():
            if i == 0:
                pair.to_b.stats(with_paths=True)
            elif i == 1:
                pair.a.register(bytearray(100)).close()
            elif i == 2:
                pair.a.create_connection().close()
            else:
                pair.to_b.write(region, 0, 2_000, landing.remote, 0).wait(WAIT_S)
            counts[i] += 1
        return "done"

    join = in_threads(6, work)
    end_s = time.monotonic() + WAIT_S
    while min(counts) < 10 and time.monotonic() < end_s:
        time.sleep(0.05)
    stop.set()
    assert join() == ["done"] * 6
    assert min(counts) >= 10, counts


def test_more_connections_than_the_profile_allows_are_refused():
    with Endpoint(profile=dataclasses.replace(IMPATIENT, max_connections=3)) as endpoint:
        made = [endpoint.create_connection() for _ in range(3)]
        with pytest.raises(EngineError, match="all 3 connections are in use; raise max_connections"):
            endpoint.create_connection()
        made[1].close()
        endpoint.create_connection()
