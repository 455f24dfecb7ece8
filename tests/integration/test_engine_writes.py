"""Writes over real sockets: every size, many at once, both ways, whatever the settings."""

import dataclasses
import mmap
import random
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farstep.engine import Endpoint, EndpointProfile, PortConfig
from farstep.mrc.profiles import EvProfile
from tests.integration.engine_pair import IMPATIENT, WAIT_S, connect, engine_pair

MTU = 1024


@pytest.fixture(scope="module")
def pair():
    with engine_pair(profile=EndpointProfile(mtu_bytes=MTU, seed=1)) as made:
        yield made


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 63, 64, 65, MTU - 1, MTU, MTU + 1, 2 * MTU, 2 * MTU + 7])
def test_a_write_of_any_length_arrives(pair, length):
    content = random.Random(length).randbytes(length)
    assert pair.send(content).tobytes() == content


@pytest.mark.parametrize("length", [100_003, (3 << 20) + 1])
def test_a_long_write_arrives(pair, length):
    content = random.Random(length).randbytes(length)
    assert pair.send(content).tobytes() == content


def test_a_write_without_immediate_raises_none(pair):
    content = b"plain" * 1000
    assert pair.send(content, immediate=None).tobytes() == content
    assert pair.to_a.poll_immediate() is None


@pytest.mark.parametrize("immediate", [0, 1, 0x8000_0000, 0xFFFF_FFFF])
def test_an_immediate_carries_32_bits(pair, immediate):
    pair.send(b"x", immediate=immediate)


def test_a_write_touches_only_its_own_range(pair):
    source, target, region, landing = pair.buffers(10_000)
    pair.to_b.write(region, 17, 5_000, landing.remote, 1_003, immediate=1)
    pair.to_a.wait_immediate(WAIT_S)
    expected = np.zeros_like(target)
    expected[1_003:6_003] = source[17:5_017]
    np.testing.assert_array_equal(target, expected)


def test_numpy_numbers_serve_as_offsets_and_immediates(pair):
    source, target, region, landing = pair.buffers(1_000)
    at, length = np.int64(8), np.uint32(500)
    pair.to_b.write(region, at, length, landing.remote, at, immediate=np.uint32(9))
    assert pair.to_a.wait_immediate(WAIT_S) == 9
    np.testing.assert_array_equal(target[8:508], source[8:508])


def test_more_writes_than_the_send_queue_holds_arrive_in_order():
    count, size = 500, 700
    profile = EndpointProfile(send_queue=16, wimm=4, seed=2)
    with engine_pair(profile=profile) as pair:
        source, target, region, landing = pair.buffers(count * size)
        completions = [
            pair.to_b.write(region, i * size, size, landing.remote, i * size, immediate=i)
            for i in range(count)
        ]
        for i in range(count):
            assert pair.to_a.wait_immediate(WAIT_S) == i
            end = (i + 1) * size
            np.testing.assert_array_equal(target[:end], source[:end])
        completions[-1].wait(WAIT_S)
        assert all(completion.done() for completion in completions), "they complete in order"


def test_immediates_wait_for_a_slow_reader():
    # Eight fit; the rest is held back for far longer than a silent peer would be given.
    with engine_pair(profile=dataclasses.replace(IMPATIENT, immediate_queue=8)) as pair:
        *_, region, landing = pair.buffers(64)
        completions = [pair.to_b.write(region, 0, 64, landing.remote, 0, immediate=i) for i in range(50)]
        time.sleep(0.6)
        assert not completions[-1].done()
        for i in range(50):
            assert pair.to_a.wait_immediate(WAIT_S) == i
        completions[-1].wait(WAIT_S)


