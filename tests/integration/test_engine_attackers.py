"""What somebody on the line, or a peer that turns on us, can do to a protected connection: nothing but lose packets."""

import random
import resource
import socket
import time
from dataclasses import replace

import numpy as np
import pytest

from farstep import _native
from farstep.engine import ConnectionFailed, Endpoint, EndpointStats, RemoteRegion
from tests.integration.engine_pair import IMPATIENT, WAIT_S, Pair, engine_pair
from tests.integration.wiretap import SMALL, identities, joined, secured, tapped_pair

TRAILER_BYTES = 24
CONTENT = random.Random(77).randbytes(60_000)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return identities(tmp_path_factory.mktemp("certificates"), "alice", "bob", "mallory")


@pytest.fixture(params=["encrypt", "authenticate"])
def ends(people, request):
    with tapped_pair(*(secured(SMALL, people[name], request.param) for name in ("alice", "bob"))) as made:
        yield made


def rejections(endpoint: Endpoint) -> dict[str, int]:
    return {reason: count for reason, count in endpoint.stats().rejected.items() if count}


def refused(stats: EndpointStats) -> int:
    return stats.rejected["forged"] + stats.rejected["replayed"]


def arrive(endpoint: Endpoint, count: int, send) -> None:
    """Sends hostile datagrams, a few at a time so that none is lost, and returns when all were looked at."""
    before, end_s = endpoint.stats().rx_datagrams, time.monotonic() + WAIT_S
    for n in range(count):
        send(n)
        while endpoint.stats().rx_datagrams - before < n - 50:
            assert time.monotonic() < end_s
            time.sleep(0.001)
    while endpoint.stats().rx_datagrams - before < count:
        assert time.monotonic() < end_s
        time.sleep(0.001)


def still_works(pair: Pair) -> None:
    assert pair.send(CONTENT).tobytes() == CONTENT
    assert pair.to_b.is_open
    assert pair.to_a.is_open


def test_replayed_packets_change_nothing(ends):
    pair, to_b, to_a = ends
    source, target, region, landing = pair.buffers(60_000)
    pair.to_b.write(region, 0, len(source), landing.remote, 0, immediate=5).wait(WAIT_S)
    assert pair.to_a.wait_immediate(WAIT_S) == 5
    assert np.array_equal(source, target)
    target[:] = 99  # the buffer is ours again
    for tap, end in ((to_b, pair.b), (to_a, pair.a)):
        seen = list(tap.seen)
        arrive(end, len(seen), lambda n, tap=tap, seen=seen: tap.send(seen[n]))
        # All but what came before the other end had its keys, and was lost then.
        assert rejections(end)["replayed"] >= len(seen) - 2
        assert "forged" not in rejections(end)
    assert (target == 99).all()
    assert pair.to_a.poll_immediate() is None
    still_works(pair)


def damaged(datagram: bytes, how: int, rng: random.Random) -> bytes:
    data = bytearray(datagram)
    if how == 0:  # a bit anywhere but in BTH byte 4, which switches may change
        at = rng.choice([i for i in range(len(data)) if i != 4])
        data[at] ^= 1 << rng.randrange(8)
    elif how == 1:  # cut short
        del data[rng.randrange(len(data)) :]
    elif how == 2:  # longer, up to the most a datagram can have
        data[-TRAILER_BYTES:-TRAILER_BYTES] = bytes(4 * rng.choice([1, 100, 15_000]))
    elif how == 3:  # a packet number far ahead
        data[-TRAILER_BYTES:-16] = rng.getrandbits(64).to_bytes(8)
    elif how == 4:  # marked as unprotected
        data[1] &= 0xF0
    else:  # another opcode
        data[0] = rng.choice([0xC6, 0xC8, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE, 0x55])
        data[0] ^= 0x80 * (data[0] == datagram[0])
    return bytes(data)


def test_changed_packets_are_dropped_while_data_flows(people):
    rng = random.Random(5)
    with tapped_pair(*(secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))) as (
        pair,
        to_b,
        to_a,
    ):
        sent = {"count": 0}

        def meddle(tap):
            def lets_pass(datagram):
                for how in range(6):
                    tap.send(damaged(datagram, how, rng))
                sent["count"] += 6
                return True

            return lets_pass

        to_b.lets_pass, to_a.lets_pass = meddle(to_b), meddle(to_a)
        still_works(pair)
        assert sent["count"] > 400
        found = rejections(pair.b)
        assert found["forged"] > 100
        assert found["unprotected"] > 20
        # A damaged packet that came before the genuine one did not take its place.
        assert pair.b.stats().opened >= 59


