"""Talking to a running emulator from any process that knows its control address."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from farstep.fabric import ConfigError, Fault, FaultScript

DEFAULT_TIMEOUT_S = 10.0
"""Longest wait for an answer; the emulator answers between two bursts, so only a stopped one takes longer."""

Address = tuple[str, int]


class EmulatorError(RuntimeError):
    """The emulator is gone, does not answer, or could not be started."""


class EmulatorClient:
    """A control connection; may be used by several threads.

    Args:
        control: control address, as `Emulator.control` gives it.
        timeout_s: longest wait for each answer.

    Raises:
        EmulatorError: nobody answers there.
    """

    def __init__(self, control: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.control = control
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._next_id = 0
        self._connection = _Lines(control, timeout_s)
        self._subscription: _Lines | None = None
        self._last_event = 0

    # -- operations ---------------------------------------------------------------------------------------

    def expose(
        self,
        site: str,
        plane: int,
        address: Address,
        *,
        listen: Mapping[str, Address] | None = None,
        can_answer: bool = False,
    ) -> dict[str, Address]:
        """Makes an endpoint's port reachable from other sites over the emulated paths.

        Args:
            site: site the port is at.
            plane: plane it belongs to.
            address: (host, port) it is bound to.
            listen: address to listen at per site, where a fixed one is wanted.
            can_answer: also carry answers back to the source address of what arrived.

        Returns:
            Address per site at which peers there reach the port; in the form
            `Endpoint.set_public_addresses` takes.

        Raises:
            ConfigError: unknown site or plane, or an address that cannot be used.
            EmulatorError: the emulator is gone.
        """
        result = self.request(
            "expose",
            site=site,
            plane=plane,
            address=list(address),
            listen={name: list(value) for name, value in (listen or {}).items()},
            can_answer=can_answer,
        )
        return {name: (host, port) for name, (host, port) in result.items()}

    def withdraw(self, site: str, plane: int, address: Address) -> bool:
        """Closes what `expose` opened; returns False if the port was not exposed."""
        return bool(self.request("withdraw", site=site, plane=plane, address=list(address)))

    def load(self, script: FaultScript | Iterable[Fault], *, source: str = "fault script") -> None:
        """Gives the emulator a fault script, whose clock starts now; replaces an earlier one.

        Raises:
            ConfigError: the script does not fit the network.
        """
        faults = script.faults if isinstance(script, FaultScript) else tuple(script)
        dumped = [fault.model_dump(mode="json", exclude_none=True) for fault in faults]
        self.request("load", faults=dumped, source=source)

    def apply(self, fault: Fault | Mapping[str, Any]) -> int:
        """Adds a fault to those of the script; without `at_s` and `at_step` it begins at once.

        Returns:
            Number of actions carried out at once.

        Raises:
            ConfigError: the fault does not fit the network.
        """
        table = (
            dict(fault) if isinstance(fault, Mapping) else fault.model_dump(mode="json", exclude_none=True)
        )
        return int(self.request("apply", fault=table))

    def restore(self, fault: str) -> int:
        """Ends a fault by its name; returns the number of actions that took."""
        return self.apply({"kind": "restore", "fault": fault})

    def notify_step(self, step: int) -> int:
        """Says that a training step begins; returns the number of fault actions carried out for it.

        One process of a run is enough to call this; repeated and lower numbers change nothing.
        """
        return int(self.request("notify_step", step=step))

    def stats(self) -> dict[str, Any]:
        """Returns counters of the process and of each channel; keys as in the reference of the emulator."""
        result: dict[str, Any] = self.request("stats")
        return result

    def events(self, *, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Returns the events since the last call (at first: all), waiting at most `timeout_s` for one.

        What a request brought about is included once the request has been answered.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            events: list[dict[str, Any]] = self.request("events", since=self._last_event)
            left_s = deadline - time.monotonic()
            if events:
                self._last_event = events[-1]["number"]
            if events or left_s <= 0:
                return events
            if self._subscription is None:
                self._subscription = _Lines(self.control, self._timeout_s)
                self._subscription.send({"op": "subscribe", "since": self._last_event})
            self._subscription.receive(left_s)  # only tells that it is worth asking again

    def follow(self) -> Iterator[dict[str, Any]]:
        """Yields events as they happen, until the emulator ends."""
        while True:
            try:
                yield from self.events(timeout_s=3600.0)
            except EmulatorError:
                return

    def request(self, op: str, **arguments: Any) -> Any:
        """Sends any request and returns its result.

        Raises:
            ConfigError: the emulator refused it, with its reason.
            EmulatorError: the emulator is gone or does not answer in time.
        """
        with self._lock:
            self._next_id += 1
            request_id = self._next_id
            self._connection.send({"id": request_id, "op": op, **arguments})
            deadline = time.monotonic() + self._timeout_s
            while time.monotonic() < deadline:
                for answer in self._connection.receive(max(0.0, deadline - time.monotonic())):
                    if answer.get("id") != request_id:
                        continue  # an answer that came after its request had timed out
                    if answer["ok"]:
                        return answer["result"]
                    raise ConfigError(answer["error"])
        raise EmulatorError(
            f"the emulator at {self.control} did not answer {op!r} within {self._timeout_s} s"
        )

    def close(self) -> None:
        """Closes the connection; the emulator goes on."""
        self._connection.close()
        if self._subscription is not None:
            self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Lines:
    """JSON lines over a Unix socket."""

    def __init__(self, control: str, timeout_s: float) -> None:
        self._control = control
        self._inbox = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(control)
        except OSError as error:
            self._socket.close()
            raise EmulatorError(f"no emulator answers at {control}: {error.strerror or error}") from error

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._gone() from error

    def receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """Returns the complete lines there are, waiting at most `timeout_s` for the first bytes."""
        try:
            readable, _, _ = select.select([self._socket], [], [], timeout_s)
            if not readable:
                return []
            received = self._socket.recv(1 << 20)
        except (OSError, ValueError) as error:  # ValueError: closed by another thread
            raise self._gone() from error
        if not received:
            raise self._gone()
        self._inbox += received
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = bytearray(rest)
        return [json.loads(line) for line in lines if line]

    def close(self) -> None:
        self._socket.close()

    def _gone(self) -> EmulatorError:
        return EmulatorError(f"the emulator at {self._control} has ended")
