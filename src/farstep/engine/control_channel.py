"""A control channel between two endpoints: TLS 1.3 in which both show certificates, over one TCP connection.

For tools whose ends talk to each other directly. Both ends send their descriptor and 32 random bytes; the keys of the
connection follow from the exchange that the descriptors carry and from those bytes, so from the TLS handshake too.
(Python's ssl module exports no keying material; bytes sent inside serve as well.)

    with ControlListener("0.0.0.0:7078", identity) as listener:
        channel = listener.accept(timeout_s=60)
        connection = endpoint.create_connection(peer_name=channel.peer_identity)
        channel.join(connection)
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import ssl
import struct
import threading
import time
from typing import Any

from farstep.engine.connection import Connection
from farstep.engine.errors import EngineError, SecurityError, WaitTimeout
from farstep.engine.key_agreement import name_of_peer
from farstep.engine.profile import split_address
from farstep.engine.security import Identity

__all__ = ["ControlChannel", "ControlListener", "connect_control", "secure_stream"]

MESSAGE_BYTES_MAX = 1 << 20
HANDSHAKE_TIMEOUT_S = 5.0
PENDING_MAX = 16
"""Handshakes at a time. Further callers are turned away, so that a flood of them costs a bounded amount of memory."""
_BACKLOG = 128
_LENGTH = struct.Struct(">I")
_SECRET_BYTES = 32
_CONTENT = b"+"


class ControlChannel:
    """One connection to a peer whose certificate has been checked.

    Attributes:
        peer_identity: name in the peer's certificate; empty without certificates.
    """

    def __init__(self, stream: socket.socket, peer_identity: str, *, is_caller: bool) -> None:
        self._stream = stream
        self.peer_identity = peer_identity
        self._is_caller = is_caller

    def send(self, message: bytes, timeout_s: float | None = None) -> None:
        """Sends a message.

        Raises:
            EngineError: the channel is broken.
        """
        if len(message) > MESSAGE_BYTES_MAX:
            raise EngineError(f"a message of {len(message)} bytes is longer than {MESSAGE_BYTES_MAX}")
        try:
            self._stream.settimeout(timeout_s)
            self._stream.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise EngineError(f"the control channel is broken: {error}", peer=self.peer_identity) from error

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Returns the next message.

        Raises:
            WaitTimeout: none came in time.
            EngineError: the channel is broken, or the peer has closed it.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline_s))
        if length > MESSAGE_BYTES_MAX:
            raise EngineError(
                f"the peer announces a message of {length} bytes; {MESSAGE_BYTES_MAX} is the most"
            )
        return self._exactly(length, deadline_s)

    def _exactly(self, length: int, deadline_s: float | None) -> bytes:
        found = bytearray()
        while len(found) < length:
            try:
                self._stream.settimeout(
                    None if deadline_s is None else max(deadline_s - time.monotonic(), 0.001)
                )
                part = self._stream.recv(min(length - len(found), 65_536))
            except TimeoutError:
                raise WaitTimeout("nothing came over the control channel", peer=self.peer_identity) from None
            except OSError as error:
                raise EngineError(
                    f"the control channel is broken: {error}", peer=self.peer_identity
                ) from error
            if not part:
                raise EngineError("the peer has closed the control channel", peer=self.peer_identity)
            found += part
        return bytes(found)

    def join(self, connection: Connection, timeout_s: float | None = 30.0) -> None:
        """Connects a connection of this endpoint to one the peer joins at the same time.

        Raises:
            SecurityError: the descriptor is not that of the holder of the certificate, or the ends cannot agree.
            EngineError: the channel or the descriptor is of no use.
        """
        own = secrets.token_bytes(_SECRET_BYTES)
        self.send(own + connection.descriptor, timeout_s)
        message = self.receive(timeout_s)
        if len(message) <= _SECRET_BYTES:
            raise EngineError("the peer has sent no descriptor", peer=self.peer_identity)
        other = message[:_SECRET_BYTES]
        both = own + other if self._is_caller else other + own
        if self.peer_identity:
            connection.expect_certificate(self.peer_identity)
        connection.connect(message[_SECRET_BYTES:], channel_secret=both)

    def close(self) -> None:
        """Ends the channel. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._stream.close()

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ControlListener:
    """Waits for peers at a TCP address.

    Args:
        address: "host:port"; port 0 takes a free one.
        identity: who this end is; None for no TLS at all, on a network you trust.
        handshake_timeout_s: how long a caller may take.

    Raises:
        EngineError: the address cannot be taken.
        SecurityError: the identity cannot be used.
    """

    def __init__(
        self, address: str, identity: Identity | None, *, handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    ) -> None:
        self._identity = identity
        self._handshake_timeout_s = handshake_timeout_s
        self._context = None if identity is None else _context(identity, is_caller=False)
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise EngineError(f"cannot listen at {address}: {error.strerror or error}") from None
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._ready: queue.Queue[ControlChannel] = queue.Queue(PENDING_MAX)
        self._room = threading.BoundedSemaphore(PENDING_MAX)
        self.last_refusal = ""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="farstep-control", daemon=True)
        self._thread.start()

    def accept(self, timeout_s: float | None = None) -> ControlChannel:
        """Returns a channel to the next peer that has shown a certificate of our authority.

        Raises:
            WaitTimeout: none came in time; the message says why the last caller was refused.
        """
        try:
            return self._ready.get(timeout=timeout_s)
        except queue.Empty:
            why = f"; the last caller was refused: {self.last_refusal}" if self.last_refusal else ""
            raise WaitTimeout(f"no peer has come within {timeout_s:g} s{why}") from None

    def _run(self) -> None:
        while not self._is_closed:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                time.sleep(0.05)  # no descriptors left: the next caller may find some; or it is closed
                continue
            if not self._room.acquire(blocking=False):
                stream.close()
                continue
            threading.Thread(target=self._greet, args=(stream,), name="farstep-greet", daemon=True).start()

    def _greet(self, stream: socket.socket) -> None:
        try:
            channel = self._channel(stream)
        except EngineError as error:
            self.last_refusal = str(error)
        else:
            try:
                self._ready.put_nowait(channel)
            except queue.Full:
                self.last_refusal = "too many are waiting"
                channel.close()
        finally:
            self._room.release()

    def _channel(self, stream: socket.socket) -> ControlChannel:
        if self._context is None or self._identity is None:
            return ControlChannel(stream, "", is_caller=False)
        secured, name = _shake_hands(
            stream, self._context, self._identity, False, self._handshake_timeout_s, None
        )
        return ControlChannel(secured, name, is_caller=False)

    def close(self) -> None:
        """Stops listening; channels that were accepted stay open. Safe to call twice."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        while True:
            try:
                self._ready.get_nowait().close()
            except queue.Empty:
                return

    def __enter__(self) -> ControlListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_control(
    address: str, identity: Identity | None, *, peer_identity: str | None = None, timeout_s: float = 10.0
) -> ControlChannel:
    """Calls a peer that listens and returns the channel.

    Args:
        address: "host:port" of the listener.
        identity: who this end is; None for no TLS, which the listener must then do without, too.
        peer_identity: name that the listener's certificate must have; None: any of our authority.
        timeout_s: for the connection and the handshake.

    Raises:
        EngineError: nobody listens there.
        SecurityError: the certificates do not fit.
    """
    host, port = split_address(address)
    context = None if identity is None else _context(identity, is_caller=True)
    try:
        stream = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        raise EngineError(f"cannot connect to {address}: {error.strerror or error}") from None
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None or identity is None:
        return ControlChannel(stream, "", is_caller=True)
    secured, name = _shake_hands(stream, context, identity, True, timeout_s, peer_identity)
    return ControlChannel(secured, name, is_caller=True)


def secure_stream(
    stream: socket.socket,
    identity: Identity,
    *,
    is_caller: bool,
    peer_identity: str | None = None,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> tuple[ssl.SSLSocket, str]:
    """Turns a TCP connection into one with TLS 1.3 in which both ends show certificates.

    Args:
        stream: the connection, which is closed where that fails.
        identity: who this end is.
        is_caller: whether this end made the connection; the other end says the opposite.
        peer_identity: name that the peer's certificate must have; None: any of our authority.
        timeout_s: for the handshake.

    Returns:
        What takes the place of the stream, and the name in the peer's certificate.

    Raises:
        SecurityError: the certificates do not fit.
    """
    return _shake_hands(
        stream, _context(identity, is_caller=is_caller), identity, is_caller, timeout_s, peer_identity
    )


def _shake_hands(
    stream: socket.socket,
    context: ssl.SSLContext,
    identity: Identity,
    is_caller: bool,
    timeout_s: float,
    expected: str | None,
) -> tuple[ssl.SSLSocket, str]:
    try:
        stream.settimeout(timeout_s)
        secured = context.wrap_socket(stream, server_side=not is_caller, do_handshake_on_connect=False)
    except BaseException:
        stream.close()
        raise
    try:
        secured.do_handshake()
        name = name_of_peer(identity, secured.getpeercert(binary_form=True) or b"", expected)
        # Each end says that it is content: in TLS 1.3 a caller has ended its handshake before the listener has even
        # looked at its certificate.
        secured.sendall(_CONTENT)
        if secured.recv(1) != _CONTENT:
            raise SecurityError("the peer has closed the control channel during the handshake")
        return secured, name
    except BaseException as error:
        secured.close()
        if isinstance(error, OSError):
            raise SecurityError(_why_not(error, timeout_s)) from None
        raise


def _why_not(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"the TLS handshake did not end within {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}"
    return f"the TLS handshake failed: {_reason(error)}"


def _reason(error: Any) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason).replace("_", " ").lower()


def _context(identity: Identity, *, is_caller: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_caller else ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # names of members are no names of hosts: name_of_peer() looks at them
    context.verify_mode = ssl.CERT_REQUIRED
    if not is_caller:
        context.num_tickets = 0  # nothing is resumed: every channel begins with both certificates
    try:
        context.load_verify_locations(identity.authority)
        context.load_cert_chain(identity.certificate, identity.key, password=lambda: b"")
    except (ssl.SSLError, OSError) as error:
        files = ", ".join(map(str, (identity.authority, identity.certificate, identity.key)))
        raise SecurityError(f"{files}: cannot be used: {_reason(error)}") from None
    return context
