"""The line between the supervisor of a run and its ranks: JSON objects, one per line, over TCP.

A rank reports what it does; the supervisor answers with addresses and may tell all to stop or to
give up. No message is on the path of a healthy step. The line is also how each side learns that the
other is gone: a connection that ends without a farewell means a dead process, within milliseconds.
"""

import contextlib
import json
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farstep.train.errors import RunFailed

__all__ = ["ControlClient", "ControlServer", "Message"]

LINE_BYTES_MAX = 1 << 20
"""Longest line accepted; the longest one sent, a `hello`, stays below a few kilobytes."""

SUPERVISOR_GONE = "the supervisor of the run is gone"
"""What a rank gives up for when its line ends unasked."""

CLOSE_TIMEOUT_S = 2.0
"""Closing waits so long for the other side to close too, so that what was sent last has been read."""

HELLO_TIMEOUT_S = 30.0
"""A connection that has not said who it is after this long is closed."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as the supervisor sees it.

    `kind` is what the rank said (`hello`, `ports`, `step`, `done`, `failed`, ...), or `lost` if its
    connection ended, or something the supervisor itself put in the queue.
    """

    kind: str
    rank: int | None
    fields: dict[str, Any]


class ControlServer:
    """Accepts one connection per rank and queues what they say.

    Args:
        inbox: receives every message; may be shared with other sources.
        host: address to listen on; the port is chosen by the kernel.
    """

    def __init__(self, inbox: "queue.SimpleQueue[Message]", *, host: str = "127.0.0.1") -> None:
        self._inbox = inbox
        self._listener = socket.create_server((host, 0))
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.token = secrets.token_hex(16)
        """Must be presented by every rank, so that a stray process cannot join the run."""
        self._lock = threading.Lock()
        self._lines: dict[int, socket.socket] = {}
        self._for_latecomers = b""
        threading.Thread(target=self._accept, name="farstep-control", daemon=True).start()

    @property
    def num_connected(self) -> int:
        """Ranks whose connection is open."""
        with self._lock:
            return len(self._lines)

    def send(self, rank: int, kind: str, **fields: Any) -> None:
        """Sends to one rank; a rank that is gone is reported by a `lost` message, not by an error."""
        with self._lock:
            line = self._lines.get(rank)
        if line is not None:
            with contextlib.suppress(OSError):
                line.sendall(_encode(kind, fields))

    def broadcast(self, kind: str, *, also_later: bool = False, **fields: Any) -> None:
        """Sends to every rank that is connected, and if `also_later` to those that come after it."""
        with self._lock:
            ranks = list(self._lines)
            if also_later:
                self._for_latecomers += _encode(kind, fields)
        for rank in ranks:
            self.send(rank, kind, **fields)

    def close(self) -> None:
        """Ends all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            lines = list(self._lines.values())
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(line,), name="farstep-control-rank", daemon=True
            ).start()

    def _serve(self, line: socket.socket) -> None:
        with line, line.makefile("rb") as reader:
            line.settimeout(HELLO_TIMEOUT_S)
            try:
                hello = json.loads(reader.readline(LINE_BYTES_MAX))
                rank = int(hello["rank"])
                if not secrets.compare_digest(str(hello.pop("token")), self.token):
                    return
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return
            with self._lock:
                if rank in self._lines:
                    return
                self._lines[rank] = line
                greeting = self._for_latecomers
            line.settimeout(None)
            with contextlib.suppress(OSError):
                line.sendall(greeting)
            self._inbox.put(Message("hello", rank, hello))
            with contextlib.suppress(OSError, ValueError):
                while text := reader.readline(LINE_BYTES_MAX):
                    fields = json.loads(text)
                    self._inbox.put(Message(fields.pop("kind"), rank, fields))
            with self._lock:
                del self._lines[rank]
            self._inbox.put(Message("lost", rank, {}))


class ControlClient:
    """A rank's end of the line.

    Args:
        address: where the supervisor listens.
        token: proves that this rank belongs to the run.
        rank: whose line this is.
        on_stop: called when the run shall end after the current step.
        on_abort: called with a reason when the run is over at once, also when the supervisor is gone.
        hello: further fields of the first message.

    Raises:
        RunFailed: the supervisor cannot be reached.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        rank: int,
        *,
        on_stop: Callable[[], None],
        on_abort: Callable[[str], None],
        **hello: Any,
    ) -> None:
        self._on_stop = on_stop
        self._on_abort = on_abort
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closing = False
        try:
            self._line = socket.create_connection(address, timeout=HELLO_TIMEOUT_S)
        except OSError as error:
            raise RunFailed(
                f"rank {rank} cannot reach the supervisor at {address[0]}:{address[1]}: {error}"
            ) from error
        self._line.settimeout(None)
        self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send("hello", rank=rank, token=token, **hello)
        self._thread = threading.Thread(target=self._listen, name="farstep-control", daemon=True)
        self._thread.start()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message; if the supervisor is gone, `on_abort` tells, not an error here."""
        with self._lock, contextlib.suppress(OSError):
            self._line.sendall(_encode(kind, fields))

    def wait_answer(self, timeout_s: float) -> dict[str, Any]:
        """Returns the next message that is neither `stop` nor `abort`.

        Raises:
            RunFailed: none came in time.
        """
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise RunFailed(f"the supervisor did not answer within {timeout_s:g} s") from None

    def close(self) -> None:
        """Ends the line; what was sent before still arrives."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=CLOSE_TIMEOUT_S)
        self._line.close()

    def _listen(self) -> None:
        with self._line.makefile("rb") as reader, contextlib.suppress(OSError, ValueError):
            while text := reader.readline(LINE_BYTES_MAX):
                fields = json.loads(text)
                match fields["kind"]:
                    case "stop":
                        self._on_stop()
                    case "abort":
                        self._on_abort(fields["reason"])
                    case _:
                        self._answers.put(fields)
        if not self._is_closing:
            self._on_abort(SUPERVISOR_GONE)


def _encode(kind: str, fields: dict[str, Any]) -> bytes:
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
