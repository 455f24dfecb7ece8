"""The communicator over sockets and over the in-memory transport: every collective, sizes around every threshold."""

import contextlib
import threading
import time

import numpy as np
import pytest

from farstep.collectives import (
    CollectiveMismatch,
    Communicator,
    CommunicatorAborted,
    CommunicatorSettings,
    CommunicatorTimeout,
    ElementType,
    LinkSettings,
    Vector,
)
from farstep.engine import ConnectionAborted, Endpoint
from farstep.testing.memory_engine import MemoryFabric, MemoryStore

SMALL = CommunicatorSettings(
    link=LinkSettings(slot_bytes=4096, num_slots=16),
    tree_bytes_max=256,
    pair_bytes_max=512,
    eager_bytes_max=2048,
    chunk_bytes_min=512,
    timeout_s=20,
)
COUNTS = (1, 5, 64, 300, 4000, 40_000)


class Ranks:
    """Runs one body per rank, each in a thread with an endpoint and a communicator of its own."""

    def __init__(self, transport):
        self.transport = transport

    def run(self, size, body, *, seed=None, sites=None, settings=SMALL):
        """Returns the results; raises the first error."""
        results, errors = [None] * size, [None] * size
        store = MemoryStore()
        with contextlib.ExitStack() as stack:
            if self.transport == "memory":
                fabric = stack.enter_context(MemoryFabric(seed=seed, delay_max_s=0.0005))
                endpoints = [fabric.endpoint(f"rank{rank}") for rank in range(size)]
            else:
                endpoints = [stack.enter_context(Endpoint(name=f"rank{rank}")) for rank in range(size)]

            def work(rank):
                try:
                    with Communicator(
                        endpoints[rank], rank=rank, size=size, store=store, sites=sites, settings=settings
                    ) as comm:
                        results[rank] = body(comm)
                        comm.barrier()
                except Exception as error:
                    errors[rank] = error

            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "a rank hangs"
        for error in errors:
            if error is not None:
                raise error
        return results


@pytest.fixture(params=["sockets", "memory"])
def ranks(request):
    return Ranks(request.param)


def numbers(rank, count, dtype=np.float32):
    generator = np.random.default_rng(rank)
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(count).astype(dtype)
    return generator.integers(0, 50, count).astype(dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_all_reduce_sums_and_all_ranks_hold_equal_bits(ranks, size):
    def body(comm):
        outputs = []
        for count in COUNTS:
            data = numbers(comm.rank, count)
            comm.all_reduce(data)
            outputs.append(data)
        return outputs

    results = ranks.run(size, body, seed=size)
    for index, count in enumerate(COUNTS):
        exact = sum(numbers(rank, count, np.float32).astype(np.float64) for rank in range(size))
        np.testing.assert_allclose(results[0][index], exact, rtol=1e-4, atol=1e-5)
        for rank in range(size):
            assert results[rank][index].tobytes() == results[0][index].tobytes()


def test_reruns_give_the_same_bits_whatever_the_timing(ranks):
    def body(comm):
        data = numbers(comm.rank, 20_000)
        comm.all_reduce(data)
        return data.tobytes()

    assert len({ranks.run(4, body, seed=seed)[0] for seed in range(4)}) == 1


@pytest.mark.parametrize("sites", [["a", "a", "b", "b"], ["a", "b", "a"], ["a", "b", "b", "b", "c"]])
def test_all_reduce_across_sites(ranks, sites):
    size = len(sites)

    def body(comm):
        data = numbers(comm.rank, 30_001, np.int64)
        comm.all_reduce(data)
        mean = numbers(comm.rank, 30_001, np.float64)
        comm.all_reduce(mean, "mean")
        return data, mean

    results = ranks.run(size, body, seed=1, sites=sites)
    exact = sum(numbers(rank, 30_001, np.int64) for rank in range(size))
    mean = sum(numbers(rank, 30_001, np.float64) for rank in range(size)) / size
    for data, averaged in results:
        np.testing.assert_array_equal(data, exact)
        np.testing.assert_allclose(averaged, mean)
        assert averaged.tobytes() == results[0][1].tobytes()


@pytest.mark.parametrize("count", [10, 5000])
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "product"])
def test_all_reduce_ops(ranks, op, count):
    def body(comm):
        data = numbers(comm.rank, count, np.float64)
        comm.all_reduce(data, op)
        return data

    stacked = np.stack([numbers(rank, count, np.float64) for rank in range(3)])
    function = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max, "product": np.prod}[op]
    for result in ranks.run(3, body):
        np.testing.assert_allclose(result, function(stacked, axis=0), rtol=1e-12)


