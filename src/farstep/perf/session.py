"""One end of a measurement: its endpoint, its connections, and the threads that keep them busy."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from farstep.engine import (
    Completion,
    Connection,
    Endpoint,
    EngineError,
    InvalidFieldError,
    PortConfig,
    Region,
    RemoteRegion,
    WaitTimeout,
)
from farstep.engine.address_file import fabric_ports_here
from farstep.engine.security import SecurityProfile
from farstep.perf.errors import PerfError
from farstep.perf.figures import ConnectionFigures, Interval, LatencyFigures, PerfResult, Sample
from farstep.perf.plan import PerfPlan

__all__ = ["End", "EndSetup"]

LAST_PING = 0xFFFF_FFFF
"""Immediate that ends a measurement of latency; others count up from 0."""
LAST_WRITES_S = 5.0
"""What writes under way may take when the time is over. Those that take longer do not count."""
LOOK_S = 0.1
"""How often a thread that waits looks whether the time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSetup:
    """What is an end's own affair.

    Attributes:
        binds: addresses of its ports, one per plane; a single one serves all. Empty: those of the fabric this process
            runs in, or else the address of the control channel.
        rate_mbps: of each port, in 10^6 bit/s; None: learned.
        security: who it is and what protection it asks for.
    """

    binds: tuple[str, ...] = ()
    rate_mbps: float | None = None
    security: SecurityProfile = field(default_factory=SecurityProfile)

    def ports(self, local_host: str, planes: int) -> list[PortConfig]:
        """Returns the ports to open.

        Args:
            local_host: address of the control channel.
            planes: how many ports it takes where nothing else says.
        """
        if not self.binds:
            found = fabric_ports_here()
            if found is not None:
                return found
        host = f"[{local_host}]" if ":" in local_host else local_host
        binds = self.binds or (host,)
        if len(binds) == 1:
            binds *= planes
        return [PortConfig(bind, plane=plane, rate_mbps=self.rate_mbps) for plane, bind in enumerate(binds)]


