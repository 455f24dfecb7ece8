"""Registered memory of every kind, and what happens to writes that do not fit it."""

import dataclasses
import gc
import mmap
import random
import weakref
from multiprocessing import shared_memory

import numpy as np
import pytest

from farstep.engine import ConnectionFailed, Endpoint, EndpointProfile, EngineError, RegionError, RemoteRegion
from tests.integration.engine_pair import IMPATIENT, WAIT_S, connect, engine_pair

LENGTH = 40_000
CONTENT = random.Random(1).randbytes(LENGTH)


@pytest.fixture
def pair():
    with engine_pair(["127.0.0.1"], profile=IMPATIENT) as made:
        yield made


def carry(pair, source, target):
    with pair.a.register(source) as region, pair.b.register(target) as landing:
        assert region.length_bytes == landing.length_bytes == LENGTH
        pair.to_b.write(region, 0, LENGTH, landing.remote, 0, immediate=1).wait(WAIT_S)
        assert pair.to_a.wait_immediate(WAIT_S) == 1


def test_numpy_arrays_of_any_plain_type(pair):
    for kind in ("f4", "f8", "i2", "u1", "c8", "datetime64[ns]"):
        source = np.frombuffer(CONTENT, dtype=kind).reshape(-1, 2)
        target = np.zeros_like(source)
        carry(pair, source, target)
        assert target.tobytes() == CONTENT


def test_bytes_go_out_and_a_bytearray_takes_them(pair):
    target = bytearray(LENGTH)
    carry(pair, CONTENT, target)
    assert target == CONTENT


def test_memoryviews(pair):
    outer = bytearray(LENGTH + 20)
    carry(pair, memoryview(CONTENT), memoryview(outer)[10:-10])
    assert outer == bytes(10) + CONTENT + bytes(10)


def test_shared_memory(pair):
    block = shared_memory.SharedMemory(create=True, size=LENGTH)
    try:
        carry(pair, CONTENT, block.buf[:LENGTH])
        assert bytes(block.buf[:LENGTH]) == CONTENT
    finally:
        block.close()  # fails if the engine still held the buffer
        block.unlink()


def test_anonymous_maps(pair):
    target = mmap.mmap(-1, LENGTH)
    carry(pair, CONTENT, target)
    assert target[:] == CONTENT
    target.close()


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int64", "uint8"])
def test_torch_tensors(pair, kind):
    torch = pytest.importorskip("torch")
    source = torch.frombuffer(bytearray(CONTENT), dtype=torch.uint8).view(getattr(torch, kind))
    target = torch.zeros_like(source)
    carry(pair, source, target)
    assert torch.equal(target.view(torch.uint8), source.view(torch.uint8))


def test_a_slice_of_a_tensor_is_a_region_of_its_own(pair):
    torch = pytest.importorskip("torch")
    whole = torch.zeros(3 * LENGTH, dtype=torch.uint8)
    carry(pair, CONTENT, whole[LENGTH : 2 * LENGTH])
    assert whole[LENGTH : 2 * LENGTH].numpy().tobytes() == CONTENT
    assert not whole[:LENGTH].any()
    assert not whole[2 * LENGTH :].any()


def test_a_tensor_that_moves_to_other_memory_leaves_the_region_valid(pair):
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(LENGTH, dtype=torch.uint8)
    landing = pair.b.register(tensor)
    view = tensor.numpy()
    tensor.data = torch.ones(3, dtype=torch.uint8)
    region = pair.a.register(CONTENT)
    pair.to_b.write(region, 0, LENGTH, landing.remote, 0).wait(WAIT_S)
    assert view.tobytes() == CONTENT


def test_an_empty_buffer_is_a_region_of_no_bytes(pair):
    with pair.a.register(b"") as region, pair.b.register(bytearray()) as landing:
        pair.to_b.write(region, 0, 0, landing.remote, 0, immediate=3).wait(WAIT_S)
        assert pair.to_a.wait_immediate(WAIT_S) == 3


def test_what_has_no_plain_contiguous_memory_is_refused(pair):
    torch = pytest.importorskip("torch")
    cases = {
        "not C-contiguous": np.zeros((4, 4))[:, ::2],
        "holds references": np.array([object()]),
        "int cannot be registered": 5,
        "str cannot be registered": "text",
        "NoneType cannot be registered": None,
        "not contiguous": torch.zeros(4, 4).t(),
        "meta": torch.zeros(4, device="meta"),
        "layout": torch.zeros(4, 4).to_sparse(),
        "list cannot be registered": [1, 2],
        "memoryview cannot be registered": memoryview(bytes(10))[::2],
    }
    for said, buffer in cases.items():
        with pytest.raises(RegionError, match=said):
            pair.a.register(buffer)


