"""Ports that go down, paths that are denied, shares, counters and events."""

import dataclasses
import itertools
import random
import threading
import time

import numpy as np
import pytest

from farstep.engine import (
    ConnectionFailed,
    Endpoint,
    EndpointProfile,
    EngineError,
    EvState,
    InvalidFieldError,
    PortConfig,
)
from farstep.mrc.profiles import CongestionProfile, EvProfile
from tests.integration.engine_pair import IMPATIENT, WAIT_S, Pair, connect, engine_pair

PART_BYTES = 2 << 20


def until(condition, what):
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not come"
        time.sleep(0.01)


class Traffic(threading.Thread):
    """Writes from a to b all the time and checks every byte at the end."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.pair = pair
        self.source, self.target, self.region, self.landing = pair.buffers(PART_BYTES)
        self.done = 0
        self.failure: Exception | None = None
        self.is_stopping = False

    def run(self) -> None:
        try:
            for n in itertools.count():
                write = self.pair.to_b.write(self.region, 0, PART_BYTES, self.landing.remote, 0, immediate=n)
                assert self.pair.to_a.wait_immediate(WAIT_S) == n
                write.wait(WAIT_S)
                self.done += 1
                if self.is_stopping:
                    return
        except Exception as error:
            self.failure = error

    def more(self, count: int = 5) -> None:
        """Waits for some more writes."""
        goal = self.done + count
        until(lambda: self.done >= goal or self.failure, f"{count} more writes")
        assert self.failure is None

    def stop(self) -> None:
        self.is_stopping = True
        self.join(WAIT_S)
        assert self.failure is None
        np.testing.assert_array_equal(self.source, self.target)


@pytest.mark.parametrize("end", ["a", "b"])
def test_a_port_that_goes_down_is_left_by_both_ends_and_taken_back(end):
    with engine_pair(["127.0.0.1"] * 4) as pair:
        traffic = Traffic(pair)
        traffic.start()
        traffic.more()
        endpoint = pair.a if end == "a" else pair.b
        endpoint.set_port_up(2, is_up=False)
        assert not endpoint.stats().ports[2].up
        until(lambda: pair.to_b.stats().planes[2].state is EvState.DENIED, "a's mask")
        until(lambda: pair.to_a.stats().planes[2].state is EvState.DENIED, "b's mask")
        traffic.more(2)
        before = pair.to_b.stats().planes
        traffic.more()
        after = pair.to_b.stats().planes
        sent = [late.tx_bytes - early.tx_bytes for early, late in zip(before, after, strict=True)]
        assert sent[2] == 0
        assert min(sent[0], sent[1], sent[3]) > PART_BYTES // 8
        endpoint.set_port_up(2, is_up=True)
        until(lambda: pair.to_b.stats().planes[2].usable and pair.to_a.stats().planes[2].usable, "the port")
        before_bytes = pair.to_b.stats().planes[2].tx_bytes
        until(lambda: pair.to_b.stats().planes[2].tx_bytes > before_bytes, "traffic on the port")
        traffic.stop()


def test_a_connection_without_any_port_left_fails_and_says_why():
    with engine_pair(["127.0.0.1"] * 2, profile=IMPATIENT) as pair:
        waiters = []

        def wait():
            with pytest.raises(ConnectionFailed) as caught:
                pair.to_b.wait_immediate(WAIT_S)
            waiters.append(str(caught.value))

        thread = threading.Thread(target=wait)
        thread.start()
        for port in (0, 1):
            pair.a.set_port_up(port, is_up=False)
        thread.join(WAIT_S)
        assert waiters
        assert waiters[0].endswith("no port is left that both ends can use")


def test_a_port_may_be_down_before_the_connection_is_made():
    with Endpoint(["127.0.0.1"] * 2, name="a") as a, Endpoint(["127.0.0.1"] * 2, name="b") as b:
        a.set_port_up(0, is_up=False)
        pair = Pair(a, b, *connect(a, b))
        content = random.Random(1).randbytes(1 << 20)
        assert pair.send(content).tobytes() == content
        assert pair.to_b.stats().planes[0].tx_bytes == 0


def test_set_port_up_twice_is_once():
    with engine_pair() as pair:
        for is_up in (True, False, False, True, True):
            pair.a.set_port_up(1, is_up=is_up)
        assert pair.send(b"x" * 10_000).tobytes() == b"x" * 10_000


@pytest.mark.parametrize("index", [-1, 2, 99])
def test_a_port_that_does_not_exist_is_refused(index):
    with engine_pair() as pair:
        for call in (
            lambda: pair.a.set_port_up(index, is_up=False),
            lambda: pair.a.set_public_addresses(index, {}),
        ):
            with pytest.raises(
                InvalidFieldError, match=f"port_index = {index} is not valid; valid is 0 to 1"
            ):
                call()


def test_a_denied_path_carries_nothing_and_comes_back():
    profile = EndpointProfile(ev=EvProfile(active_per_plane=4, backup_per_plane=0), burst_segments=1)
    with engine_pair(["127.0.0.1"], profile=profile) as pair:
        content = random.Random(2).randbytes(1 << 20)
        pair.send(content)
        pair.to_b.deny_path(1)
        before = pair.to_b.stats(with_paths=True).paths
        assert before[1].state is EvState.DENIED
        assert pair.send(content).tobytes() == content
        after = pair.to_b.stats(with_paths=True).paths
        sent = [late.tx_packets - early.tx_packets for early, late in zip(before, after, strict=True)]
        assert sent[1] == 0
        assert min(sent[0], sent[2], sent[3]) > 0
        pair.to_b.deny_path(1, is_denied=False)

        def carries():
            pair.send(content)
            return pair.to_b.stats(with_paths=True).paths[1].tx_packets > after[1].tx_packets

        until(carries, "the path")


def test_denying_a_path_that_does_not_exist_is_refused():
    with engine_pair() as pair:
        for ev in (-1, 24, 70_000):
            with pytest.raises(InvalidFieldError, match=f"ev_index = {ev} is not valid; valid is 0 to 23"):
                pair.to_b.deny_path(ev)


def test_path_events_tell_of_denial_and_return():
    with engine_pair(["127.0.0.1"]) as pair:
        pair.send(b"x" * 10_000)
        pair.a.take_path_events()
        start_ns = time.monotonic_ns()
        pair.to_b.deny_path(3)
        pair.to_b.deny_path(3, is_denied=False)
        events = [event for event in pair.a.take_path_events() if event.ev == 3]
        assert events[0].state is EvState.DENIED
        assert events[-1].state is not EvState.DENIED
        assert all(event.peer_name == "b" and event.plane == 0 for event in events)
        assert start_ns <= events[0].at_ns <= events[-1].at_ns <= time.monotonic_ns()
        assert not [event for event in pair.a.take_path_events() if event.ev == 3]


def test_a_share_by_capacity_fills_a_fast_port_more():
    ports = [PortConfig(plane=0, rate_mbps=400), PortConfig(plane=1, rate_mbps=100)]
    profile = EndpointProfile(
        mtu_bytes=1350, ev=EvProfile(active_per_plane=8, backup_per_plane=4, share="capacity")
    )
    content = random.Random(3).randbytes(16 << 20)
    with engine_pair(ports, profile=profile) as pair:
        assert pair.send(content).tobytes() == content
        fast, slow = (port.tx_bytes for port in pair.a.stats().ports)
        assert fast > 2 * slow


def test_a_port_rate_bounds_what_leaves_by_it():
    content = random.Random(4).randbytes(4 << 20)
    with engine_pair([PortConfig(rate_mbps=100)]) as pair:
        start_s = time.monotonic()
        assert pair.send(content).tobytes() == content
        rate_mbps = len(content) * 8 / (time.monotonic() - start_s) / 1e6
        assert rate_mbps < 125


def test_counters_add_up():
    with engine_pair(profile=EndpointProfile(mtu_bytes=1000, seed=9)) as pair:
        *_, region, landing = pair.buffers(100_000)
        for n in range(3):
            pair.to_b.write(region, 0, 100_000, landing.remote, 0, immediate=n).wait(WAIT_S)
            pair.to_a.wait_immediate(WAIT_S)
        sender, receiver = pair.to_b.stats(with_paths=True), pair.to_a.stats()
        assert sender.posted == sender.completed == receiver.messages_received == 3
        assert receiver.immediates_received == 3
        assert receiver.rx_packets == 300
        assert receiver.rx_bytes == 300_000
        assert sender.tx_packets == 300 + sender.retransmitted_packets
        assert sum(path.tx_packets for path in sender.paths) == sender.tx_packets
        assert sum(path.tx_bytes for path in sender.paths) == sum(plane.tx_bytes for plane in sender.planes)
        assert sender.inflight_bytes == sender.congestion.inflight_bytes == 0
        assert sender.srtt_ns > 0
        assert receiver.sacks_sent >= sender.sacks_received > 0
        assert len(sender.planes) == 2
        assert {plane.state for plane in sender.planes} == {EvState.GOOD}
        at_a, at_b = pair.a.stats(), pair.b.stats()
        assert at_a.tx_packets >= 300
        assert sum(port.tx_bytes for port in at_a.ports) == at_a.tx_bytes
        assert sum(port.rx_bytes for port in at_b.ports) == at_b.rx_bytes
        assert at_b.rx_datagrams >= 300
        assert sum(at_b.rejected.values()) == at_b.unknown_qpn == 0 or at_b.unknown_qpn <= 2
        assert dataclasses.asdict(at_a).keys() == dataclasses.asdict(at_b).keys()


def test_counters_of_a_connection_not_opened_are_zero():
    with Endpoint() as endpoint:
        stats = endpoint.create_connection().stats(with_paths=True)
        assert stats.tx_packets == stats.posted == 0
        assert stats.planes == stats.paths == ()


def test_without_congestion_control_it_still_carries():
    profile = EndpointProfile(congestion=CongestionProfile(algorithm="none", max_cwnd_bytes=500_000))
    content = random.Random(5).randbytes(4 << 20)
    with engine_pair(profile=profile) as pair:
        assert pair.send(content).tobytes() == content


def test_ends_that_disagree_on_the_checksum_are_told():
    with Endpoint() as a, Endpoint(profile=EndpointProfile(icrc=False)) as b:
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        with pytest.raises(EngineError, match="to 'b': one end has icrc on, the other off"):
            to_b.connect(to_a.descriptor)


def test_ends_of_different_address_families_are_told():
    with Endpoint(["127.0.0.1"]) as a, Endpoint(["::1"]) as b:
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        with pytest.raises(EngineError, match="IPv4 addresses only, the other IPv6"):
            to_b.connect(to_a.descriptor)


def test_garbage_instead_of_a_descriptor_leaves_the_connection_usable():
    with engine_pair(["127.0.0.1"]) as pair:
        to_b, to_a = pair.a.create_connection(peer_name="b"), pair.b.create_connection(peer_name="a")
        with pytest.raises(EngineError, match="the peer descriptor cannot be read"):
            to_b.connect(b"garbage")
        to_b.connect(to_a.descriptor)
        to_a.connect(to_b.descriptor)
        with pytest.raises(EngineError, match="connected already"):
            to_b.connect(to_a.descriptor)
        to_a.close()
        with pytest.raises(EngineError, match="it is closed"):
            to_a.connect(to_b.descriptor)


def test_a_peer_at_another_site_is_reached_by_its_public_address():
    with (
        Endpoint(["127.0.0.1"], name="a", site="x") as a,
        Endpoint(["127.0.0.1"], name="b", site="y") as b,
        Endpoint(["127.0.0.1"], name="wrong", site="y") as wrong,
    ):
        # Descriptors name the wrong endpoint's port as b's; only the public address leads to b.
        b_port = b.ports[0]
        wrong.set_public_addresses(0, {"x": b_port, "elsewhere": ("127.0.0.1", 9)})
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        misleading = to_a.descriptor.replace(str(b_port[1]).encode(), str(wrong.ports[0][1]).encode(), 1)
        misleading = misleading.replace(b'"public": {}', b'"public": {"*": ["127.0.0.1", %d]}' % b_port[1])
        to_b.connect(misleading)
        to_a.connect(to_b.descriptor)
        pair = Pair(a, b, to_b, to_a)
        content = random.Random(6).randbytes(300_000)
        assert pair.send(content).tobytes() == content
        assert wrong.stats().rx_datagrams == 0


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ([], "ports = '0 ports' is not valid; valid is 1 to 32 ports"),
        (["127.0.0.1"] * 33, "33 ports"),
        (["127.0.0.1:99999"], "address = '127.0.0.1:99999' is not valid"),
        (["not an address"], "a name or number that resolves"),
    ],
)
def test_impossible_ports_are_named(ports, said):
    with pytest.raises(InvalidFieldError, match=said):
        Endpoint(ports)


def test_an_address_of_another_host_cannot_be_bound():
    with pytest.raises(EngineError, match=r"cannot open the ports 192\.0\.2\.1"):
        Endpoint(["192.0.2.1"])
