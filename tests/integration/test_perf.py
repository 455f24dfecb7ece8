"""Measurements over loopback, client and server in one process, and what they say when something is wrong."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from farstep.perf import EndSetup, PerfClient, PerfError, PerfPlan, PerfServer
from farstep.perf.server import ServedTest

WAIT_S = 20.0


class Served:
    """A server that runs in a thread, and what it has told."""

    def __init__(self) -> None:
        self.server = PerfServer("127.0.0.1", 0)
        self.tests: list[ServedTest] = []
        self.begun = threading.Event()
        self.thread = threading.Thread(
            target=self.server.serve,
            kwargs={"on_start": lambda *_: self.begun.set(), "on_end": self.tests.append},
        )
        self.thread.start()

    def client(self, **setup: object) -> PerfClient:
        host, port = self.server.address
        return PerfClient(host, port, setup=EndSetup(**setup))  # type: ignore[arg-type]

    def last(self, count: int = 1) -> ServedTest:
        end = time.monotonic() + WAIT_S
        while len(self.tests) < count and time.monotonic() < end:
            time.sleep(0.01)
        return self.tests[count - 1]

    def close(self) -> None:
        self.server.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def served() -> Iterator[Served]:
    running = Served()
    with contextlib.closing(running):
        yield running


@pytest.mark.parametrize("direction", ["forward", "reverse", "both"])
def test_so_many_bytes_go_over(served, direction):
    total = 3_000_001
    plan = PerfPlan(
        direction=direction, connections=2, planes=2, size_bytes=100_000, time_s=None, total_bytes=total
    )
    result = served.client().run(plan, interval_s=0.05)
    other = served.last().result
    assert result.cause == served.last().error == ""
    assert result.path_mode == "udp"
    assert [plane["plane"] for plane in result.planes] == [0, 1]
    if plan.client_sends:
        assert result.total.sent_bytes == other.total.received_bytes == total
        assert result.peer["total"]["received_bytes"] == total
    if plan.server_sends:
        assert result.total.received_bytes == other.total.sent_bytes == total
        assert result.peer["total"]["sent_bytes"] == total


def test_intervals_add_up_to_the_whole(served):
    intervals = []
    plan = PerfPlan(time_s=0.5, size_bytes=10_000)
    result = served.client().run(plan, interval_s=0.1, on_interval=intervals.append)
    assert result.total.seconds >= 0.5
    assert len(intervals) >= 2
    assert [interval.start_s for interval in intervals[1:]] == [interval.end_s for interval in intervals[:-1]]
    told = sum(interval.total.sent_bytes for interval in intervals)
    # Writes that were under way at the end came through after the last interval.
    assert 0 < told <= result.total.sent_bytes
    json.dumps([interval.table() for interval in intervals] + [result.table()])


def test_what_is_omitted_does_not_count(served):
    intervals = []
    plan = PerfPlan(time_s=0.2, omit_s=0.2, size_bytes=10_000)
    result = served.client().run(plan, interval_s=0.1, on_interval=intervals.append)
    assert result.total.seconds < 0.4 + WAIT_S
    assert any(interval.is_omitted for interval in intervals)
    assert result.total.sent_bytes < served.last().result.total.received_bytes


@pytest.mark.parametrize("size_bytes", [0, 64, 100_000])
def test_latency_is_measured(served, size_bytes):
    result = served.client().run(PerfPlan(measure="latency", size_bytes=size_bytes, time_s=0.2))
    assert result.cause == served.last().error == ""
    latency = result.latency
    assert latency.count > 0
    assert 0 < latency.min_us <= latency.median_us <= latency.p99_us <= latency.max_us


def test_measurements_follow_one_another(served):
    for _ in range(3):
        result = served.client().run(PerfPlan(time_s=None, total_bytes=100_000))
        assert result.total.sent_bytes == 100_000


def test_an_interrupt_ends_it_with_a_result(served):
    client = served.client()
    result = client.run(PerfPlan(time_s=600.0), interval_s=0.1, on_interval=lambda _: client.interrupt())
    assert client.is_interrupted
    assert result.cause == ""
    assert 0 < result.total.sent_bytes == served.last().result.total.received_bytes


def test_a_server_that_stops_ends_it_with_a_cause(served):
    client = served.client()
    result = client.run(PerfPlan(time_s=600.0), interval_s=0.1, on_interval=lambda _: served.server.close())
    assert "the server" in result.cause
    assert result.total.sent_bytes > 0
    assert served.last().error == "the server was stopped"


def test_a_client_that_vanishes_is_noticed(served):
    client = served.client()

    def vanish(end) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.run(PerfPlan(direction="reverse", time_s=600.0), on_start=vanish)
    assert "has ended the measurement" in served.last().error
    assert served.client().run(PerfPlan(time_s=None, total_bytes=1000)).cause == ""


def test_one_at_a_time(served, monkeypatch):
    monkeypatch.setattr("farstep.perf.server.ENDING_S", 0.05)
    first = served.client()
    thread = threading.Thread(target=first.run, args=(PerfPlan(time_s=600.0),))
    thread.start()
    assert served.begun.wait(WAIT_S)
    with pytest.raises(PerfError, match=r"busy with a measurement for 127\.0\.0\.1"):
        served.client().run(PerfPlan(time_s=0.1))
    first.interrupt()
    thread.join(WAIT_S)
    assert served.last().error == ""


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET / HTTP/1.1\r\n", "is it farstep perf?"),
        (b"[]\n", "is it farstep perf?"),
        (b'{"protocol": "iperf"}\n', "is it farstep perf?"),
        (b'{"protocol": "farstep-perf", "version": 99}\n', "speaks version 99"),
        (b'{"protocol": "farstep-perf", "version": 1, "plan": {}}\n', "another version of farstep"),
    ],
)
def test_strangers_are_told_and_sent_away(served, sent, answer):
    with socket.create_connection(served.server.address) as stranger:
        stranger.sendall(sent)
        stranger.settimeout(WAIT_S)
        assert answer in json.loads(stranger.makefile().readline())["error"]
    assert answer in served.last().error


def test_a_server_of_something_else_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = PerfClient(*listener.getsockname())
        caught: list[PerfError] = []

        def run() -> None:
            with pytest.raises(PerfError) as error:
                client.run(PerfPlan(time_s=0.1))
            caught.append(error.value)

        thread = threading.Thread(target=run)
        thread.start()
        stream, _ = listener.accept()
        stream.sendall(b"220 mail.example ESMTP\r\n")
        thread.join(WAIT_S)
        stream.close()
    assert "is it farstep perf?" in str(caught[0])


def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
    with pytest.raises(PerfError, match=f"cannot reach a server at {host}:{port} .Connection refused."):
        PerfClient(host, port).run(PerfPlan())


def test_ends_that_do_not_fit_say_why(served):
    client = served.client(binds=("[::1]",))
    with pytest.raises(PerfError, match="cannot reach a server"):
        client.run(PerfPlan())
    with pytest.raises(PerfError, match="no attachment on port 0"):
        served.client().run(PerfPlan(path_mode="srv6"))


def test_a_port_in_use_is_named(served):
    host, port = served.server.address
    with pytest.raises(PerfError, match=f"cannot listen at {host}:{port}"):
        PerfServer(host, port)