@pytest.mark.parametrize("op", ["and", "or", "xor"])
def test_all_reduce_bitwise(ranks, op):
    def body(comm):
        data = numbers(comm.rank, 100, np.int32)
        comm.all_reduce(data, op)
        return data

    function = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
    expected = function.reduce([numbers(rank, 100, np.int32) for rank in range(3)])
    for result in ranks.run(3, body):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 100, 3000])
def test_reduce_scatter_and_all_gather(ranks, size, count):
    def body(comm):
        data = numbers(comm.rank, count * size, np.int64)
        before = data.copy()
        block = np.empty(count, np.int64)
        comm.reduce_scatter(block, data)
        np.testing.assert_array_equal(data, before)
        whole = np.empty(count * size, np.int64)
        comm.all_gather(whole, block)
        parts = [np.empty(count, np.int64) for _ in range(size)]
        comm.all_gather(parts, block)
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        in_place = np.zeros(count * size, np.int64)
        own = in_place[comm.rank * count : (comm.rank + 1) * count]
        own[:] = block
        comm.all_gather(in_place, own)
        np.testing.assert_array_equal(in_place, whole)
        return whole

    exact = sum(numbers(rank, count * size, np.int64) for rank in range(size))
    for result in ranks.run(size, body, seed=3):
        np.testing.assert_array_equal(result, exact)


def test_reduce_scatter_of_uneven_blocks(ranks):
    counts = [3000, 0, 17]

    def body(comm):
        blocks = [np.full(n, comm.rank + 1, np.float32) for n in counts]
        out = np.empty(counts[comm.rank], np.float32)
        comm.reduce_scatter(out, blocks)
        return out

    for rank, result in enumerate(ranks.run(3, body)):
        np.testing.assert_array_equal(result, np.full(counts[rank], 6, np.float32))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [7, 9000])
def test_broadcast_and_reduce(ranks, size, count):
    def body(comm):
        for root in range(size):
            data = numbers(comm.rank, count)
            comm.broadcast(data, root)
            np.testing.assert_array_equal(data, numbers(root, count))
            total = numbers(comm.rank, count, np.int32)
            comm.reduce(total, root)
            own = numbers(comm.rank, count, np.int32)
            everybody = sum(numbers(rank, count, np.int32) for rank in range(size))
            np.testing.assert_array_equal(total, everybody if comm.rank == root else own)

    ranks.run(size, body, seed=4)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_all_to_all_gather_and_scatter(ranks, size):
    def body(comm):
        rank = comm.rank
        sends = [np.full(1000 * ((rank + q) % 3), 10 * rank + q, np.int16) for q in range(size)]
        receives = [np.empty(1000 * ((rank + q) % 3), np.int16) for q in range(size)]
        comm.all_to_all(receives, sends)
        for q in range(size):
            assert (receives[q] == 10 * q + rank).all()
        for root in {0, size - 1}:
            parts = [np.empty(5 + q, np.int16) for q in range(size)] if rank == root else None
            comm.gather(parts, np.full(5 + rank, rank, np.int16), root)
            if parts is not None:
                assert all((part == q).all() for q, part in enumerate(parts))
            out = np.empty(3 + rank, np.int16)
            inputs = [np.full(3 + q, q, np.int16) for q in range(size)] if rank == root else None
            comm.scatter(out, inputs, root)
            assert (out == rank).all()

    ranks.run(size, body, seed=5)


def test_queued_operations_run_in_order(ranks):
    def body(comm):
        data = [np.full(count, comm.rank + 1, np.int64) for count in (3, 9000, 40, 20_000)]
        handles = [comm.all_reduce(item, background=True) for item in data for _ in range(2)]
        last = np.full(4, 1.0)
        comm.all_reduce(last)
        assert all(handle.done() for handle in handles)
        return data, last

    for data, last in ranks.run(3, body, seed=6):
        assert all((item == 18).all() for item in data)
        assert (last == 3).all()


def test_half_precision_vectors(ranks):
    def body(comm):
        half = numbers(comm.rank, 3000, np.float16)
        comm.all_reduce(half)
        bits = (numbers(comm.rank, 3000).view(np.uint32) >> 16).astype(np.uint16)
        comm.all_reduce(Vector(bits.view(np.uint8), ElementType.BFLOAT16))
        return half, bits

    results = ranks.run(2, body)
    exact = numbers(0, 3000, np.float16) + numbers(1, 3000, np.float16)
    np.testing.assert_array_equal(results[0][0], exact)
    assert results[0][1].tobytes() == results[1][1].tobytes()