def test_a_peer_cannot_write_to_read_only_memory(pair):
    keep = np.frombuffer(CONTENT, np.uint8)
    landing = pair.b.register(keep)
    region = pair.a.register(bytes(LENGTH))
    completion = pair.to_b.write(region, 0, LENGTH, landing.remote, 0)
    with pytest.raises(ConnectionFailed, match="refused") as caught:
        completion.wait(WAIT_S)
    assert caught.value.peer == "b"
    assert keep.tobytes() == CONTENT


def _guess(pair, remote: RemoteRegion, offset: int = 0, length: int = 5_000) -> None:
    region = pair.a.register(b"\xff" * length)
    completion = pair.to_b.write(region, 0, length, remote, offset)
    with pytest.raises(ConnectionFailed, match="refused"):
        completion.wait(WAIT_S)


def test_a_write_to_an_unknown_key_fails_and_changes_nothing(pair):
    memory = bytearray(LENGTH)
    landing = pair.b.register(memory)
    _guess(pair, RemoteRegion(landing.remote.rkey ^ 1, LENGTH))
    assert memory == bytes(LENGTH)
    assert pair.to_a.stats().refused >= 1


def test_every_part_of_a_key_counts(pair):
    for bit in (0, 15, 16, 31, 32, 63):
        with engine_pair(["127.0.0.1"], profile=IMPATIENT) as other:
            memory = bytearray(LENGTH)
            landing = other.b.register(memory)
            _guess(other, RemoteRegion(landing.remote.rkey ^ (1 << bit), LENGTH))
            assert memory == bytes(LENGTH), f"bit {bit} of the key may be wrong"


def test_keys_of_one_endpoint_do_not_tell_each_other():
    with Endpoint() as endpoint:
        halves = [endpoint.register(b"x").remote.rkey for _ in range(64)]
        assert len({key >> 32 for key in halves}) == 64
        assert len({key & 0xFFFF for key in halves}) >= 60


def test_a_region_for_one_peer_is_closed_to_others(pair):
    with Endpoint(["127.0.0.1"], profile=IMPATIENT, name="c") as c:
        to_b, to_c = c.create_connection(peer_name="b"), pair.b.create_connection(peer_name="c")
        to_b.connect(to_c.descriptor)
        to_c.connect(to_b.descriptor)
        memory = bytearray(LENGTH)
        landing, region = pair.b.register(memory, only_for=to_c), c.register(CONTENT)
        _guess(pair, landing.remote)
        assert memory == bytes(LENGTH)
        to_b.write(region, 0, LENGTH, landing.remote, 0).wait(WAIT_S)
        assert memory == CONTENT
        with pytest.raises(RegionError, match="closed or belongs to another endpoint"):
            pair.a.register(memory, only_for=to_c)


def test_a_region_for_a_peer_that_is_gone_is_for_nobody():
    profile = dataclasses.replace(IMPATIENT, max_connections=1)
    with Endpoint(profile=profile, name="a") as a, Endpoint(profile=profile, name="b") as b:
        first, back = connect(a, b)
        memory = bytearray(LENGTH)
        landing = b.register(memory, only_for=back)
        back.close()
        first.close()
        again, _ = connect(a, b)  # takes the place of the first in both tables
        completion = again.write(a.register(CONTENT), 0, LENGTH, landing.remote, 0)
        with pytest.raises(ConnectionFailed, match="refused"):
            completion.wait(WAIT_S)
        assert memory == bytes(LENGTH)
        with pytest.raises(RegionError, match="closed"):
            b.register(memory, only_for=back)


@pytest.mark.parametrize(
    ("offset", "length"), [(6_000, 1), (5_999, 2), (2_000, 5_000), (1 << 40, 8), ((1 << 64) - 8, 4)]
)
def test_a_write_beyond_the_region_fails_and_changes_nothing_outside(pair, offset, length):
    outer = np.zeros(20_000, np.uint8)
    landing = pair.b.register(outer[7_000:13_000])
    lie = RemoteRegion(landing.remote.rkey, (1 << 64) - 1)
    _guess(pair, lie, offset, length)
    assert not outer[:7_000].any()
    assert not outer[13_000:].any()


def test_a_write_to_a_closed_region_fails_and_changes_nothing(pair):
    memory = bytearray(LENGTH)
    landing = pair.b.register(memory)
    remote = landing.remote
    landing.close()
    other = bytearray(LENGTH)
    second = pair.b.register(other)
    assert second.remote.rkey != remote.rkey, "a key is not given out again at once"
    _guess(pair, remote)
    assert memory == other == bytes(LENGTH)