class End:
    """One end; a context manager.

    Args:
        plan: what is measured.
        setup: how this end takes part.
        local_host: address of the control channel.
        sends: whether data flows from here.
        peer: name of the other end.

    Raises:
        PerfError: the endpoint cannot be opened.
    """

    def __init__(self, plan: PerfPlan, setup: EndSetup, *, local_host: str, sends: bool, peer: str) -> None:
        self.plan = plan
        self.sends = sends
        self.peer = peer
        try:
            profile = plan.profile(security=setup.security)
            self.endpoint = Endpoint(setup.ports(local_host, plan.planes), profile=profile, name="perf")
        except (EngineError, InvalidFieldError) as error:
            raise PerfError(str(error)) from None
        self.connections: list[Connection] = []
        self._regions: list[Region] = []
        self._remote: list[RemoteRegion] = []
        for _ in range(plan.connections):
            self.connections.append(self.endpoint.create_connection(peer_name=peer))
            # Anonymous pages: aligned, and not there until they are written to.
            memory = mmap.mmap(-1, max(plan.size_bytes, 1))
            memory[:] = b"\x5a" * len(memory)
            self._regions.append(self.endpoint.register(memory))
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._latest_s = 0.0
        self._ends_s: list[float] = []
        self.round_trips_ns: list[int] = []
        self.cause = ""
        self._cause_lock = threading.Lock()

    # ---- joining --------------------------------------------------------------------------------------------

    def offer(self) -> dict[str, Any]:
        """Returns what the other end needs to join."""
        return {
            "descriptors": [connection.descriptor.hex() for connection in self.connections],
            "regions": [list(region.remote) for region in self._regions],
        }

    def join(self, offer: dict[str, Any]) -> None:
        """Connects to the other end.

        Raises:
            PerfError: it cannot.
        """
        try:
            descriptors = [bytes.fromhex(text) for text in offer["descriptors"]]
            self._remote = [RemoteRegion(int(key), int(length)) for key, length in offer["regions"]]
            for connection, descriptor in zip(self.connections, descriptors, strict=True):
                connection.connect(descriptor)
        except (KeyError, ValueError, TypeError) as error:
            raise PerfError(f"{self.peer} makes no offer that can be used ({error})") from None
        except EngineError as error:
            raise PerfError(str(error)) from None

    # ---- work -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to send, or to answer."""
        if self.plan.measure == "latency":
            work = self._ping if self.sends else self._pong
            self._begin(work, 0)
        elif self.sends:
            for index in range(self.plan.connections):
                self._begin(self._write, index)

    def _begin(self, work: Any, index: int) -> None:
        thread = threading.Thread(target=self._guarded, args=(work, index), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Any, index: int) -> None:
        try:
            work(index)
        except EngineError as error:
            with self._cause_lock:
                self.cause = self.cause or str(error)

    def _write(self, index: int) -> None:
        connection, region, remote = self.connections[index], self._regions[index], self._remote[index]
        size, left = self.plan.size_bytes, self.plan.bytes_of(index)
        pending: deque[Completion] = deque()
        while not self._stop.is_set() and left != 0:
            if len(pending) >= self.plan.depth:
                self._wait(pending.popleft())
                continue
            length = size if left is None else min(size, left)
            pending.append(connection.write(region, 0, length, remote, 0))
            left = None if left is None else left - length
        while pending and self._wait(pending.popleft()):
            pass
        self._ends_s.append(time.monotonic())

    def _wait(self, completion: Completion) -> bool:
        """Returns whether a write is through; not if it still was not a while after the end."""
        while not self._stop.is_set():
            with contextlib.suppress(WaitTimeout):
                completion.wait(LOOK_S)
                return True
        with contextlib.suppress(WaitTimeout):
            completion.wait(self._latest_s - time.monotonic())
            return True
        return False

    def _ping(self, _: int) -> None:
        connection, region, remote = self.connections[0], self._regions[0], self._remote[0]
        size, left, number = self.plan.size_bytes, self.plan.bytes_of(0), 0
        while not self._stop.is_set() and (left is None or left > 0):
            began_ns = time.perf_counter_ns()
            connection.write(region, 0, size, remote, 0, immediate=number)
            self._await_pong(connection)
            self.round_trips_ns.append(time.perf_counter_ns() - began_ns)
            number = (number + 1) % LAST_PING
            left = None if left is None else left - max(1, size)
        connection.write(region, 0, 0, remote, 0, immediate=LAST_PING).wait(LAST_WRITES_S)
        self._ends_s.append(time.monotonic())

    def _await_pong(self, connection: Connection) -> None:
        while True:
            with contextlib.suppress(WaitTimeout):
                connection.wait_immediate(LAST_WRITES_S if self._stop.is_set() else 0.5)
                return
            if self._stop.is_set():
                raise WaitTimeout("the last answer did not come", peer=self.peer)

    def _pong(self, _: int) -> None:
        connection, region, remote = self.connections[0], self._regions[0], self._remote[0]
        while (number := connection.wait_immediate()) != LAST_PING:
            connection.write(region, 0, self.plan.size_bytes, remote, 0, immediate=number)

    @property
    def is_busy(self) -> bool:
        """Whether something is still being sent or answered here."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def is_broken(self) -> bool:
        """Whether a connection has failed; `cause` then says why."""
        for connection in self.connections:
            if not self.cause and not connection.is_open:
                self.cause = self._failure_of(connection)
        return bool(self.cause)

    def _failure_of(self, connection: Connection) -> str:
        try:
            connection.poll_immediate()
        except EngineError as error:
            return str(error)
        return f"the connection to {self.peer} has ended"

    @property
    def received_bytes(self) -> int:
        """What has come, over all connections."""
        return sum(connection.stats().rx_bytes for connection in self.connections)

    def stop(self) -> float:
        """Ends sending, once the writes under way are through; returns when that was (monotonic s)."""
        self._latest_s = time.monotonic() + LAST_WRITES_S
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * LAST_WRITES_S)
        return max(self._ends_s, default=time.monotonic())

    # ---- figures --------------------------------------------------------------------------------------------

    def samples(self) -> list[Sample]:
        """Returns the counters of every connection."""
        return [
            Sample.of(connection.stats(), self.plan.size_bytes, self.plan.bytes_of(index))
            for index, connection in enumerate(self.connections)
        ]

    def processor_ns(self) -> int:
        """Returns what the transport's thread has taken so far."""
        return self.endpoint.stats().thread_cpu_ns

    def interval(
        self,
        first: Sequence[Sample],
        last: Sequence[Sample],
        start_s: float,
        end_s: float,
        *,
        is_omitted: bool,
    ) -> Interval:
        """Returns what happened between two rounds of samples."""
        seconds = end_s - start_s
        each = tuple(ConnectionFigures.between(a, b, seconds) for a, b in zip(first, last, strict=True))
        total = ConnectionFigures.together(each, seconds)
        return Interval(start_s=start_s, end_s=end_s, is_omitted=is_omitted, total=total, connections=each)

    def result(
        self,
        first: Sequence[Sample],
        last: Sequence[Sample],
        seconds: float,
        processor_ns: int,
        omitted_pings: int = 0,
    ) -> PerfResult:
        """Sums up a measurement that lasted so long."""
        whole = self.interval(first, last, 0.0, seconds, is_omitted=False)
        round_trips = self.round_trips_ns[omitted_pings:]
        return PerfResult(
            total=whole.total,
            connections=whole.connections,
            path_mode=self.endpoint.path_mode,
            protection=str(self.connections[0].protection),
            mtu_bytes=self.connections[0].mtu_bytes,
            planes=self._planes(),
            processor_share=processor_ns / 1e9 / seconds if seconds > 0 else 0.0,
            latency=LatencyFigures.of(round_trips) if round_trips else None,
            cause=self.cause,
        )

    def _planes(self) -> tuple[dict[str, int], ...]:
        found: dict[int, dict[str, int]] = {}
        for connection in self.connections:
            for path in connection.stats(with_paths=True).paths:
                plane = found.setdefault(
                    path.plane, {"plane": path.plane, "packets": 0, "good_paths": 0, "paths": 0}
                )
                plane["packets"] += path.tx_packets
                plane["good_paths"] += path.state.name in ("GOOD", "SKIP")
                plane["paths"] += 1
        return tuple(found[plane] for plane in sorted(found))

    def close(self) -> None:
        """Ends the connections."""
        self._latest_s = 0.0
        self._stop.set()
        self.endpoint.close()
        for thread in self._threads:
            thread.join(LAST_WRITES_S)

    def __enter__(self) -> End:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
