"""The control channel of two endpoints: who gets in, what a flood of callers costs, and the keys that come of it."""

import contextlib
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from farstep.engine import (
    Endpoint,
    EndpointProfile,
    EngineError,
    Identity,
    Protection,
    SecurityError,
    WaitTimeout,
)
from farstep.engine.control_channel import PENDING_MAX, ControlListener, connect_control, secure_stream
from tests.integration.engine_pair import WAIT_S
from tests.integration.wiretap import SMALL, identities, secured


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("certificates"), "alice", "bob")


def where(listener):
    return "{}:{}".format(*listener.address)


@contextlib.contextmanager
def channels(own, peer):
    with (
        ControlListener("127.0.0.1:0", own) as listener,
        connect_control(where(listener), peer) as calling,
        listener.accept(WAIT_S) as accepted,
    ):
        yield accepted, calling


def test_both_ends_learn_who_the_other_is(people):
    with channels(people["alice"], people["bob"]) as (accepted, calling):
        assert accepted.peer_identity == "bob"
        assert calling.peer_identity == "alice"
        assert accepted._stream.version() == calling._stream.version() == "TLSv1.3"
        for sender, receiver in ((accepted, calling), (calling, accepted)):
            for message in (b"", b"hello", bytes(200_000)):
                sender.send(message)
                assert receiver.receive(WAIT_S) == message
        with pytest.raises(WaitTimeout):
            calling.receive(0.01)


def joined(accepted, calling, profile_a, profile_b):
    stack = contextlib.ExitStack()
    a = stack.enter_context(Endpoint(["127.0.0.1"], profile=profile_a, site="x"))
    b = stack.enter_context(Endpoint(["127.0.0.1"], profile=profile_b, site="y"))
    to_b, to_a = a.create_connection(), b.create_connection()
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(accepted.join, to_b), pool.submit(calling.join, to_a)]:
            done.result()
    return stack, a, b, to_b, to_a


def test_a_connection_gets_its_keys_from_the_channel(people):
    profiles = [secured(SMALL, people[name], "encrypt") for name in ("alice", "bob")]
    with channels(people["alice"], people["bob"]) as (accepted, calling):
        stack, a, b, to_b, to_a = joined(accepted, calling, *profiles)
        with stack:
            assert to_b.protection is to_a.protection is Protection.ENCRYPT
            memory = bytearray(3)
            landing, region = b.register(memory), a.register(b"abc")
            to_b.write(region, 0, 3, landing.remote, 0).wait(WAIT_S)
            assert memory == b"abc"


def test_a_channel_without_certificates_serves_a_trusted_network():
    with channels(None, None) as (accepted, calling):
        assert accepted.peer_identity == calling.peer_identity == ""
        stack, _, _, to_b, _ = joined(accepted, calling, EndpointProfile(), EndpointProfile())
        with stack:
            assert to_b.protection is Protection.OFF


def test_a_descriptor_must_be_of_the_holder_of_the_certificate(people):
    # Bob on the channel, Alice in the descriptor: somebody carries messages from one channel to another.
    profile = secured(SMALL, people["alice"], "encrypt")
    with (
        channels(people["alice"], people["bob"]) as (accepted, calling),
        pytest.raises(SecurityError, match="certificate of 'alice', expected was that of 'bob'"),
    ):
        joined(accepted, calling, profile, profile)


def talk(context, stream):
    with context.wrap_socket(stream, do_handshake_on_connect=False) as wrapped:
        wrapped.do_handshake()
        assert wrapped.recv(1), "it was closed"
        wrapped.recv(1)


def test_strangers_are_refused(people, tmp_path):
    stranger = identities(tmp_path, "bob")["bob"]
    with ControlListener("127.0.0.1:0", people["alice"]) as listener:
        with pytest.raises(SecurityError, match="certificate is not accepted"):
            connect_control(where(listener), stranger)
        mixed = Identity(people["bob"].authority, stranger.certificate, stranger.key)
        with pytest.raises(SecurityError, match="handshake"):
            connect_control(where(listener), mixed)
        with pytest.raises(SecurityError, match="certificate of 'alice', expected was that of 'carol'"):
            connect_control(where(listener), people["bob"], peer_identity="carol")
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(listener.address) as stream,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            talk(bare, stream)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode, old.maximum_version = (
            False,
            ssl.CERT_NONE,
            ssl.TLSVersion.TLSv1_2,
        )
        with (
            socket.create_connection(listener.address) as stream,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            talk(old, stream)
        with pytest.raises(
            WaitTimeout, match=r"no peer has come within 0\.05 s; the last caller was refused: "
        ):
            listener.accept(0.05)
        with connect_control(where(listener), people["bob"]) as calling, listener.accept(WAIT_S) as accepted:
            calling.send(b"still there")
            assert accepted.receive(WAIT_S) == b"still there"
    with pytest.raises(EngineError, match="cannot connect to"):
        connect_control(where(listener), people["bob"])


def test_a_flood_of_callers_costs_a_bounded_amount_and_ends(people):
    with ControlListener("127.0.0.1:0", people["alice"], handshake_timeout_s=0.3) as listener:
        flood = []
        for n in range(6 * PENDING_MAX):
            stream = socket.create_connection(listener.address)
            if n % 3:
                stream.sendall(bytes(500))
            flood.append(stream)
            greeting = [t for t in threading.enumerate() if t.name == "farstep-greet"]
            assert len(greeting) <= PENDING_MAX
        end_s = time.monotonic() + WAIT_S
        while True:
            try:
                calling = connect_control(where(listener), people["bob"])
                break
            except SecurityError:
                assert time.monotonic() < end_s, "nobody gets through any more"
                time.sleep(0.05)
        with calling, listener.accept(WAIT_S) as accepted:
            assert accepted.peer_identity == "bob"
        for stream in flood:
            stream.close()


def test_messages_that_are_too_long_are_not_read(people):
    with channels(people["alice"], people["bob"]) as (accepted, calling):
        calling._stream.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(EngineError, match="announces a message of 4294967295 bytes"):
            accepted.receive(WAIT_S)
        with pytest.raises(EngineError, match="is longer than"):
            calling.send(bytes((1 << 20) + 1))
        accepted.close()
        with pytest.raises(EngineError, match="control channel"):
            calling.receive(WAIT_S)


def test_a_connection_of_ones_own_can_be_secured(people):
    here, there = socket.socketpair()
    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(secure_stream, here, people["alice"], is_caller=True, peer_identity="bob")
        answering = pool.submit(secure_stream, there, people["bob"], is_caller=False)
        (stream, name), (other, other_name) = calling.result(), answering.result()
    with stream, other:
        assert (name, other_name) == ("bob", "alice")
        stream.sendall(b"x")
        assert other.recv(1) == b"x"