def test_sends_and_receives_pair_by_tag(ranks):
    def body(comm):
        other = 1 - comm.rank
        incoming = [np.empty(1000, np.float32) for _ in range(4)]
        receives = [comm.receive(incoming[tag], other, tag, background=True) for tag in (3, 1, 0, 2)]
        sends = [
            comm.send(np.full(1000, 10 * comm.rank + tag, np.float32), other, tag, background=True)
            for tag in range(4)
        ]
        for handle in [*receives, *sends]:
            handle.wait(10)
        for tag in range(4):
            assert (incoming[tag] == 10 * other + tag).all()

    ranks.run(2, body, seed=7)


def test_more_receives_than_a_peer_can_be_told_of_at_once(ranks):
    def body(comm):
        buffers = [np.full(1, index, np.int64) for index in range(600)]
        call = comm.send if comm.rank == 0 else comm.receive
        if comm.rank == 1:
            for buffer in buffers:
                buffer[:] = -1
        for handle in [call(buffer, 1 - comm.rank, background=True) for buffer in buffers]:
            handle.wait(10)
        assert [buffer[0] for buffer in buffers] == list(range(600))

    ranks.run(2, body)


def test_a_peer_that_has_sent_and_closed_leaves_the_others_at_work(ranks):
    def body(comm):
        call = comm.send if comm.rank == 0 else comm.receive
        if comm.rank < 2:
            call(np.ones(3), 1 - comm.rank)
        if comm.rank == 0:
            comm._point_to_point.close()  # as `close` begins, while the others may be in the last barrier
        else:
            time.sleep(0.5)
            assert comm.failure is None
        comm.barrier()

    ranks.run(3, body)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (np.zeros(5, np.float32), "has 40 bytes, the receive there 20"),
        (np.zeros(5, np.float64), "has elements of float32, the receive there of float64"),
    ],
)
def test_a_send_and_a_receive_that_do_not_match_are_an_error_on_both_sides(ranks, wanted, why):
    def body(comm):
        if comm.rank == 0:
            with pytest.raises(CollectiveMismatch, match=f"send to rank 1 with tag 0 on 'world' {why}"):
                comm.send(np.ones(10, np.float32), 1, timeout_s=10)
        else:
            with pytest.raises(CommunicatorAborted):
                comm.receive(wanted, 0, timeout_s=10)
            assert not wanted.any()

    with pytest.raises(CommunicatorAborted):
        ranks.run(2, body)


def test_barrier_waits_for_the_last(ranks):
    left = []

    def body(comm):
        if comm.rank == 2:
            time.sleep(0.2)
        left.append(("in", comm.rank))
        comm.barrier()
        left.append(("out", comm.rank))

    ranks.run(3, body)
    assert [kind for kind, _ in left] == ["in"] * 3 + ["out"] * 3


def test_abort_unblocks_every_waiter_at_once(ranks):
    started = time.monotonic()

    def body(comm):
        if comm.rank == 1:
            comm.barrier()
            time.sleep(0.1)
            comm.abort("test")
        else:
            comm.barrier()
            handle = comm.all_reduce(np.zeros(9000, np.float32), background=True)
            with pytest.raises(CommunicatorAborted, match="all_reduce on 'world', rank"):
                handle.wait(10)
            with pytest.raises(ConnectionAborted):
                comm.all_reduce(np.zeros(3))
        with pytest.raises(CommunicatorAborted, match="abort"):
            comm.barrier()
        return True

    with pytest.raises(CommunicatorAborted):
        ranks.run(3, body)
    assert time.monotonic() - started < 5


def test_a_receive_that_times_out_ends_the_communicator(ranks):
    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CommunicatorTimeout, match="receive from rank 1 with tag 5"):
                comm.receive(np.zeros(3), 1, 5, timeout_s=0.1)
            assert "receive from rank 1" in comm.failure
        else:
            with pytest.raises(CommunicatorAborted):
                comm.barrier(timeout_s=10)

    with pytest.raises(CommunicatorAborted):
        ranks.run(2, body)


def test_a_missing_peer_is_named_when_time_is_up(ranks):
    is_over = threading.Event()

    def body(comm):
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CommunicatorTimeout, match=r"all_reduce on 'world', rank 0 of 2 .* rank 1"):
                comm.all_reduce(np.zeros(5000), timeout_s=0.2)
            is_over.set()
        else:
            assert is_over.wait(30)

    with pytest.raises(CommunicatorAborted):
        ranks.run(2, body)


