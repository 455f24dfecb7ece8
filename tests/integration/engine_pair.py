"""Two endpoints of this process joined over loopback, for tests of the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farstep.engine import Connection, Endpoint, EndpointProfile, PortConfig, Region

WAIT_S = 20.0
"""Longest wait of a test for what must come; a hang fails here and not at the end of the suite."""

IMPATIENT = EndpointProfile(
    rto_base_ns=20_000_000, rto_max_ns=150_000_000, linear_count=2, exponential_count=4, seed=7
)
"""Gives a silent peer up within a second, yet not one that a loaded machine merely holds up."""


@dataclass
class Pair:
    """Endpoints `a` and `b` with one connection between them."""

    a: Endpoint
    b: Endpoint
    to_b: Connection
    to_a: Connection

    def send(self, content: Any, *, immediate: int | None = 1) -> np.ndarray:
        """Writes `content` from a to b with an immediate and returns what b has then."""
        source = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
        target = np.zeros(len(source), np.uint8)
        with self.a.register(source) as region, self.b.register(target) as landing:
            completion = self.to_b.write(region, 0, len(source), landing.remote, 0, immediate=immediate)
            if immediate is not None:
                assert self.to_a.wait_immediate(WAIT_S) == immediate
            completion.wait(WAIT_S)
        return target

    def buffers(self, length_bytes: int) -> tuple[np.ndarray, np.ndarray, Region, Region]:
        """Random bytes at a, zeros at b, and both regions."""
        source = np.random.default_rng(length_bytes).integers(0, 256, length_bytes, dtype=np.uint8)
        target = np.zeros(length_bytes, np.uint8)
        return source, target, self.a.register(source), self.b.register(target)


def connect(a: Endpoint, b: Endpoint) -> tuple[Connection, Connection]:
    """Joins two endpoints by one more connection."""
    to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
    to_b.connect(to_a.descriptor)
    to_a.connect(to_b.descriptor)
    return to_b, to_a


@contextlib.contextmanager
def engine_pair(
    ports: Sequence[PortConfig | str] = ("127.0.0.1", "127.0.0.1"),
    *,
    profile: EndpointProfile | None = None,
    ports_b: Sequence[PortConfig | str] | None = None,
    profile_b: EndpointProfile | None = None,
) -> Iterator[Pair]:
    """Opens a pair and closes it."""
    with (
        Endpoint(ports, profile=profile, name="a") as a,
        Endpoint(ports_b or ports, profile=profile_b or profile, name="b") as b,
    ):
        yield Pair(a, b, *connect(a, b))