def test_an_endpoint_with_a_refused_peer_serves_its_other_peers(pair):
    with Endpoint(["127.0.0.1"], profile=IMPATIENT, name="c") as c:
        to_b, to_c = c.create_connection(peer_name="b"), pair.b.create_connection(peer_name="c")
        to_b.connect(to_c.descriptor)
        to_c.connect(to_b.descriptor)
        _guess(pair, RemoteRegion(12345, LENGTH))
        target = bytearray(LENGTH)
        landing, region = pair.b.register(target), c.register(CONTENT)
        to_b.write(region, 0, LENGTH, landing.remote, 0).wait(WAIT_S)
        assert target == CONTENT


def test_a_region_closed_while_it_is_sent_from_stays_in_memory(pair):
    source = np.random.default_rng(3).integers(0, 256, 8 << 20, dtype=np.uint8)
    expected = source.copy()
    alive = weakref.ref(source)
    target = np.zeros_like(expected)
    region, landing = pair.a.register(source), pair.b.register(target)
    completion = pair.to_b.write(region, 0, region.length_bytes, landing.remote, 0, immediate=1)
    del source
    region.close()
    assert region.buffer is None
    assert pair.to_a.wait_immediate(WAIT_S) == 1
    completion.wait(WAIT_S)
    np.testing.assert_array_equal(target, expected)
    pair.a.register(b"x").close()  # the next use of the table lets go of it
    gc.collect()
    assert alive() is None


def test_a_region_nobody_refers_to_is_closed(pair):
    memory = bytearray(LENGTH)
    landing = pair.b.register(memory)
    remote = landing.remote
    del landing
    gc.collect()
    memory.extend(b"the buffer is free again")
    _guess(pair, remote)


def test_a_closed_region_cannot_be_written_from(pair):
    region, landing = pair.a.register(CONTENT), pair.b.register(bytearray(LENGTH))
    region.close()
    region.close()
    assert region.is_closed
    with pytest.raises(RegionError, match="closed"):
        pair.to_b.write(region, 0, 1, landing.remote, 0)


def test_a_region_of_another_endpoint_cannot_be_written_from(pair):
    foreign, landing = pair.b.register(CONTENT), pair.b.register(bytearray(LENGTH))
    with pytest.raises(RegionError, match="another endpoint"):
        pair.to_b.write(foreign, 0, 1, landing.remote, 0)


@pytest.mark.parametrize(
    ("offset", "length", "remote_offset", "said"),
    [
        (0, LENGTH + 1, 0, "bytes 0 to 40001 are outside the region of 40000 bytes"),
        (LENGTH, 1, 0, "outside the region of"),
        (-1, 10, 0, "outside the region of"),
        (0, -1, 0, "outside the region of"),
        (0, 10, LENGTH - 9, "bytes 39991 to 40001 are outside the remote region of 40000 bytes"),
        (0, 10, -1, "outside the remote region"),
    ],
)
def test_a_range_outside_a_region_is_refused_before_anything_is_sent(
    pair, offset, length, remote_offset, said
):
    region, landing = pair.a.register(CONTENT), pair.b.register(bytearray(LENGTH))
    with pytest.raises(RegionError, match=said):
        pair.to_b.write(region, offset, length, landing.remote, remote_offset)
    assert pair.to_b.stats().posted == 0


@pytest.mark.parametrize("immediate", [-1, 1 << 32])
def test_an_immediate_beyond_32_bits_is_refused(pair, immediate):
    region, landing = pair.a.register(CONTENT), pair.b.register(bytearray(LENGTH))
    with pytest.raises(ValueError, match=r"immediate = .* is not valid; valid is 0 to 4294967295"):
        pair.to_b.write(region, 0, 1, landing.remote, 0, immediate=immediate)


def test_a_full_table_of_regions_says_so_and_can_be_emptied():
    with Endpoint(profile=EndpointProfile(max_regions=3)) as endpoint:
        regions = [endpoint.register(b"x") for _ in range(3)]
        with pytest.raises(EngineError, match="all 3 regions are in use; raise max_regions"):
            endpoint.register(b"y")
        regions[1].close()
        endpoint.register(b"z")


def test_keys_differ_between_runs_of_the_same_table():
    keys = set()
    for _ in range(8):
        with Endpoint() as endpoint:
            keys.add(endpoint.register(b"x").remote.rkey)
    assert len(keys) >= 7


def test_keys_repeat_only_where_a_seed_is_set():
    profile = dataclasses.replace(IMPATIENT, seed=99)
    keys = set()
    for _ in range(2):
        with Endpoint(profile=profile) as endpoint:
            keys.add(endpoint.register(b"x").remote.rkey)
    assert len(keys) == 1