def test_different_calls_are_noticed(ranks):
    def body(comm):
        comm.all_reduce(np.zeros(10 + comm.rank, np.float32))

    with pytest.raises((CollectiveMismatch, CommunicatorAborted)):
        ranks.run(2, body)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.all_reduce(np.zeros(3), "median"), ValueError, "op is 'median'"),
        (lambda c: c.all_reduce(np.zeros(3, np.int32), "mean"), TypeError, "floating-point"),
        (lambda c: c.all_reduce(np.zeros(3), "and"), TypeError, "integer or bool"),
        (lambda c: c.all_reduce(np.zeros(3, np.complex64)), TypeError, "complex64"),
        (lambda c: c.all_reduce(np.zeros((4, 4))[:, 1]), ValueError, "not contiguous"),
        (lambda c: c.all_reduce([1.0]), TypeError, "list"),
        (lambda c: c.broadcast(np.zeros(3), 5), ValueError, "root is 5"),
        (lambda c: c.all_gather(np.zeros(3), np.zeros(2)), ValueError, "data has 2 elements"),
        (lambda c: c.send(np.zeros(3), 0), ValueError, "this rank itself"),
        (lambda c: c.receive(np.zeros(3), 9), ValueError, "peer is 9"),
    ],
)
def test_misuse_is_named(call, error, words):
    with (
        MemoryFabric() as fabric,
        Communicator(fabric.endpoint(), rank=0, size=1, store=MemoryStore()) as comm,
        pytest.raises(error, match=words),
    ):
        call(comm)


def test_settings_that_differ_are_noticed():
    store = MemoryStore()
    with MemoryFabric() as fabric:

        def work(rank):
            link = LinkSettings(slot_bytes=4096 * (rank + 1))
            settings = CommunicatorSettings(link=link, timeout_s=3)
            with (
                Communicator(fabric.endpoint(), rank=rank, size=2, store=store, settings=settings) as comm,
                pytest.raises(CollectiveMismatch, match="slots of"),
            ):
                comm.barrier()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def run_random_operation(comm, generator):
    """One operation drawn alike on all ranks, checked against numpy."""
    size, rank = comm.size, comm.rank
    count = int(generator.choice([1, 60, 700, 6000, 30_000]))
    data = generator.integers(0, 100, (size, size, count))
    root = int(generator.integers(size))
    kind = generator.choice(
        ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
    )
    if kind == "all_reduce":
        result = data[rank, 0].copy()
        comm.all_reduce(result, "max")
        np.testing.assert_array_equal(result, data[:, 0].max(axis=0))
    elif kind == "reduce_scatter":
        result = np.empty(count, np.int64)
        comm.reduce_scatter(result, list(data[rank]))
        np.testing.assert_array_equal(result, data[:, rank].sum(axis=0))
    elif kind == "all_gather":
        result = np.empty((size, count), np.int64)
        comm.all_gather(result, data[rank, 0])
        np.testing.assert_array_equal(result, data[:, 0])
    elif kind == "broadcast":
        result = data[rank, 0].copy()
        comm.broadcast(result, root)
        np.testing.assert_array_equal(result, data[root, 0])
    elif kind == "reduce":
        result = data[rank, 0].copy()
        comm.reduce(result, root)
        np.testing.assert_array_equal(result, data[:, 0].sum(axis=0) if rank == root else data[rank, 0])
    else:
        result = np.empty((size, count), np.int64)
        comm.all_to_all(result, data[rank].copy())
        np.testing.assert_array_equal(result, data[:, rank])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("size", [2, 3])
def test_any_sequence_of_operations(ranks, size, seed):
    def body(comm):
        generator = np.random.default_rng(seed)
        for _ in range(60):
            run_random_operation(comm, generator)

    ranks.run(size, body, seed=seed)


def test_several_communicators_share_an_endpoint():
    store = MemoryStore()
    with Endpoint(name="a") as first, Endpoint(name="b") as second:

        def work(rank, endpoint):
            with contextlib.ExitStack() as stack:
                comms = [
                    stack.enter_context(
                        Communicator(endpoint, rank=rank, size=2, store=store, name=name, settings=SMALL)
                    )
                    for name in ("one", "two")
                ]
                data = [np.full(30_000, rank + 1.0) for _ in range(6)]
                handles = [
                    comms[index % 2].all_reduce(item, background=True) for index, item in enumerate(data)
                ]
                for handle in handles:
                    handle.wait(20)
                results.append(all((item == 3).all() for item in data))

        results = []
        threads = [threading.Thread(target=work, args=pair) for pair in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert results == [True, True]