def with_qpn(datagram: bytes, qpn: int) -> bytes:
    return datagram[:5] + qpn.to_bytes(3) + datagram[8:]


def qpn_of(connection) -> int:
    return connection._own.qpn


def test_packets_of_an_earlier_connection_are_dropped(people):
    profiles = [
        secured(replace(SMALL, max_connections=1), people[name], "encrypt") for name in ("alice", "bob")
    ]
    with tapped_pair(*profiles) as (pair, to_b, _):
        still_works(pair)
        earlier, to_b.seen[:] = list(to_b.seen), []
        pair.to_b.close()
        pair.to_a.close()
        to_peer, back = joined(pair.a, pair.b)
        again = Pair(pair.a, pair.b, to_peer, back)
        before = pair.b.stats()
        arrive(pair.b, len(earlier), lambda n: to_b.send(with_qpn(earlier[n], qpn_of(back))))
        after = pair.b.stats()
        assert refused(after) - refused(before) == len(earlier)
        arrive(pair.b, len(earlier), lambda n: to_b.send(earlier[n]))
        still_works(again)


def test_a_member_with_keys_of_its_own_cannot_speak_for_another(people):
    with tapped_pair(*(secured(SMALL, people[name], "encrypt") for name in ("alice", "bob"))) as (
        pair,
        to_b,
        _,
    ):
        still_works(pair)
        with Endpoint(
            ["127.0.0.1"], profile=secured(SMALL, people["mallory"], "encrypt"), name="m", site="elsewhere"
        ) as mallory:
            to_b.seen.clear()
            to_victim, _ = joined(mallory, pair.b)
            region, memory = mallory.register(CONTENT), bytearray(len(CONTENT))
            landing = pair.b.register(memory, only_for=pair.to_a)
            with pytest.raises(ConnectionFailed, match="refused"):
                to_victim.write(region, 0, len(CONTENT), landing.remote, 0).wait(WAIT_S)
            hers = list(to_b.seen)
            # As they are, and with packet numbers that have not been used.
            hers += [d[:-TRAILER_BYTES] + (10_000 + n).to_bytes(8) + d[-16:] for n, d in enumerate(hers)]
            before = pair.b.stats()
            arrive(pair.b, len(hers), lambda n: to_b.send(with_qpn(hers[n], qpn_of(pair.to_a))))
            after = pair.b.stats()
            assert refused(after) - refused(before) == len(hers)
            assert after.rejected["forged"] - before.rejected["forged"] >= len(hers) // 2
            assert memory == bytes(len(CONTENT))
        still_works(pair)


def test_unprotected_packets_are_not_believed(people):
    # Everything a stranger can know: queue pair numbers, positions, keys. All of it stands in the clear on the line.
    with engine_pair(["127.0.0.1"]) as plain:
        plain.send(b"any")
    with tapped_pair(*(secured(SMALL, people[name], "authenticate") for name in ("alice", "bob"))) as (
        pair,
        to_b,
        _,
    ):
        still_works(pair)
        memory = bytearray(1024)
        landing = pair.b.register(memory)
        own = pair.to_a._own
        peer_psn, qpn = pair.to_b._own.start_psn, own.qpn
        psn = int.from_bytes(to_b.seen[-1][9:12]) + 1

        def bth(opcode: int, dest: int, number: int, flags: int = 0) -> bytes:
            return bytes([opcode, 0, 0xFF, 0xFF, 0]) + dest.to_bytes(3) + bytes([flags]) + number.to_bytes(3)

        rkey = landing.remote.rkey
        reth = (rkey >> 32 << 32).to_bytes(8) + (rkey & 0xFFFFFFFF).to_bytes(4) + (64).to_bytes(4)
        write = bth(0xCA, qpn, psn & 0xFFFFFF) + bytes(4) + reth + b"\x66" * 64
        fatal = bth(0xDD, qpn, 0) + bytes([0, 0, 0x19, 1]) + bytes(9) + own.start_psn.to_bytes(3) + bytes(4)
        context = (peer_psn >> 16 & 0xFF) << 24 | qpn
        update = (
            bth(0xD8, 2, (peer_psn & 0xFF) << 16 | 9)
            + bytes([0, 0, 0, peer_psn >> 8 & 0xFF])
            + bytes(4)
            + context.to_bytes(4)
            + bytes([0, 0, 0, 1])
        )
        sack = bth(0xDC, qpn, 0) + bytes(36)
        forged = [
            packet + _native.wire.icrc(_native.wire.icrc_seed_plain(), packet).to_bytes(4, "little")
            for packet in (write, fatal, update, sack)
        ]
        arrive(pair.b, 4, lambda n: to_b.send(forged[n]))
        assert rejections(pair.b) == {"unprotected": 4}
        assert memory == bytes(1024)
        still_works(pair)
        # The same is believed where nothing is protected: what is tested here are packets that would have worked.
    with tapped_pair(SMALL, SMALL) as (pair, to_b, _):
        still_works(pair)
        landing = pair.b.register(memory)
        rkey, psn = landing.remote.rkey, int.from_bytes(to_b.seen[-1][9:12]) + 1
        newest = max((d for d in to_b.seen if 0xC6 <= d[0] <= 0xCB), key=lambda d: int.from_bytes(d[9:12]))
        psn = int.from_bytes(newest[9:12]) + 1
        reth = (rkey >> 32 << 32).to_bytes(8) + (rkey & 0xFFFFFFFF).to_bytes(4) + (64).to_bytes(4)
        write = bth(0xCA, qpn_of(pair.to_a), psn & 0xFFFFFF) + newest[12:14] + bytes(2) + reth + b"\x66" * 64
        crc = _native.wire.icrc(_native.wire.icrc_seed_plain(), write).to_bytes(4, "little")
        arrive(pair.b, 1, lambda n: to_b.send(write + crc))
        assert memory[:64] == b"\x66" * 64


