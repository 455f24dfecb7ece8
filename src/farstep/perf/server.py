"""The end that waits for others to ask for measurements."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from farstep.perf.client import ANSWER_S, GREETING, VERSION
from farstep.perf.control import ControlChannel, open_channel
from farstep.perf.errors import PerfError
from farstep.perf.figures import PerfResult
from farstep.perf.plan import PerfPlan
from farstep.perf.session import End, EndSetup

__all__ = ["PerfServer", "ServedTest"]

GREETING_S = 10.0
"""A client has so long to say what it wants."""
ENDING_S = 2.0
"""The measurement before may take so long to be cleared away."""
LOOK_S = 0.1
OVERTIME_S = 120.0
"""Beyond its time a measurement may take so long to end."""


@dataclass(frozen=True, slots=True)
class ServedTest:
    """One measurement, as a server tells of it. `error` is why it did not come to a result."""

    client: str
    plan: PerfPlan | None
    result: PerfResult | None
    error: str = ""


class PerfServer:
    """Serves one measurement at a time; others that come meanwhile are told so.

    Args:
        host: address of the control channel; empty: all.
        port: of it; 0 takes a free one.
        setup: how this end takes part.

    Raises:
        PerfError: the port cannot be opened.
    """

    def __init__(self, host: str = "", port: int = 0, *, setup: EndSetup | None = None) -> None:
        self.setup = setup or EndSetup()
        try:
            self._listener = _listen(host, port)
        except OSError as error:
            shown = f"{host or '*'}:{port}"
            raise PerfError(f"cannot listen at {shown} ({error.strerror or error})") from None
        self._listener.settimeout(LOOK_S)
        self._busy_with = ""
        self._turn = threading.Lock()
        self._closed = threading.Event()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def serve(
        self,
        *,
        is_one_off: bool = False,
        on_start: Callable[[str, PerfPlan], None] = lambda _, __: None,
        on_end: Callable[[ServedTest], None] = lambda _: None,
    ) -> None:
        """Serves until it is closed, or one measurement is over.

        Args:
            is_one_off: whether to return after one.
            on_start: is told the client and its plan.
            on_end: is told each measurement that is over; both are called in other threads.
        """
        threads: list[threading.Thread] = []
        served = threading.Event()
        while not self._closed.is_set() and not (is_one_off and served.is_set()):
            try:
                stream, address = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if not self._closed.is_set():
                    raise
                break
            client = str(address[0]).removeprefix("::ffff:")
            thread = threading.Thread(
                target=self._answer, args=(stream, client, on_start, on_end, served), daemon=True
            )
            thread.start()
            threads = [each for each in threads if each.is_alive()] + [thread]
        for thread in threads:
            thread.join(ANSWER_S)

    def close(self) -> None:
        """Ends it, and the measurement under way."""
        self._closed.set()
        self._listener.close()

    def _answer(
        self,
        stream: socket.socket,
        client: str,
        on_start: Callable[[str, PerfPlan], None],
        on_end: Callable[[ServedTest], None],
        served: threading.Event,
    ) -> None:
        try:
            opened = open_channel(
                stream, f"the client {client}", self.setup.security.identity, is_caller=False
            )
        except PerfError:
            return  # who has no certificate of ours learns that by its own handshake
        with opened as channel:
            if not self._turn.acquire(timeout=ENDING_S):
                with contextlib.suppress(PerfError):
                    channel.send(
                        error=f"it is busy with a measurement for {self._busy_with}; try again later"
                    )
                return
            self._busy_with = client
            plan: PerfPlan | None = None
            try:
                plan = self._greeted(channel)
                on_start(client, plan)
                result = self._measured(channel, plan)
                on_end(ServedTest(client, plan, result, result.cause))
            except PerfError as error:
                with contextlib.suppress(PerfError):
                    channel.send(error=str(error))
                on_end(ServedTest(client, plan, None, str(error)))
            finally:
                self._turn.release()
                served.set()

    def _greeted(self, channel: ControlChannel) -> PerfPlan:
        greeting = channel.receive(GREETING_S)
        if greeting.get("protocol") != GREETING:
            raise PerfError(f"{channel.peer} says what is no part of a measurement; is it farstep perf?")
        if greeting.get("version") != VERSION:
            raise PerfError(f"{channel.peer} speaks version {greeting.get('version')!r}, we speak {VERSION}")
        return PerfPlan.from_table(greeting.get("plan"))

    def _measured(self, channel: ControlChannel, plan: PerfPlan) -> PerfResult:
        end = End(plan, self.setup, local_host=channel.local_host, sends=plan.server_sends, peer="the client")
        with end:
            channel.send(**end.offer())
            end.join(channel.receive(ANSWER_S))
            first, processor_ns = end.samples(), end.processor_ns()
            channel.send(ready=True)
            channel.receive(ANSWER_S)
            began_s = time.monotonic()
            end.start()
            self._watch(channel, plan, end, began_s)
            over_s = end.stop()
            if not end.cause:
                channel.receive(ANSWER_S)
            if plan.client_sends:
                over_s = time.monotonic()
            result = end.result(first, end.samples(), over_s - began_s, end.processor_ns() - processor_ns)
            with contextlib.suppress(PerfError):
                channel.send(result=result.table())
            return result

    def _watch(self, channel: ControlChannel, plan: PerfPlan, end: End, began_s: float) -> None:
        """Returns when the client says that it is over, has gone, or takes too long."""
        latest_s = None if plan.time_s is None else began_s + plan.omit_s + plan.time_s + OVERTIME_S
        while not self._closed.is_set():
            try:
                message = channel.poll(LOOK_S)
            except PerfError as error:
                end.cause = end.cause or str(error)
                end.endpoint.abort(str(error))
                return
            if message is not None and message.get("stop"):
                return
            if latest_s is not None and time.monotonic() > latest_s:
                end.cause = "the client does not end the measurement"
                end.endpoint.abort(end.cause)
                return
        end.cause = "the server was stopped"
        end.endpoint.abort(end.cause)


def _listen(host: str, port: int) -> socket.socket:
    if host:
        bare = host.removeprefix("[").removesuffix("]")
        family = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((bare, port), family=family, reuse_port=False)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