def test_both_directions_carry_at_once(pair):
    length = 4 << 20
    first, at_b, region_a, landing_b = pair.buffers(length)
    second = first[::-1].copy()
    at_a = np.zeros_like(first)
    region_b, landing_a = pair.b.register(second), pair.a.register(at_a)
    one = pair.to_b.write(region_a, 0, length, landing_b.remote, 0, immediate=1)
    two = pair.to_a.write(region_b, 0, length, landing_a.remote, 0, immediate=2)
    assert pair.to_a.wait_immediate(WAIT_S) == 1
    assert pair.to_b.wait_immediate(WAIT_S) == 2
    one.wait(WAIT_S)
    two.wait(WAIT_S)
    np.testing.assert_array_equal(at_b, first)
    np.testing.assert_array_equal(at_a, second)


def test_several_connections_of_a_pair_of_endpoints_do_not_mix():
    with engine_pair() as pair:
        ways = [(pair.to_b, pair.to_a)] + [connect(pair.a, pair.b) for _ in range(4)]
        length = 300_000
        sources = [np.full(length, k + 1, np.uint8) for k in range(len(ways))]
        targets = [np.zeros(length, np.uint8) for _ in ways]
        regions = [pair.a.register(source) for source in sources]
        landings = [pair.b.register(target) for target in targets]
        for k, (to_b, _) in enumerate(ways):
            to_b.write(regions[k], 0, length, landings[k].remote, 0, immediate=100 + k)
        for k, (_, to_a) in enumerate(ways):
            assert to_a.wait_immediate(WAIT_S) == 100 + k
            assert (targets[k] == k + 1).all()


def test_several_endpoints_exchange_in_a_ring():
    count, length = 4, 200_000
    endpoints = [Endpoint(name=str(i)) for i in range(count)]
    try:
        sources = [np.full(length, i + 1, np.uint8) for i in range(count)]
        targets = [np.zeros(length, np.uint8) for _ in range(count)]
        ways = [connect(endpoints[i], endpoints[(i + 1) % count]) for i in range(count)]
        regions = [e.register(s) for e, s in zip(endpoints, sources, strict=True)]
        landings = [e.register(t) for e, t in zip(endpoints, targets, strict=True)]
        for i, (forward, _) in enumerate(ways):
            forward.write(regions[i], 0, length, landings[(i + 1) % count].remote, 0, immediate=i)
        for i, (_, backward) in enumerate(ways):
            assert backward.wait_immediate(WAIT_S) == i
            assert (targets[(i + 1) % count] == i + 1).all()
    finally:
        for endpoint in endpoints:
            endpoint.close()


@pytest.mark.parametrize(
    ("mtu_bytes", "burst"), [(64, 1), (64, 64), (1350, 15), (4096, 1), (4096, 15), (9000, 4), (60_000, 15)]
)
def test_any_packet_size_and_burst_length_carries(mtu_bytes, burst):
    profile = EndpointProfile(mtu_bytes=mtu_bytes, burst_segments=burst, seed=4)
    content = random.Random(mtu_bytes).randbytes(250_001)
    with engine_pair(profile=profile) as pair:
        assert pair.send(content).tobytes() == content


def test_the_smaller_packet_size_of_the_two_ends_is_used():
    content = random.Random(5).randbytes(50_000)
    with engine_pair(
        profile=EndpointProfile(mtu_bytes=500), profile_b=EndpointProfile(mtu_bytes=8000)
    ) as pair:
        assert pair.send(content).tobytes() == content
        assert pair.to_b.stats().tx_packets >= 100


def test_it_carries_without_the_invariant_checksum():
    content = random.Random(6).randbytes(400_000)
    with engine_pair(profile=EndpointProfile(icrc=False)) as pair:
        assert pair.send(content).tobytes() == content


def test_it_carries_over_ipv6():
    content = random.Random(7).randbytes(400_000)
    with engine_pair(["[::1]:0", "::1"]) as pair:
        assert pair.send(content).tobytes() == content
        assert {host for host, _ in pair.a.ports} == {"::1"}


