"""Objects in processes of their own, driven over a pipe; one of them holds an endpoint."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import threading
import time
import traceback
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from farstep.engine import Connection, Endpoint, EndpointProfile, PortConfig, Region, RemoteRegion

CALL_TIMEOUT_S = 300.0


class RemoteError(RuntimeError):
    """A call failed in the other process; carries its traceback."""


class Remote:
    """Runs `kind(*args)` in another process. `call` waits for the result, `start` does not.

    Args:
        kind: class to make there; importable by name.
        args: its arguments, picklable.
    """

    def __init__(self, kind: type, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, args), daemon=True)
        self._process.start()
        theirs.close()
        self.result()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def start(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Sends a call; `result` gives what it returns."""
        self._pipe.send((method, args, kwargs))

    def result(self, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Waits for the result of the oldest call."""
        if not self._pipe.poll(timeout_s):
            raise RemoteError(f"no answer within {timeout_s:g} s")
        is_ok, value = self._pipe.recv()
        if not is_ok:
            raise RemoteError(value)
        return value

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method there."""
        self.start(method, *args, **kwargs)
        return self.result()

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Pipe, kind: type, args: tuple[Any, ...]) -> None:
    try:
        target = kind(*args)
        pipe.send((True, None))
        while (request := pipe.recv()) is not None:
            method, positional, named = request
            try:
                pipe.send((True, getattr(target, method)(*positional, **named)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    except EOFError:
        pass
    except Exception:
        pipe.send((False, traceback.format_exc()))
    # What is left of the benchmark needs no orderly end.
    os._exit(0)


def page_aligned(length_bytes: int) -> np.ndarray:
    """Zeroed memory at the start of a page, every page of it touched."""
    memory = np.frombuffer(mmap.mmap(-1, max(length_bytes, 1)), np.uint8)[:length_bytes]
    memory.fill(0)
    return memory


class RemoteEngine:
    """An endpoint with one connection, made for calls by `Remote`.

    Args:
        ports: as of `Endpoint`.
        profile: as of `Endpoint`.
        site: as of `Endpoint`.
        length_bytes: size of the buffer to send from and of the one to receive into.
    """

    def __init__(
        self, ports: list[PortConfig | str], profile: EndpointProfile | None, site: str, length_bytes: int
    ) -> None:
        self.endpoint = Endpoint(ports, profile=profile, site=site, name=site)
        self.source = page_aligned(length_bytes)
        self.source[:] = np.random.default_rng(1).integers(0, 256, length_bytes, dtype=np.uint8)
        self.target = page_aligned(length_bytes)
        self.region: Region = self.endpoint.register(self.source)
        self.landing: Region = self.endpoint.register(self.target)
        self.connection: Connection | None = None
        self.peer_region = RemoteRegion(0, 0)
        self._samples: list[tuple[int, int]] = []
        self._sampler: threading.Thread | None = None
        self._is_sampling = False

    def ports(self) -> list[tuple[str, int]]:
        """Addresses of the ports."""
        return list(self.endpoint.ports)

    def set_public(self, port_index: int, addresses: dict[str, tuple[str, int]]) -> None:
        """Says how the other site reaches a port."""
        self.endpoint.set_public_addresses(port_index, addresses)

    def describe(self) -> tuple[bytes, RemoteRegion]:
        """Makes the connection; returns its descriptor and the buffer to write to."""
        self.connection = self.endpoint.create_connection(peer_name="peer")
        return self.connection.descriptor, self.landing.remote

    def connect(self, descriptor: bytes, region: RemoteRegion) -> None:
        """Opens the connection."""
        assert self.connection is not None
        self.connection.connect(descriptor)
        self.peer_region = region

    def send(
        self, length_bytes: int, count: int, in_flight: int, timeout_s: float = 120.0
    ) -> tuple[int, int]:
        """Writes `count` times; returns when the first was posted and the last one complete (monotonic ns)."""
        assert self.connection is not None
        begin_ns = time.monotonic_ns()
        writes = []
        for n in range(count):
            if n >= in_flight:
                writes[n - in_flight].wait(timeout_s)
            writes.append(
                self.connection.write(self.region, 0, length_bytes, self.peer_region, 0, immediate=n)
            )
        writes[-1].wait(timeout_s)
        return begin_ns, time.monotonic_ns()

    def receive(self, count: int, timeout_s: float = 120.0) -> int:
        """Waits for `count` immediates; returns when the last came (monotonic ns)."""
        assert self.connection is not None
        for n in range(count):
            got = self.connection.wait_immediate(timeout_s)
            assert got == n, f"immediate {got} came instead of {n}"
        return time.monotonic_ns()

    def exchange(self, length_bytes: int, count: int, timeout_s: float = 120.0) -> tuple[int, int]:
        """Writes `count` times and waits for as many from the peer; returns begin and end (monotonic ns)."""
        assert self.connection is not None
        begin_ns = time.monotonic_ns()
        for n in range(count):
            write = self.connection.write(self.region, 0, length_bytes, self.peer_region, 0, immediate=n)
            assert self.connection.wait_immediate(timeout_s) == n
            write.wait(timeout_s)
        return begin_ns, time.monotonic_ns()

    def is_exact(self, length_bytes: int) -> bool:
        """Whether the first bytes received are what the peer's buffer holds."""
        expected = np.random.default_rng(1).integers(0, 256, len(self.target), dtype=np.uint8)
        return bool(np.array_equal(self.target[:length_bytes], expected[:length_bytes]))

    def stats(self) -> dict[str, Any]:
        """Counters that explain a figure."""
        assert self.connection is not None
        s, e = self.connection.stats(), self.endpoint.stats()
        names = (
            "tx_packets",
            "retransmitted_packets",
            "lost_order",
            "lost_late",
            "lost_timeout",
            "spurious_losses",
            "timeouts",
            "soft_timeouts",
            "srtt_ns",
            "rx_packets",
            "duplicates",
        )
        chosen = {name: getattr(s, name) for name in names}
        chosen |= {
            "cwnd_bytes": s.congestion.cwnd_bytes,
            "planes": [(p.state.name, p.weight, p.tx_bytes) for p in s.planes],
        }
        return chosen | {
            "cpu_ns": e.thread_cpu_ns,
            "rejected": sum(e.rejected.values()),
            "overflow": e.receive_overflow,
        }

    def thread_cpu_ns(self) -> int:
        """Processor time of the endpoint's thread."""
        return self.endpoint.stats().thread_cpu_ns

    def start_sampling(self, interval_s: float) -> None:
        """Begins to note (monotonic ns, bytes received) at an interval."""
        assert self.connection is not None
        self._samples, self._is_sampling = [], True
        self._sampler = threading.Thread(target=self._sample, args=(interval_s,), daemon=True)
        self._sampler.start()

    def _sample(self, interval_s: float) -> None:
        assert self.connection is not None
        while self._is_sampling:
            received = self.connection.stats().rx_bytes
            self._samples.append((time.monotonic_ns(), received))
            time.sleep(interval_s)

    def stop_sampling(self) -> list[tuple[int, int]]:
        """Ends it and returns the samples."""
        self._is_sampling = False
        assert self._sampler is not None
        self._sampler.join()
        return self._samples

    def close(self) -> None:
        """Closes the endpoint."""
        self.endpoint.close()


def join(a: Remote, b: Remote) -> None:
    """Connects two remote engines."""
    to_b, region_a = a.call("describe")
    to_a, region_b = b.call("describe")
    a.call("connect", to_a, region_b)
    b.call("connect", to_b, region_a)
