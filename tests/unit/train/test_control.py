"""The line between the supervisor and its ranks."""

import json
import queue
import socket
import threading

import pytest

from farstep.train.control import ControlClient, ControlServer, Message
from farstep.train.errors import RunFailed


class Rank:
    """A client that records what it is told."""

    def __init__(self, server: ControlServer, rank: int = 0, **hello) -> None:
        self.stopped = threading.Event()
        self.aborted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.client = ControlClient(
            server.address, server.token, rank, on_stop=self.stopped.set, on_abort=self.aborted.put, **hello
        )


@pytest.fixture
def inbox():
    return queue.SimpleQueue()


@pytest.fixture
def server(inbox):
    server = ControlServer(inbox)
    yield server
    server.close()


def test_messages_arrive_in_order_with_their_rank(server, inbox):
    rank = Rank(server, 3, pid=7)
    rank.client.send("event", value=[1, 2.5, None, "ü"])
    rank.client.send("done")
    rank.client.close()
    got = [inbox.get(timeout=5) for _ in range(4)]
    assert got == [
        Message("hello", 3, {"kind": "hello", "rank": 3, "pid": 7}),
        Message("event", 3, {"value": [1, 2.5, None, "ü"]}),
        Message("done", 3, {}),
        Message("lost", 3, {}),
    ]
    assert rank.aborted.empty()


def test_answers_stop_and_abort_reach_the_rank(server, inbox):
    first, second = Rank(server, 0), Rank(server, 1)
    for _ in range(2):
        inbox.get(timeout=5)
    server.send(1, "addresses", public=[{"west": ["127.0.0.1", 5]}])
    assert second.client.wait_answer(5)["public"] == [{"west": ["127.0.0.1", 5]}]
    with pytest.raises(RunFailed, match=r"did not answer within 0\.01 s"):
        first.client.wait_answer(0.01)
    server.broadcast("stop")
    assert first.stopped.wait(5)
    assert second.stopped.wait(5)
    server.broadcast("abort", reason="rank 9 is gone")
    assert first.aborted.get(timeout=5) == "rank 9 is gone"
    first.client.close()
    second.client.close()


def test_a_rank_that_comes_late_is_told_what_was_said_to_all(server, inbox):
    server.broadcast("abort", also_later=True, reason="too late")
    rank = Rank(server)
    assert rank.aborted.get(timeout=5) == "too late"
    rank.client.close()


def test_a_rank_notices_at_once_that_its_supervisor_is_gone(server, inbox):
    rank = Rank(server)
    inbox.get(timeout=5)
    server.close()
    assert rank.aborted.get(timeout=5) == "the supervisor of the run is gone"
    rank.client.send("event")  # must not raise: the abort has told already
    rank.client.close()


@pytest.mark.parametrize(
    "first_line",
    [
        b"",
        b"GET / HTTP/1.0\r\n",
        b"[]\n",
        b'{"kind": "hello", "rank": 0}\n',
        b'{"kind": "hello", "rank": 0, "token": "wrong"}\n',
        b'{"kind": "hello", "rank": "x", "token": "wrong"}\n',
    ],
)
def test_a_stranger_is_turned_away(server, inbox, first_line: bytes):
    with socket.create_connection(server.address, timeout=5) as line:
        line.sendall(first_line)
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1) == b""
    assert server.num_connected == 0
    assert inbox.empty()


def test_a_second_rank_of_the_same_number_is_turned_away(server, inbox):
    rank = Rank(server)
    inbox.get(timeout=5)
    with socket.create_connection(server.address, timeout=5) as line:
        line.sendall(json.dumps({"kind": "hello", "rank": 0, "token": server.token}).encode() + b"\n")
        assert line.recv(1) == b""
    rank.client.close()


def test_a_supervisor_that_cannot_be_reached_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(
        RunFailed, match=rf"rank 2 cannot reach the supervisor at 127\.0\.0\.1:{address[1]}: .*refused"
    ):
        ControlClient(address, "", 2, on_stop=lambda: None, on_abort=lambda reason: None)
