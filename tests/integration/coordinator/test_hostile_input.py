"""What strangers and broken members say over real sockets: it is refused, and the run goes on."""

import asyncio
import contextlib
import json
import random
import socket
import time

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from farstep.membership import MemberInfo
from farstep.membership import messages as wire
from tests.integration.coordinator import processes
from tests.integration.coordinator.processes import wait_until


async def talk(address, *texts, listen_s=2.0):
    """Says all of it, and returns what came back and the code the line was closed with (None: it was not)."""
    heard = []
    async with connect(f"ws://{address}/v1/member", compression=None, max_size=None, proxy=None) as line:
        with contextlib.suppress(ConnectionClosed):
            for text in texts:
                await line.send(text)
        try:
            async with asyncio.timeout(listen_s):
                while True:
                    heard.append(json.loads(await line.recv()))
        except TimeoutError:
            return heard, None
        except ConnectionClosed:
            return heard, line.close_code


def say(address, *texts, **more):
    return asyncio.run(talk(address, *texts, **more))


def hello(name="x-0", **more):
    return wire.encode(wire.Hello(run=more.pop("run", "run"), info=MemberInfo.create(name), **more))


@pytest.fixture(scope="module")
def one_run():
    with processes.stage() as stage:
        coordinator, address = stage.coordinator(groups=2)
        members = [stage.client(address, name) for name in ("m-0", "m-1")]
        for member in members:
            member.wait_generation(0, 20)
        yield coordinator, address, members
        # After all that was said it can still decide.
        members[1].leave("the tests are over")
        assert members[0].wait_generation(1, 5).number == 2


@pytest.fixture
def run(one_run):
    yield one_run
    coordinator, _, members = one_run
    assert coordinator.child.poll() is None
    assert {member.current().number for member in members} == {1}
    assert all(member.is_connected for member in members)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        "not json",
        '{"kind": "unknown"}',
        '{"kind": "hello"}',
        '{"kind": "heartbeat", "sequence": -1}',
        '{"kind": "heartbeat", "surplus": 1}',
        b"\xff\xfe\x00",
        "[" * 20_000,
        '{"kind": "event", "event": "x", "fields": ' + '{"a":' * 5000 + "1" + "}" * 5001,
        json.dumps({"kind": "request", "to": "m-0", "payload": {str(number): 1 for number in range(100)}}),
        json.dumps({"kind": "store_set", "entry": {"scope": "s", "key": "k", "value": "x" * 200_000}}),
        json.dumps({"kind": "heartbeat", "sequence": 10**400}),
    ],
    ids=range(15),
)
def test_what_is_no_message_ends_the_line_with_a_reason(run, text):
    _, address, _ = run
    heard, code = say(address, text)
    assert heard == []
    assert code in (1007, 1008)


def test_message_above_the_limit_is_not_even_read(run):
    _, address, _ = run
    heard, code = say(address, "x" * (wire.MESSAGE_BYTES_MAX + 1))
    assert heard == []
    assert code == 1009


def test_many_small_pieces_of_one_message_are_bounded_too(run):
    _, address, _ = run

    async def pieces():
        async with connect(f"ws://{address}/v1/member", compression=None, proxy=None) as line:
            with contextlib.suppress(ConnectionClosed):
                await line.send("x" * 60_000 for _ in range(40))
            with contextlib.suppress(ConnectionClosed):
                await asyncio.wait_for(line.recv(), 2.0)
            return line.close_code

    assert asyncio.run(pieces()) in (1006, 1009)  # the rest may still be on its way when the line is closed


@pytest.mark.parametrize(
    "text",
    [
        wire.encode(wire.Heartbeat()),
        wire.encode(wire.Leave(reason="x", finished=True)),
        wire.encode(wire.DeathCertificate(member_id="m-0/00000000")),
        wire.encode(wire.Promise(number=2, ballot=(10**6, "x"))),
    ],
)
def test_nothing_counts_before_the_hello(run, text):
    _, address, members = run
    heard, code = say(address, text)
    assert heard == []
    assert code == wire.CLOSE_REFUSED
    assert members[0].final_step is None


def test_member_of_another_run_is_refused_with_a_reason(run):
    _, address, _ = run
    heard, code = say(address, hello(run="other"))
    assert code == wire.CLOSE_REFUSED
    assert heard[0]["kind"] == "refused"
    assert heard[0]["reason"] == "this is the coordinator of run run, not of other"


