"""The end that asks for a measurement."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from farstep.engine import InvalidFieldError
from farstep.engine.profile import split_address
from farstep.perf.control import ControlChannel, open_channel
from farstep.perf.errors import PerfError
from farstep.perf.figures import Interval, PerfResult, Sample
from farstep.perf.plan import PerfPlan
from farstep.perf.session import End, EndSetup

__all__ = ["GREETING", "VERSION", "PerfClient"]

GREETING = "farstep-perf"
VERSION = 1
ANSWER_S = 30.0
"""How long the server may take for each step of the agreement, registering memory included."""
LOOK_S = 0.05
"""How often a measurement looks whether it is over."""

OnInterval = Callable[[Interval], None]


class PerfClient:
    """Runs measurements against a server.

    Args:
        host: of the server.
        port: of its control channel.
        setup: how this end takes part.
        connect_timeout_s: how long to wait for the server.
    """

    def __init__(
        self, host: str, port: int, *, setup: EndSetup | None = None, connect_timeout_s: float = 10.0
    ) -> None:
        self.host = host
        self.port = port
        self.setup = setup or EndSetup()
        self.connect_timeout_s = connect_timeout_s
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Ends the measurement under way as if its time were over; safe in a signal handler."""
        self._is_interrupted = True

    @property
    def is_interrupted(self) -> bool:
        """Whether a measurement was ended early."""
        return self._is_interrupted

    def run(
        self,
        plan: PerfPlan,
        *,
        interval_s: float | None = 1.0,
        on_interval: OnInterval = lambda _: None,
        on_start: Callable[[End], None] = lambda _: None,
    ) -> PerfResult:
        """Measures.

        Args:
            plan: what.
            interval_s: length of the spans that are told while it runs; None: none.
            on_interval: is told each span.
            on_start: is told the end when it has joined.

        Returns:
            The result; if the measurement broke off, `cause` says why, and the figures are those until then.

        Raises:
            PerfError: it could not begin.
        """
        peer, identity = f"the server {self.host}:{self.port}", self.setup.security.identity
        with open_channel(self._connect(), peer, identity, is_caller=True) as channel:
            channel.send(protocol=GREETING, version=VERSION, plan=plan.table())
            offer = channel.receive(ANSWER_S)
            end = End(
                plan, self.setup, local_host=channel.local_host, sends=plan.client_sends, peer="the server"
            )
            with end:
                # A server that cannot join says why, and so does a client.
                try:
                    end.join(offer)
                except PerfError as error:
                    channel.send(error=str(error))
                    raise
                channel.send(**end.offer())
                channel.receive(ANSWER_S)
                on_start(end)
                return _Measurement(self, plan, end, channel, interval_s, on_interval).run()

    def _connect(self) -> socket.socket:
        host = self.host.removeprefix("[").removesuffix("]")
        source = self._source()
        try:
            return socket.create_connection((host, self.port), self.connect_timeout_s, source)
        except TimeoutError:
            why = f"no answer within {self.connect_timeout_s:g} s"
        except OSError as error:
            why = error.strerror or str(error)
        raise PerfError(f"cannot reach a server at {self.host}:{self.port} ({why})")

    def _source(self) -> tuple[str, int] | None:
        if not self.setup.binds:
            return None
        try:
            return split_address(self.setup.binds[0])[0], 0
        except InvalidFieldError as error:
            raise PerfError(str(error)) from None


class _Measurement:
    """One measurement from its start to its result."""

    def __init__(
        self,
        client: PerfClient,
        plan: PerfPlan,
        end: End,
        channel: ControlChannel,
        interval_s: float | None,
        on_interval: OnInterval,
    ) -> None:
        self.client, self.plan, self.end, self.channel = client, plan, end, channel
        self.interval_s, self.on_interval = interval_s, on_interval
        self.begin_s = 0.0
        self.base: list[Sample] = []
        self.base_s = 0.0
        self.base_processor_ns = 0
        self.base_pings = 0

    def run(self) -> PerfResult:
        plan, end, channel = self.plan, self.end, self.channel
        self._take_base()
        self.begin_s = self.base_s
        channel.send(start=True)
        end.start()
        self._watch()
        cause = end.cause
        # Both ends stop at once, and count what was under way until it is through.
        with contextlib.suppress(PerfError):
            channel.send(stop=True)
        over_s = end.stop()
        if plan.server_sends:
            over_s = time.monotonic()
        last = end.samples()
        with contextlib.suppress(PerfError):
            channel.send(over=True)
        processor_ns = end.processor_ns() - self.base_processor_ns
        result = end.result(self.base, last, over_s - self.base_s, processor_ns, self.base_pings)
        return self._with_peer(result, cause)

    def _with_peer(self, result: PerfResult, cause: str) -> PerfResult:
        try:
            answer = self.channel.receive(ANSWER_S)
            peer = answer.get("result")
        except PerfError as error:
            return replace(result, cause=cause or result.cause or str(error))
        return replace(result, peer=peer if isinstance(peer, dict) else {})

    def _take_base(self) -> None:
        self.base, self.base_s = self.end.samples(), time.monotonic()
        self.base_processor_ns = self.end.processor_ns()
        self.base_pings = len(self.end.round_trips_ns)

    def _watch(self) -> None:
        """Tells intervals until the measurement is over, interrupted or broken."""
        plan, end = self.plan, self.end
        marked, marked_s = self.base, self.base_s
        omit_until_s = self.begin_s + plan.omit_s
        is_omitting = plan.omit_s > 0
        until_s = None if plan.time_s is None else omit_until_s + plan.time_s
        step_s = self.interval_s
        next_s = None if step_s is None else self.begin_s + step_s
        while not self._is_over(until_s):
            now_s = time.monotonic()
            wake_s = now_s + LOOK_S
            for at_s in (next_s, until_s, omit_until_s if is_omitting else None):
                if at_s is not None:
                    wake_s = min(wake_s, max(at_s, now_s))
            time.sleep(max(0.0, wake_s - now_s))
            now_s = time.monotonic()
            if next_s is not None and step_s is not None and now_s >= next_s:
                samples = end.samples()
                self._tell(marked, samples, marked_s, now_s, is_omitted=is_omitting)
                marked, marked_s = samples, now_s
                next_s += step_s * max(1, int((now_s - next_s) / step_s) + 1)
            if is_omitting and now_s >= omit_until_s:
                is_omitting = False
                self._take_base()
        now_s = time.monotonic()
        if step_s is not None and now_s - marked_s > step_s / 10:
            self._tell(marked, end.samples(), marked_s, now_s, is_omitted=is_omitting)

    def _tell(
        self, first: list[Sample], last: list[Sample], start_s: float, end_s: float, *, is_omitted: bool
    ) -> None:
        self.on_interval(
            self.end.interval(
                first, last, start_s - self.begin_s, end_s - self.begin_s, is_omitted=is_omitted
            )
        )

    def _is_over(self, until_s: float | None) -> bool:
        plan, end = self.plan, self.end
        if self.client.is_interrupted or end.is_broken:
            return True
        try:
            self.channel.poll()
        except PerfError as error:
            end.cause = str(error)
            return True
        if until_s is not None:
            return time.monotonic() >= until_s
        has_sent = not plan.client_sends or not end.is_busy
        total = plan.total_bytes or 0
        return has_sent and (not plan.server_sends or end.received_bytes >= total)
