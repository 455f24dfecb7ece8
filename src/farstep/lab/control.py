"""The control socket: requests and answers as JSON lines over a Unix socket.

A request is `{"id": 1, "op": "expose", ...}`; its answer `{"id": 1, "ok": true, "result": ...}` or
`{"id": 1, "ok": false, "error": "..."}`. A client that sent `{"op": "subscribe"}` further gets every event as
`{"event": {...}}`. Whatever a client sends, the answer is a line and the emulator goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from farstep.lab.poller import Poller

LINE_BYTES_MAX = 4 * 1024 * 1024
"""Longest request: a fault script of the largest size is below 3 MB."""

BACKLOG_BYTES_MAX = 16 * 1024 * 1024
"""Unread answers and events of one client, beyond which it is disconnected."""

CLIENTS_MAX = 1024
"""Control connections at once; a rank needs one or two."""

EVENTS_MAX = 10_000
"""Events kept for clients that subscribe late."""

Result = Mapping[str, Any] | list[Any] | int | float | str | bool | None
Handler = Callable[[Mapping[str, Any]], Result]


class RequestError(ValueError):
    """A request that cannot be carried out; the message goes to the client."""


class ControlServer:
    """Answers control requests.

    Args:
        path: where to create the socket; only this user may connect.
        poller: tells when sockets are readable.
        handlers: function per operation; raises `RequestError` (or another ValueError) for bad requests.

    Raises:
        OSError: the socket cannot be created.
    """

    def __init__(self, path: str, poller: Poller, handlers: Mapping[str, Handler]) -> None:
        self.path = path
        self._poller = poller
        self._handlers = {**handlers, "events": self._since}
        self._clients: dict[int, _Client] = {}
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        self._num_events = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(64)
        poller.add(self._listener.fileno(), self._accept)

    def publish(self, event: dict[str, Any]) -> None:
        """Numbers an event, keeps it and sends it to all subscribers."""
        self._num_events += 1
        event = {"number": self._num_events, **event}
        self._events.append(event)
        for client in tuple(self._clients.values()):
            if client.is_subscribed:
                self._send(client, {"event": event})

    def close(self) -> None:
        """Closes all connections and removes the socket."""
        for client in tuple(self._clients.values()):
            self._drop(client)
        self._poller.remove(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):  # the owner may have removed the whole directory
            os.unlink(self.path)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone before it was accepted, or no descriptor left: the client sees its connection end
        if len(self._clients) >= CLIENTS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(connection)
        self._clients[connection.fileno()] = client
        self._poller.add(connection.fileno(), lambda: self._serve(client))

    def _serve(self, client: _Client) -> None:
        self._flush(client)
        if client.is_closed:
            return
        try:
            received = client.connection.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._drop(client)
            return
        client.inbox += received
        while not client.is_closed and (end := client.inbox.find(b"\n")) >= 0:
            line = bytes(client.inbox[:end])
            del client.inbox[: end + 1]
            if line.strip():
                self._send(client, self._answer(client, line))
        if len(client.inbox) > LINE_BYTES_MAX:
            self._send(client, _failure(None, f"a request is at most {LINE_BYTES_MAX} bytes long"))
            self._drop(client)

    def _answer(self, client: _Client, line: bytes) -> dict[str, Any]:
        request_id: Any = None
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise RequestError('a request is an object such as {"id": 1, "op": "stats"}')
            request_id = request.get("id")
            operation = request.get("op")
            if operation == "subscribe":
                return {"id": request_id, "ok": True, "result": self._subscribe(client, request)}
            handler = self._handlers.get(operation) if isinstance(operation, str) else None
            if handler is None:
                valid = ", ".join(sorted([*self._handlers, "subscribe"]))
                raise RequestError(f"op = {operation!r}: no such operation; valid: {valid}")
            return {"id": request_id, "ok": True, "result": handler(request)}
        except RecursionError:
            return _failure(request_id, "the request is nested too deeply")
        except ValueError as error:  # RequestError, ConfigError, JSON and UTF-8 errors alike
            return _failure(request_id, str(error))

    def _subscribe(self, client: _Client, request: Mapping[str, Any]) -> int:
        """Sends the events after number `since` (0: all that are kept), then new ones as they happen."""
        for event in self._since(request):
            self._send(client, {"event": event})
        client.is_subscribed = True
        return self._num_events

    def _since(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        since = request.get("since", 0)
        if not isinstance(since, int):
            raise RequestError(f"since = {since!r}: must be the number of an event")
        return [event for event in self._events if event["number"] > since]

    def _send(self, client: _Client, message: dict[str, Any]) -> None:
        client.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        try:
            while client.outbox:
                sent = client.connection.send(client.outbox)
                del client.outbox[:sent]
        except BlockingIOError:
            if len(client.outbox) > BACKLOG_BYTES_MAX:
                self._drop(client)
                return
        except OSError:
            self._drop(client)
            return
        if bool(client.outbox) != client.waits_to_write:
            client.waits_to_write = bool(client.outbox)
            self._poller.watch_writable(client.connection.fileno(), client.waits_to_write)

    def _drop(self, client: _Client) -> None:
        if client.is_closed:
            return
        client.is_closed = True
        fd = client.connection.fileno()
        self._clients.pop(fd, None)
        self._poller.remove(fd)
        client.connection.close()


class _Client:
    """One control connection."""

    __slots__ = ("connection", "inbox", "is_closed", "is_subscribed", "outbox", "waits_to_write")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.is_closed = False
        self.is_subscribed = False
        self.waits_to_write = False


def _failure(request_id: Any, message: str) -> dict[str, Any]:
    return {"id": request_id, "ok": False, "error": message}
