"""Small pieces of the hot path, timed by pytest-benchmark: `pytest benchmarks/micro.py`.

For comparing one change with the last: `--benchmark-save=NAME`, then `--benchmark-compare`.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from farstep._native import wire
from farstep.collectives.reduction import reduce_into
from farstep.engine import Completion, Connection, Endpoint, Region, RemoteRegion

MTU_BYTES = 4096


@pytest.mark.parametrize("payload_bytes", [64, MTU_BYTES])
def test_check_a_packet(benchmark: BenchmarkFixture, payload_bytes: int) -> None:
    packet = bytes(range(256)) * (payload_bytes // 256 + 1)
    data = packet[: 40 + payload_bytes]
    benchmark(wire.icrc_matches, wire.icrc_seed_plain(), data)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_reduce_a_chunk(benchmark: BenchmarkFixture, dtype: str) -> None:
    left, right = np.ones(65_536, dtype), np.ones(65_536, dtype)
    benchmark(reduce_into, left, left, right, "sum")


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection, Region, RemoteRegion]]:
    with Endpoint(name="a") as a, Endpoint(name="b") as b:
        there, back = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        there.connect(back.descriptor)
        back.connect(there.descriptor)
        source = a.register(np.zeros(1 << 20, np.uint8))
        target = b.register(np.zeros(1 << 20, np.uint8))
        yield there, back, source, target.remote


@pytest.mark.parametrize("length_bytes", [0, 1024, 1 << 20])
def test_write_and_take_the_immediate(
    benchmark: BenchmarkFixture, pair: tuple[Connection, Connection, Region, RemoteRegion], length_bytes: int
) -> None:
    there, back, source, target = pair

    def once() -> Completion:
        completion = there.write(source, 0, length_bytes, target, 0, immediate=1)
        back.wait_immediate(timeout_s=10)
        return completion

    benchmark(once).wait(timeout_s=10)