def test_a_region_is_not_written_after_it_was_revoked(people):
    # Writes are under way; whatever arrives after close() returned must not land.
    profiles = [
        secured(replace(IMPATIENT, mtu_bytes=4096), people[name], "encrypt") for name in ("alice", "bob")
    ]
    with tapped_pair(*profiles) as (pair, _, _):
        source = np.full(8 << 20, 7, np.uint8)
        target = np.zeros(8 << 20, np.uint8)
        region, landing = pair.a.register(source), pair.b.register(target)
        completion = pair.to_b.write(region, 0, len(source), landing.remote, 0)
        end_s = time.monotonic() + WAIT_S
        while not target[100_000] and time.monotonic() < end_s:
            time.sleep(0)
        landing.close()
        held = target.copy()
        with pytest.raises(ConnectionFailed, match="refused"):
            completion.wait(WAIT_S)
        assert np.array_equal(target, held), "it was written after it had been revoked"
        # The next region in the same place has another key.
        other = bytearray(64)
        again = pair.b.register(other)
        assert again.remote != RemoteRegion(landing.remote.rkey, 64)


def test_a_flood_leaves_memory_bounded_and_connections_alive(people):
    rng = random.Random(11)
    profiles = [secured(replace(SMALL, burst_segments=15), people[n], "encrypt") for n in ("alice", "bob")]
    with tapped_pair(*profiles) as (pair, to_b, _):
        still_works(pair)
        genuine = rng.sample(list(to_b.seen), 20)
        reserved = [pair.b.create_connection() for _ in range(20)]
        junk = [rng.randbytes(rng.randrange(1, 200)) for _ in range(50)]
        junk += [with_qpn(d, rng.getrandbits(24)) for d in genuine for _ in range(5)]
        junk += [damaged(d, how, rng) for d in genuine for how in range(6)]
        # Farewells to connections whose keys are not known yet: one is kept for each, and no more.
        junk += [bytes([0xDD, 1, 255, 255, 0]) + qpn_of(c).to_bytes(3) + rng.randbytes(48) for c in reserved]
        hail = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sent, end_s = 0, time.monotonic() + 0.3
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while time.monotonic() < end_s:
            for datagram in rng.sample(junk, 40):
                hail.sendto(datagram, pair.b.ports[0])
            sent += 40
            if sent % 2000 == 0:
                still_works(pair)
        hail.close()
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        assert grown_kib < 30_000, f"{grown_kib} KiB more after {sent} hostile packets"
        still_works(pair)
        # A connection whose place was hailed comes up like any other.
        to_reserved = pair.a.create_connection()
        to_reserved.connect(reserved[0].descriptor)
        reserved[0].connect(to_reserved.descriptor)
        memory = bytearray(3)
        landing, region = pair.b.register(memory), pair.a.register(b"abc")
        to_reserved.write(region, 0, 3, landing.remote, 0).wait(WAIT_S)
        assert memory == b"abc"
