"""The channel over which the two ends of a measurement agree: lines of JSON over TCP, in TLS with certificates."""

from __future__ import annotations

import json
import select
import socket
import ssl
import time
from typing import Any

from farstep.engine import Identity, SecurityError
from farstep.engine.control_channel import secure_stream
from farstep.perf.errors import PerfError

__all__ = ["ControlChannel", "open_channel"]

LINE_MAX_BYTES = 8 << 20
"""256 descriptors with certificates fit several times over."""
_CHUNK_BYTES = 1 << 16
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 5))  # 15 s


def open_channel(
    stream: socket.socket, peer: str, identity: Identity | None, *, is_caller: bool
) -> ControlChannel:
    """Returns the channel over a stream: with an identity in TLS 1.3, in which both ends show certificates.

    Raises:
        PerfError: the certificates do not fit, or the other end does without.
    """
    if identity is None:
        return ControlChannel(stream, peer)
    try:
        secured, _ = secure_stream(stream, identity, is_caller=is_caller)
    except SecurityError as error:
        raise PerfError(f"{peer}: {error.cause}; --certs has to be given at both ends") from None
    return ControlChannel(secured, peer)


class ControlChannel:
    """One end of the channel. Descriptors that need proof carry their own.

    Args:
        stream: connected socket, which it takes over.
        peer: who is at the other end, for errors.
    """

    def __init__(self, stream: socket.socket, peer: str) -> None:
        self.peer = peer
        self._stream = stream
        self._received = bytearray()
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            stream.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def local_host(self) -> str:
        """The address of this end; IPv4 within IPv6 as IPv4."""
        return str(self._stream.getsockname()[0]).removeprefix("::ffff:")

    def send(self, **message: Any) -> None:
        """Sends a message.

        Raises:
            PerfError: the peer is gone.
        """
        try:
            self._stream.settimeout(None)
            self._stream.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PerfError(f"{self.peer} has gone ({error.strerror})") from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            PerfError: none comes, the peer is gone, or it says why it will not go on.
        """
        deadline_s = time.monotonic() + timeout_s
        message = self.poll(timeout_s)
        while message is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise PerfError(f"{self.peer} does not answer")
            message = self.poll(left_s)
        return message

    def poll(self, timeout_s: float = 0.0) -> dict[str, Any] | None:
        """Returns the next message if it is there within that time.

        Raises:
            PerfError: the peer is gone, or says why it will not go on.
        """
        if b"\n" not in self._received and self._has_news(timeout_s):
            self._read()
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            return None
        self._received = bytearray(rest)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise PerfError(f"{self.peer} says what is no part of a measurement; is it farstep perf?")
        if "error" in message:
            raise PerfError(f"{self.peer} says: {message['error']}")
        return message

    def _has_news(self, timeout_s: float) -> bool:
        if isinstance(self._stream, ssl.SSLSocket) and self._stream.pending():
            return True  # of a record that has been read already
        return bool(select.select([self._stream], [], [], max(0.0, timeout_s))[0])

    def _read(self) -> None:
        try:
            self._stream.settimeout(None)
            chunk = self._stream.recv(_CHUNK_BYTES)
        except OSError as error:
            raise PerfError(f"{self.peer} has gone ({error.strerror})") from None
        if not chunk:
            raise PerfError(f"{self.peer} has ended the measurement")
        self._received += chunk
        if len(self._received) > LINE_MAX_BYTES:
            raise PerfError(f"{self.peer} says what is no part of a measurement; is it farstep perf?")

    def close(self) -> None:
        """Ends the channel."""
        self._stream.close()

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
