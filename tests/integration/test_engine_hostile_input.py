"""Datagrams from strangers, damaged packets and forgeries while a transfer runs."""

import random
import socket
import threading
import time

import numpy as np
import pytest

from farstep import _native
from farstep.engine import EndpointProfile
from tests.integration.engine_pair import WAIT_S, engine_pair


class Tap(threading.Thread):
    """Forwards datagrams to an endpoint's port one by one and keeps copies, damaging nothing."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(0.05)
        self.target = target
        self.seen: list[bytes] = []
        self.is_done = False

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.socket.getsockname()
        return host, port

    def run(self) -> None:
        while not self.is_done:
            try:
                datagram = self.socket.recv(65_536)
            except TimeoutError:
                continue
            if len(self.seen) < 4_000:
                self.seen.append(datagram)
            self.socket.sendto(datagram, self.target)
        self.socket.close()


def record_packets(length: int = 300_000) -> list[bytes]:
    """Real packets of a connection that is gone, as an eavesdropper would have them."""
    from farstep.engine import Endpoint

    profile = EndpointProfile(mtu_bytes=1024, burst_segments=1)
    with (
        Endpoint(["127.0.0.1"], profile=profile, name="a", site="x") as a,
        Endpoint(["127.0.0.1"], profile=profile, name="b", site="y") as b,
    ):
        tap = Tap(b.ports[0])
        tap.start()
        b.set_public_addresses(0, {"*": tap.address})
        to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
        to_b.connect(to_a.descriptor)
        to_a.connect(to_b.descriptor)
        region, landing = a.register(bytes(length)), b.register(bytearray(length))
        to_b.write(region, 0, length, landing.remote, 0, immediate=1).wait(WAIT_S)
        tap.is_done = True
        tap.join()
    assert len(tap.seen) > 100
    return tap.seen


@pytest.fixture(scope="module")
def packets():
    return record_packets()


def damaged(packets: list[bytes], rng: random.Random) -> bytes:
    """One datagram nobody should accept."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.choice([0, 1, 3, 11, 12, 40, 100, 1500, 9000]))
    packet = bytearray(rng.choice(packets))
    if kind == 1:
        del packet[rng.randrange(len(packet)) :]
    elif kind == 2:
        for _ in range(rng.randint(1, 4)):
            packet[rng.randrange(len(packet))] ^= 1 << rng.randrange(8)
    elif kind == 3:
        packet += rng.randbytes(rng.randint(1, 50))
    else:
        packet[0] = rng.randrange(256)
    return bytes(packet)


def test_a_transfer_stays_exact_under_a_hail_of_garbage(packets):
    rng = random.Random(20)
    length = 24 << 20
    with engine_pair(["127.0.0.1"], profile=EndpointProfile(seed=5)) as pair:
        source, target, region, landing = pair.buffers(length)
        canary_before = target.copy()
        hail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sent = 0
        completions = []
        for k in range(4):
            part = length // 4
            completions.append(pair.to_b.write(region, k * part, part, landing.remote, k * part, immediate=k))
            for _ in range(400):
                for port in (pair.b.ports[0], pair.a.ports[0]):
                    hail.sendto(damaged(packets, rng), port)
                    sent += 1
            time.sleep(0.01)
        hail.close()
        for k in range(4):
            assert pair.to_a.wait_immediate(WAIT_S) == k
        completions[-1].wait(WAIT_S)
        assert not np.array_equal(canary_before, target)
        np.testing.assert_array_equal(target, source)
        for endpoint in (pair.a, pair.b):
            stats = endpoint.stats()
            rejected = sum(stats.rejected.values()) + stats.unknown_qpn
            assert rejected > sent // 2 * 0.8
            assert len([reason for reason, count in stats.rejected.items() if count]) >= 3, stats.rejected


def _reasons(datagrams: list[bytes]) -> tuple[dict[str, int], int]:
    with engine_pair(["127.0.0.1"]) as pair:
        hail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        pair.send(b"once both ends know each other")
        before = pair.b.stats()
        for datagram in datagrams:
            hail.sendto(datagram, pair.b.ports[0])
        hail.close()
        end_s = time.monotonic() + 5
        while pair.b.stats().rx_datagrams - before.rx_datagrams < len(datagrams):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        pair.send(b"still alive")
        stats = pair.b.stats()
        return {
            reason: n for reason, n in stats.rejected.items() if n
        }, stats.unknown_qpn - before.unknown_qpn


def test_each_reason_is_counted(packets):
    data = max(packets, key=len)
    flipped = bytearray(data)
    flipped[-1] ^= 1
    strange = bytes([0xFF]) + data[1:]
    reasons, unknown = _reasons([b"abc", bytes(flipped), strange, data[:-8] + data[-4:], data])
    assert unknown == 1, "a packet of a connection that is gone is whole, but nobody's"
    assert reasons["too_short"] == 1
    assert reasons["unknown_opcode"] == 1
    assert reasons["bad_icrc"] + reasons.get("bad_length", 0) == 2
    assert sum(reasons.values()) == 4


def test_a_forged_packet_with_a_good_checksum_writes_nothing(packets):
    # Everything right but the queue pair number, guessed a thousand times.
    rng = random.Random(30)
    data = max(packets, key=len)
    with engine_pair(["127.0.0.1"], profile=EndpointProfile(seed=6)) as pair:
        memory = bytearray(1 << 16)
        landing = pair.b.register(memory)
        own_qpns = {int(repr(pair.to_a).split()[1].rstrip(">"), 16)}
        hail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(1000):
            qpn = rng.randrange(1 << 24)
            if qpn in own_qpns:
                continue
            forged = bytearray(data[:-4])
            forged[5:8] = qpn.to_bytes(3, "big")
            crc = _native.wire.icrc(_native.wire.icrc_seed_plain(), bytes(forged))
            hail.sendto(bytes(forged) + crc.to_bytes(4, "little"), pair.b.ports[0])
        hail.close()
        pair.send(b"still alive")
        assert memory == bytes(1 << 16)
        assert landing.length_bytes == 1 << 16
        assert pair.b.stats().unknown_qpn >= 500


def test_trimmed_looking_datagrams_do_no_harm(packets):
    rng = random.Random(40)
    with engine_pair(["127.0.0.1"], profile=EndpointProfile(seed=8)) as pair:
        hail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for dscp in (12, 16, 63):
            hail.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
            for _ in range(200):
                packet = rng.choice(packets)
                hail.sendto(packet[: rng.randrange(len(packet) + 1)], pair.b.ports[0])
        hail.close()
        content = rng.randbytes(1 << 20)
        assert pair.send(content).tobytes() == content