def test_name_of_a_living_member_is_refused(run):
    _, address, _ = run
    heard, code = say(address, hello("m-0"))
    assert code == wire.CLOSE_REFUSED
    assert "the name m-0 is in use by m-0/" in heard[0]["reason"]


def test_other_protocol_versions_are_refused(run):
    _, address, _ = run
    heard, _ = say(address, hello(version=99))
    assert heard[0]["is_final"]


def test_member_of_a_run_of_that_name_that_is_not_this_one_is_refused(run):
    _, address, members = run
    theirs = members[0].current().model_copy(update={"run_id": "run/00000000feed"})
    heard, code = say(address, hello(generation=theirs, was_member=True))
    assert code == wire.CLOSE_REFUSED
    assert "belongs to run run/00000000feed" in heard[0]["reason"]


def test_another_generation_of_the_same_number_is_two_histories(run):
    coordinator, address, members = run
    theirs = members[0].current().model_copy(update={"reason": "another"})
    heard, code = say(address, hello(generation=theirs, was_member=True))
    assert code == wire.CLOSE_REFUSED
    assert heard[0]["is_final"]
    assert "two histories" in heard[0]["reason"]
    coordinator.wait_for(lambda said: said.get("kind") == "two_histories")


def test_strangers_votes_do_not_count(run):
    _, address, members = run
    members[1]._core.outbox.clear()
    votes = [wire.encode(wire.Promise(number=2, ballot=(counter, "x"))) for counter in range(50)]
    votes += [wire.encode(wire.AcceptedReply(number=2, ballot=(counter, "x"))) for counter in range(50)]
    heard, code = say(address, hello("x-0", wants="observer"), *votes, *votes, listen_s=0.5)
    assert code is None
    assert heard[0]["kind"] == "welcome"
    assert members[0].current().number == 1


def test_requests_to_nobody_and_certificates_about_nobody_are_harmless(run):
    _, address, _ = run
    heard, code = say(
        address,
        hello("x-0", wants="observer"),
        wire.encode(wire.Request(to="nobody", payload={"a": 1})),
        wire.encode(wire.DeathCertificate(member_id="nobody/00000000")),
        wire.encode(wire.FailureReport(generation=1, suspects=("m-0/00000000",), reason="x", evict=True)),
        wire.encode(wire.FailureReport(generation=2**50)),
        listen_s=0.5,
    )
    assert code is None
    assert heard[0]["kind"] == "welcome"


def test_random_bytes_on_the_port_are_harmless(run):
    _, address, _ = run
    host, port = address.split(":")
    draw = random.Random(7)
    for number in range(60):
        with socket.create_connection((host, int(port)), timeout=5) as line, contextlib.suppress(OSError):
            if number % 3 == 0:
                line.sendall(
                    b"GET /v1/member HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
                )
            line.sendall(draw.randbytes(draw.randint(1, 4000)))


def test_lines_without_a_hello_are_closed_and_block_nobody(run):
    _, address, members = run
    host, port = address.split(":")
    lines = [socket.create_connection((host, int(port))) for _ in range(100)]
    try:
        began_s = time.monotonic()
        members[0].store("s").set("k", b"v")
        assert members[1].store("s").get("k", 5.0) == b"v"
        assert time.monotonic() - began_s < 2.0
    finally:
        for line in lines:
            line.close()


def test_member_that_does_not_read_is_dropped_and_delays_nobody(run):
    coordinator, address, members = run

    async def deaf():
        async with connect(
            f"ws://{address}/v1/member", compression=None, max_queue=1, proxy=None, close_timeout=0.1
        ) as line:
            await line.send(hello("deaf-0", wants="spare"))
            line.transport.pause_reading()
            line.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            value = b"x" * 90_000
            for number in range(420):  # together more than a coordinator keeps for anybody
                members[number % 2].store(f"big {number}").set("k", value)
                if number % 20 == 0:
                    await asyncio.to_thread(members[(number + 1) % 2].store(f"big {number}").get, "k", 20.0)

    asyncio.run(deaf())
    coordinator.wait_for(lambda said: said.get("kind") == "member_too_slow", 10.0)
    wait_until(lambda: all(member.is_connected for member in members))
