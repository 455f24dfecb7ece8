"""Ranks in processes of their own at two sites, joined by emulated paths."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from farstep.collectives import Communicator, CommunicatorSettings
from farstep.engine import Endpoint, EndpointProfile, PortConfig
from farstep.fabric import EmulatedNetwork
from farstep.lab import Emulator
from harness.remote import Remote, RemoteEngine, join

SITES = ("a", "b")


class DirectoryStore:
    """Exchanges values through files of one directory."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def _path(self, key: str) -> Path:
        return self._directory / hashlib.sha256(key.encode()).hexdigest()

    def set(self, key: str, value: bytes) -> None:
        """Publishes a value."""
        partial = self._path(key).with_suffix(f".{os.getpid()}")
        partial.write_bytes(value)
        partial.rename(self._path(key))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for a value."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            try:
                return self._path(key).read_bytes()
            except FileNotFoundError:
                time.sleep(0.005)
        raise TimeoutError(f"{key!r} was not published within {timeout_s:g} s")


class RemoteRank:
    """One rank of a communicator, made for calls by `Remote`."""

    def __init__(
        self, ports: list[PortConfig | str], profile: EndpointProfile | None, site: str, directory: str
    ) -> None:
        self.endpoint = Endpoint(ports, profile=profile, site=site, name=site)
        self.rank = SITES.index(site)
        self._store = DirectoryStore(directory)
        self._communicator: Communicator | None = None

    def ports(self) -> list[tuple[str, int]]:
        """Addresses of the ports."""
        return list(self.endpoint.ports)

    def set_public(self, port_index: int, addresses: dict[str, tuple[str, int]]) -> None:
        """Says how the other site reaches a port."""
        self.endpoint.set_public_addresses(port_index, addresses)

    def join(self) -> None:
        """Makes the communicator."""
        settings = CommunicatorSettings(timeout_s=120.0)
        self._communicator = Communicator(
            self.endpoint, rank=self.rank, size=2, store=self._store, sites=SITES, settings=settings
        )

    def all_reduce(self, length_bytes: int, count: int) -> list[float]:
        """Sums vectors of float32; returns the duration of each in seconds, after checking every element."""
        assert self._communicator is not None
        mine = np.arange(length_bytes // 4, dtype=np.float32) * (self.rank + 1)
        expected = np.arange(length_bytes // 4, dtype=np.float32) * 3
        times = []
        for _ in range(count):
            vector = mine.copy()
            self._communicator.barrier()
            begin_s = time.monotonic()
            self._communicator.all_reduce(vector)
            times.append(time.monotonic() - begin_s)
            assert np.array_equal(vector, expected), "the sum is wrong"
        return times

    def stats(self) -> dict[str, Any]:
        """Counters of the endpoint."""
        s = self.endpoint.stats()
        return {
            "tx_packets": s.tx_packets,
            "rejected": sum(s.rejected.values()),
            "overflow": s.receive_overflow,
        }


class EmulatedPair:
    """Two remotes of one kind at the sites `a` and `b` of a network.

    Args:
        network: its planes get one port each.
        kind: `RemoteEngine` or `RemoteRank`.
        profile: as of `Endpoint`.
        rates_mbps: line rate each port is told; None: learned.
        length_bytes: buffer of a `RemoteEngine`.
    """

    def __init__(
        self,
        network: EmulatedNetwork,
        kind: type,
        *,
        profile: EndpointProfile | None = None,
        rates_mbps: list[float] | None = None,
        length_bytes: int = 64 << 20,
    ) -> None:
        self.emulator = Emulator(network)
        planes = sorted({path.plane for path in network.paths})
        rates: list[float | None] = list(rates_mbps) if rates_mbps else [None] * len(planes)
        ports = [PortConfig(plane=plane, rate_mbps=rate) for plane, rate in zip(planes, rates, strict=True)]
        self._directory = tempfile.TemporaryDirectory()
        last: Any = self._directory.name if issubclass(kind, RemoteRank) else length_bytes
        self.a, self.b = (Remote(kind, ports, profile, site, last) for site in SITES)
        for site, remote in zip(SITES, (self.a, self.b), strict=True):
            for index, (plane, address) in enumerate(zip(planes, remote.call("ports"), strict=True)):
                public = self.emulator.expose(site, plane, address)
                remote.call("set_public", index, {name: to for name, to in public.items() if name != site})
        if issubclass(kind, RemoteEngine):
            join(self.a, self.b)
        else:
            self.both("join")

    def both(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Calls a method at both ends at once."""
        self.a.start(method, *args)
        self.b.start(method, *args)
        return self.a.result(), self.b.result()

    def all_reduce_s(self, length_bytes: int, count: int) -> list[float]:
        """Duration of all-reduces, each as the slower rank saw it."""
        at_a, at_b = self.both("all_reduce", length_bytes, count)
        return [max(pair) for pair in zip(at_a, at_b, strict=True)]

    def close(self) -> None:
        """Ends everything."""
        self.a.close()
        self.b.close()
        self.emulator.close()
        self._directory.cleanup()

    def __enter__(self) -> EmulatedPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