def test_ports_are_joined_by_their_planes():
    ports_a = [PortConfig(plane=0), PortConfig(plane=1), PortConfig(plane=5)]
    ports_b = [PortConfig(plane=5), PortConfig(plane=0)]
    content = random.Random(8).randbytes(3 << 20)
    with engine_pair(ports_a, ports_b=ports_b) as pair:
        assert pair.send(content).tobytes() == content
        links = {(p.local_port, p.remote_port) for p in pair.to_b.stats().planes}
        assert links == {(0, 1), (2, 0)}
        by_port = [port.tx_bytes for port in pair.a.stats().ports]
        assert by_port[1] == 0
        assert by_port[0] > len(content) // 4
        assert by_port[2] > len(content) // 4


def test_ports_without_a_common_plane_are_all_joined():
    content = random.Random(9).randbytes(300_000)
    with engine_pair([PortConfig(plane=1)], ports_b=[PortConfig(plane=2), PortConfig(plane=3)]) as pair:
        assert pair.send(content).tobytes() == content
        assert len(pair.to_b.stats().planes) == 2


def test_many_ports_share_the_load_equally():
    content = random.Random(10).randbytes(8 << 20)
    with engine_pair(["127.0.0.1"] * 8, profile=EndpointProfile(mtu_bytes=4096, burst_segments=1)) as pair:
        assert pair.send(content).tobytes() == content
        sent = [port.tx_bytes for port in pair.a.stats().ports]
        assert min(sent) > 0.5 * max(sent)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(
        st.tuples(
            st.integers(0, 9_999),
            st.integers(0, 9_999),
            st.integers(0, 9_999),
            st.none() | st.integers(0, 2**32 - 1),
        ),
        min_size=1,
        max_size=30,
    ),
    salt=st.integers(0, 255),
)
def test_any_sequence_of_writes_leaves_what_a_copy_would(pair, writes, salt):
    # Two writes in flight may land on the same bytes in any order, so each gets a lane of its own at the peer.
    size = 10_000
    source = np.random.default_rng(salt).integers(0, 256, size, dtype=np.uint8)
    target = np.full(size * len(writes), salt, np.uint8)
    expected = target.copy()
    with pair.a.register(source) as region, pair.b.register(target) as landing:
        completions = []
        for lane, (offset, length, at, immediate) in enumerate(writes):
            length = min(length, size - offset, size - at)
            where = lane * size + at
            completions.append(
                pair.to_b.write(region, offset, length, landing.remote, where, immediate=immediate)
            )
            expected[where : where + length] = source[offset : offset + length]
        for immediate in [w[3] for w in writes if w[3] is not None]:
            assert pair.to_a.wait_immediate(WAIT_S) == immediate
        for completion in completions:
            completion.wait(WAIT_S)
        np.testing.assert_array_equal(target, expected)
        assert pair.to_a.poll_immediate() is None


def test_hundreds_of_paths_are_one_connection():
    profile = EndpointProfile(ev=EvProfile(active_per_plane=64, backup_per_plane=32), burst_segments=1)
    content = random.Random(11).randbytes(2 << 20)
    with engine_pair(profile=profile) as pair:
        assert pair.send(content).tobytes() == content
        paths = pair.to_b.stats(with_paths=True).paths
        assert len(paths) == 192
        assert sum(path.tx_packets > 0 for path in paths) > 60


@pytest.mark.slow
def test_a_write_of_more_than_one_gibibyte_is_cut_and_arrives_whole():
    # Anonymous shared memory costs pages only where it is written: the target alone.
    length = (1 << 30) + 123_457
    source, target = mmap.mmap(-1, length), mmap.mmap(-1, length)
    marks = [0, 1, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, length - 1]
    for i, at in enumerate(marks):
        source[at] = i + 1
    with engine_pair() as pair:
        region, landing = pair.a.register(source), pair.b.register(target)
        completion = pair.to_b.write(region, 0, length, landing.remote, 0, immediate=77)
        assert pair.to_a.wait_immediate(110) == 77
        completion.wait(WAIT_S)
        assert pair.to_b.stats().posted == 2, "1 GiB is the most of one message"
        assert [target[at] for at in marks] == [1, 2, 3, 4, 5, 6]
        assert np.count_nonzero(np.frombuffer(target, np.uint8)) == len(marks)
        region.close()
        landing.close()
