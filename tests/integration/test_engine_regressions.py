"""What once went wrong between applications, threads and the event loop, one test each."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import pytest

from farstep.engine import (
    Endpoint,
    EndpointProfile,
    EngineError,
    InvalidFieldError,
    PortConfig,
    RemoteRegion,
)
from farstep.engine.errors import ConnectionFailed
from farstep.mrc.profiles import EvProfile
from tests.integration.engine_pair import WAIT_S, connect, engine_pair


def test_the_peer_hears_of_the_end_although_other_connections_are_busy():
    with engine_pair(["127.0.0.1"]) as pair:
        others = [connect(pair.a, pair.b)[0] for _ in range(24)]
        _, _, region, landing = pair.buffers(64 << 20)
        for to_b in others:
            for _ in range(4):
                to_b.write(region, 0, region.length_bytes, landing.remote, 0)
        pair.to_b.close()
        begin_s = time.monotonic()
        with pytest.raises(ConnectionFailed, match="closed it"):
            pair.to_a.wait_immediate(WAIT_S)
        assert time.monotonic() - begin_s < 2
        pair.a.abort("the test is over")


def test_room_for_immediates_is_told_when_it_is_made():
    # The sender has as many write-immediates in flight as it may; the application takes them only now.
    count = 3000
    with engine_pair(["127.0.0.1"], profile=EndpointProfile(immediate_queue=64, wimm=16)) as pair:
        _, _, region, landing = pair.buffers(8)
        writes = [pair.to_b.write(region, 0, 8, landing.remote, 0, immediate=k) for k in range(count)]
        time.sleep(0.3)
        asked = pair.to_b.stats().probes_sent
        for k in range(count):
            assert pair.to_a.wait_immediate(WAIT_S) == k
        writes[-1].wait(WAIT_S)
        assert pair.to_b.stats().probes_sent - asked < count // 16 // 4, "the sender had to ask each time"


def test_the_end_is_told_on_more_than_one_path():
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for one in sockets:
            stack.enter_context(one)
            one.bind(("127.0.0.1", 0))
            one.settimeout(WAIT_S)
        with Endpoint(["127.0.0.1"] * 2) as a, Endpoint(["127.0.0.1"] * 2) as b:
            descriptor = json.loads(b.create_connection().descriptor)
            for port, one in zip(descriptor["ports"], sockets, strict=True):
                port["port"] = one.getsockname()[1]
            to_b = a.create_connection()
            to_b.connect(json.dumps(descriptor).encode())
            to_b.close()
            for one in sockets:
                while one.recv(2048)[0] != 0xDD:  # NACK
                    pass


@pytest.mark.parametrize("other", ["connect", "close", "abort"])
def test_connect_may_meet_other_calls_of_its_connection(other):
    with Endpoint(["127.0.0.1"]) as a, Endpoint(["127.0.0.1"]) as b:
        for _ in range(40):
            to_b, to_a = a.create_connection(), b.create_connection()
            both = threading.Barrier(2)

            def connect_now(to_b=to_b, to_a=to_a, both=both):
                both.wait()
                with contextlib.suppress(EngineError):
                    to_b.connect(to_a.descriptor)

            def meet(to_b=to_b, to_a=to_a, both=both):
                both.wait()
                with contextlib.suppress(EngineError):
                    if other == "connect":
                        to_b.connect(to_a.descriptor)
                    elif other == "close":
                        to_b.close()
                    else:
                        to_b.abort("not wanted any more")

            threads = [threading.Thread(target=f) for f in (connect_now, meet)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT_S)
            assert to_b.is_open == (other == "connect")
            to_b.close()
            to_a.close()


def test_a_peer_with_many_ports_gets_as_many_paths_as_there_is_room_for():
    many_values = EvProfile(active_per_plane=64, backup_per_plane=32)
    with (
        Endpoint(["127.0.0.1"], profile=EndpointProfile(ev=many_values), name="a") as a,
        Endpoint([PortConfig(plane=k + 1) for k in range(16)], name="b") as b,
    ):
        to_b, _ = connect(a, b)
        stats = to_b.stats(with_paths=True)
        assert len(stats.planes) == 16
        assert len(stats.paths) == 1024


def test_a_thousand_peers_fit_where_a_thousand_connections_do():
    profile = EndpointProfile(
        max_connections=1100,
        mpr=1,
        send_queue=2,
        immediate_queue=2,
        ev=EvProfile(active_per_plane=1, backup_per_plane=0),
    )
    with Endpoint(["127.0.0.1"], profile=profile) as a, Endpoint(["127.0.0.1"]) as b:
        descriptor = json.loads(b.create_connection().descriptor)
        for peer_id in range(1100):
            descriptor["peer_id"] = peer_id
            a.create_connection().connect(json.dumps(descriptor).encode())


def test_an_address_with_a_scope_is_no_address_of_a_peer():
    with Endpoint(["[::1]:0"]) as a, Endpoint(["[::1]:0"]) as b:
        descriptor = json.loads(b.create_connection().descriptor)
        descriptor["ports"][0]["host"] = "fe80::1%lo"
        with pytest.raises(EngineError, match="no IP address"):
            a.create_connection().connect(json.dumps(descriptor).encode())


def test_a_connection_that_can_use_no_port_fails_instead_of_waiting():
    with Endpoint(["127.0.0.1"]) as a, Endpoint(["127.0.0.1"]) as b:
        a.set_port_up(0, is_up=False)
        to_b, _ = connect(a, b)
        with pytest.raises(ConnectionFailed, match="no port is left"):
            to_b.wait_immediate(WAIT_S)


@pytest.mark.parametrize("raised", [SystemExit(1), asyncio.CancelledError(), ValueError("by intent")])
def test_a_callback_that_raises_does_not_end_the_others(raised):
    with engine_pair(["127.0.0.1"]) as pair:
        _, _, region, landing = pair.buffers(32 << 20)

        def bad(_):
            raise raised

        first = pair.to_b.write(region, 0, region.length_bytes, landing.remote, 0)
        first.add_done_callback(bad)
        first.wait(WAIT_S)
        for _ in range(2):
            write = pair.to_b.write(region, 0, region.length_bytes, landing.remote, 0)
            write.future().result(WAIT_S)


@pytest.mark.parametrize("ports", ["127.0.0.1", ["fe80::1%lo"], ["[fe80::1%lo]:0"], ["..."]])
def test_an_address_that_cannot_be_bound_is_named(ports):
    with pytest.raises(InvalidFieldError, match="valid is"):
        Endpoint(ports)


def test_a_key_that_no_region_can_have_is_named():
    with engine_pair(["127.0.0.1"]) as pair:
        _, _, region, _ = pair.buffers(8)
        with pytest.raises(InvalidFieldError, match="rkey"):
            pair.to_b.write(region, 0, 8, RemoteRegion(1 << 64, 8), 0)
