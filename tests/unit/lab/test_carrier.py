"""One channel at work, stepped by hand: rate, queue, delay, order, marks and what goes wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farstep.fabric import HEADER_BYTES, Channel, ChannelState
from farstep.lab.buffers import BufferPool
from farstep.lab.carrier import Carrier

MS = 1_000_000
SIZE = 1000
ECT0 = 0b10


class Sink:
    """Records every datagram it is given, and the sends they came in."""

    def __init__(self):
        self.datagrams = []
        self.sends = []
        self.now_ns = 0

    def send(self, views, segment_bytes, count, tos):
        data = b"".join(views)
        pieces = [
            data[start : start + max(1, segment_bytes)]
            for start in range(0, max(1, len(data)), max(1, segment_bytes))
        ]
        assert len(pieces) == count <= 64
        assert len(data) <= 65_000 or count == 1
        self.sends.append(count)
        self.datagrams += [(self.now_ns, piece, tos) for piece in pieces]

    @property
    def times_ms(self):
        return [now_ns / MS for now_ns, _, _ in self.datagrams]

    @property
    def numbers(self):
        return [int.from_bytes(piece[:4], "big") for _, piece, _ in self.datagrams]


class Line:
    """A carrier with its clock."""

    def __init__(self, seed=1, **figures):
        self.pool = BufferPool(bytes_max=64 << 20)
        self.state = ChannelState(**figures)
        self.carrier = Carrier(Channel("p", 0, "a", "b"), self.state, seed, self.pool)
        self.sink = Sink()
        self.number = 0

    def offer(self, now_ns, count=1, size=SIZE, tail=None, tos=0):
        """Sends a burst of numbered datagrams, the last of `tail` bytes."""
        sizes = [size] * (count - 1) + [size if tail is None else tail]
        data = b""
        for length in sizes:
            data += self.number.to_bytes(4, "big").ljust(length, b"x")[:length]
            self.number += 1
        space = self.pool.space()
        space[: len(data)] = data
        chunk = self.pool.take(len(data))
        self.carrier.offer(now_ns, space[: len(data)], size, tos, self.sink, chunk)
        self.pool.release(chunk)

    def run(self, until_ns):
        """Releases packets at their exact times."""
        while (due_ns := self.carrier.next_due_ns) is not None and due_ns <= until_ns:
            self.sink.now_ns = due_ns
            self.carrier.release(due_ns)
        return self

    @property
    def counters(self):
        return self.carrier.counters


def test_packets_leave_one_serialisation_apart_after_the_delay():
    line = Line(rate_mbps=(SIZE + HEADER_BYTES) * 8 / 1000, delay_ms=5.0)  # one packet per millisecond
    line.offer(0, count=4)
    line.offer(10 * MS)
    line.run(60 * MS)
    assert line.sink.times_ms == [6, 7, 8, 9, 16]
    assert line.sink.numbers == [0, 1, 2, 3, 4]


def test_the_rate_counts_headers_and_a_shorter_last_datagram_takes_less_time():
    line = Line(rate_mbps=8.0)  # one byte per microsecond
    line.offer(0, count=3, size=972, tail=472)
    line.run(60 * MS)
    assert line.sink.times_ms == [1, 2, 2.5]


def test_without_a_rate_a_burst_stays_together():
    line = Line(delay_ms=3.0)
    line.offer(0, count=20)
    line.run(9 * MS)
    assert line.sink.times_ms == [3] * 20
    assert line.sink.sends == [20]


def test_equal_datagrams_of_several_bursts_leave_in_one_send_and_a_shorter_one_ends_it():
    line = Line(delay_ms=3.0)
    line.offer(0, count=5)
    line.offer(0, count=3, tail=10)
    line.offer(0, count=2)
    line.offer(0, count=1, size=SIZE + 1)
    line.run(9 * MS)
    assert line.sink.sends == [8, 2, 1]
    assert line.sink.numbers == list(range(11))


def test_no_send_is_larger_than_the_kernel_takes():
    line = Line(delay_ms=1.0)
    for _ in range(6):
        line.offer(0, count=15, size=4160)
        line.offer(0, count=60, size=100)
    line.run(9 * MS)
    assert max(line.sink.sends) <= 64
    assert line.sink.numbers == list(range(6 * 75))


def test_an_empty_datagram_is_carried():
    line = Line(delay_ms=1.0, rate_mbps=10.0)
    space = line.pool.space()
    line.carrier.offer(0, space[:0], 1, 0, line.sink, line.pool.take(0))
    line.run(9 * MS)
    assert [piece for _, piece, _ in line.sink.datagrams] == [b""]


def test_what_does_not_fit_the_queue_is_dropped_from_the_tail():
    line = Line(rate_mbps=8.0, queue_limit_bytes=5 * (SIZE + HEADER_BYTES))
    line.offer(0, count=8)
    line.run(60 * MS)
    assert line.sink.numbers == [0, 1, 2, 3, 4]
    assert line.counters.drops["queue"] == 3


def test_a_packet_larger_than_the_queue_passes_an_idle_line():
    line = Line(rate_mbps=8.0, queue_limit_bytes=100)
    line.offer(0, count=2)
    line.run(60 * MS)
    assert line.sink.numbers == [0]


def test_packets_that_find_the_queue_above_the_threshold_are_marked_if_ecn_capable():
    line = Line(rate_mbps=8.0, ecn_threshold_bytes=3 * (SIZE + HEADER_BYTES))
    line.offer(0, count=6, tos=0b1000 | ECT0)
    line.offer(0, count=1, tos=0)
    line.offer(0, count=2, tail=500, tos=0b01)
    line.run(60 * MS)
    assert [tos for _, _, tos in line.sink.datagrams] == [0b1010] * 4 + [0b1011] * 2 + [0] + [0b11] * 2
    assert line.counters.ecn_marked == 4


def test_marks_and_losses_in_one_burst_do_not_disturb_each_other():
    line = Line(rate_mbps=8.0, ecn_threshold_bytes=10_000, loss_percent=20.0)
    line.offer(0, count=40, tos=ECT0)
    line.run(600 * MS)
    assert {
        number for number, (_, _, tos) in zip(line.sink.numbers, line.sink.datagrams, strict=True) if tos == 3
    } == {number for number in line.sink.numbers if number >= 10}
    assert line.counters.drops["loss"] == 40 - len(line.sink.numbers) > 0


def test_lost_packets_take_up_capacity():
    line = Line(rate_mbps=(SIZE + HEADER_BYTES) * 8 / 1000, loss_percent=50.0)
    line.offer(0, count=40)
    line.run(60 * MS)
    assert line.sink.times_ms == [number + 1 for number in line.sink.numbers]
    assert 10 < len(line.sink.numbers) < 30


def test_losses_repeat_with_the_seed_and_differ_with_another():
    def survivors(seed, burst):
        line = Line(seed=seed, loss_percent=10.0)
        for _ in range(600 // burst):
            line.offer(0, count=burst)
        return line.run(MS).sink.numbers

    assert survivors(1, 1) == survivors(1, 15) == survivors(1, 60)
    assert survivors(1, 15) != survivors(2, 15)


def test_a_duplicate_follows_its_original_and_a_corrupted_packet_differs_by_one_bit():
    line = Line(duplicate_percent=30.0)
    line.offer(0, count=60)
    line.run(MS)
    assert line.sink.numbers == sorted(line.sink.numbers)
    assert len(line.sink.numbers) == 60 + line.counters.duplicated > 65
    line = Line(corrupt_percent=30.0)
    line.offer(0, count=60)
    line.run(MS)
    expected = [number.to_bytes(4, "big").ljust(SIZE, b"x") for number in range(60)]
    changed = [
        int.from_bytes(sent, "big") ^ int.from_bytes(got, "big")
        for sent, (_, got, _) in zip(expected, line.sink.datagrams, strict=True)
    ]
    assert {bits.bit_count() for bits in changed} == {0, 1}
    assert sum(map(bool, changed)) == line.counters.corrupted > 5


def test_reordered_packets_are_overtaken_by_others_only_for_the_stated_time():
    line = Line(rate_mbps=(SIZE + HEADER_BYTES) * 8 / 1000, reorder_percent=20.0, reorder_delay_ms=2.5)
    line.offer(0, count=60)
    line.run(90 * MS)
    arrival = dict(zip(line.sink.numbers, line.sink.times_ms, strict=True))
    late = [number for number, at in arrival.items() if at == number + 3.5]
    assert len(late) == line.counters.reordered > 4
    assert all(at == number + 1 for number, at in arrival.items() if number not in late)


def test_jitter_delays_within_its_bound_and_keeps_the_order():
    line = Line(delay_ms=2.0, jitter_ms=4.0)
    for at in range(100):
        line.offer(at * MS)
    line.run(200 * MS)
    delays = [at - number for number, at in zip(line.sink.numbers, line.sink.times_ms, strict=True)]
    assert line.sink.numbers == list(range(100))
    assert 2 <= min(delays) < 3
    assert 5 < max(delays) <= 6


def test_an_outage_loses_the_queue_but_not_what_already_propagates():
    line = Line(rate_mbps=(SIZE + HEADER_BYTES) * 8 / 1000, delay_ms=20.0)
    line.offer(0, count=10)
    line.carrier.set_state(replace(line.state, is_down=True), 4 * MS + MS // 2)
    line.offer(5 * MS, count=3)
    line.run(100 * MS)
    assert line.sink.numbers == [0, 1, 2, 3]
    assert line.counters.drops["outage"] == 9
    line.carrier.set_state(line.state, 101 * MS)
    line.offer(101 * MS)
    line.run(200 * MS)
    assert line.sink.times_ms[-1] == 122


def test_a_new_rate_serves_what_is_already_queued():
    line = Line(rate_mbps=(SIZE + HEADER_BYTES) * 8 / 1000, delay_ms=1.0)
    line.offer(0, count=6)
    line.carrier.set_state(replace(line.state, rate_mbps=line.state.rate_mbps / 2), 2 * MS)
    line.run(60 * MS)
    assert line.sink.times_ms == [2, 3, 5, 7, 9, 11]
    assert line.sink.numbers == [0, 1, 2, 3, 4, 5]


def test_a_shorter_delay_does_not_let_packets_overtake():
    line = Line(delay_ms=20.0)
    line.offer(0)
    line.carrier.set_state(replace(line.state, delay_ms=1.0), MS)
    line.offer(2 * MS)
    line.run(60 * MS)
    assert line.sink.numbers == [0, 1]


FIGURES = st.fixed_dictionaries(
    {},
    optional={
        "rate_mbps": st.sampled_from([2.0, 50.0, 1000.0]),
        "delay_ms": st.sampled_from([0.0, 7.0]),
        "jitter_ms": st.sampled_from([0.5]),
        "loss_percent": st.sampled_from([1.0, 30.0, 100.0]),
        "loss_burst_packets": st.sampled_from([5.0]),
        "reorder_percent": st.sampled_from([10.0]),
        "duplicate_percent": st.sampled_from([10.0]),
        "corrupt_percent": st.sampled_from([10.0]),
        "queue_limit_bytes": st.sampled_from([3000, 60_000]),
        "ecn_threshold_bytes": st.sampled_from([2000]),
        "is_down": st.booleans(),
    },
)
OFFERS = st.tuples(st.integers(0, 5 * MS), st.integers(1, 40), st.integers(4, 1500), st.integers(1, 4))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(OFFERS, FIGURES), max_size=25))
def test_packets_are_conserved_in_order_and_never_early(events):
    line = Line()
    now_ns, arrived_ns, may_overtake = 0, {}, False
    for event in events:
        if isinstance(event, dict):
            line.carrier.set_state(ChannelState(**event), now_ns)
            may_overtake |= "reorder_percent" in event
        else:
            pause_ns, count, size, tail = event
            now_ns += pause_ns
            line.run(now_ns)
            for number in range(line.number, line.number + count):
                arrived_ns[number] = now_ns
            line.offer(now_ns, count=count, size=size, tail=min(tail + 3, size), tos=ECT0)
        counters = line.counters
        assert counters.offered_packets + counters.duplicated == (
            counters.delivered_packets + sum(counters.drops.values()) + line.carrier.in_flight
        )
    line.run(10**12)
    assert line.carrier.in_flight == 0
    assert line.counters.delivered_packets == len(line.sink.datagrams)
    assert line.counters.delivered_bytes == sum(len(piece) for _, piece, _ in line.sink.datagrams)
    if line.counters.corrupted == 0:
        numbers = line.sink.numbers
        assert may_overtake or numbers == sorted(numbers)
        assert all(
            at >= arrived_ns[number] for number, (at, _, _) in zip(numbers, line.sink.datagrams, strict=True)
        )
    held = [chunk for chunk in [line.pool.current, *line.pool._free] if chunk.num_live]
    assert not held


def test_a_full_pool_gives_no_room_until_packets_have_left():
    pool = BufferPool(bytes_max=2 << 20)
    chunks = []
    while pool.space() is not None:
        chunks.append(pool.take(65_000))
    assert len(chunks) == 32
    for chunk in chunks:
        pool.release(chunk)
    assert pool.space() is not None


@pytest.mark.parametrize("size", [1, 4096, 65_507])
def test_room_is_page_aligned_so_that_the_kernel_copies_fast(size):
    pool = BufferPool()
    first = pool.space()
    pool.take(size)
    second = pool.space()
    first[:2] = b"12"
    assert second[:2] != b"12"
    assert pool.current.filled_bytes % 4096 == 0
