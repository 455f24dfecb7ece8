"""Throws changed copies of real packets at live endpoints while they work.

    python -m tests.fuzz.live SECONDS [SEED]

Two connections join two endpoints: one whose packets a stranger copies, changes, mends and sends again, and one that
nobody touches. In the clear the first may fail, as who can forge packets can end it, and is made again; the second must
carry every byte. Under encryption the first must, too. Memory around what peers may write must stay as it is.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from farstep import _native
from farstep.engine import ConnectionAborted, ConnectionFailed, EndpointProfile, EngineError
from tests.integration.engine_pair import IMPATIENT, WAIT_S, Pair
from tests.integration.wiretap import Tap, identities, joined, secured, tapped_pair

ROUND_S = 2.0
WRITE_BYTES = 30_000
FORGED_WAIT_S = 0.3
"""Forged acknowledgements can hold a connection up for good; then it is made again."""
MARGIN_BYTES = 4096
KEPT_MAX = 4000
OPCODES = (0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE)


def changed(datagram: bytes, kept: list[bytes], rng: random.Random) -> bytes:
    """A copy with some of it changed, and often a checksum that says nothing happened."""
    data = bytearray(datagram)
    for _ in range(rng.randrange(1, 5)):
        if not data:
            break
        kind, at = rng.randrange(7), rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 64, 3000)))
        elif kind == 3:
            data[0] = rng.choice(OPCODES)
        elif kind == 4:  # positions, lengths, keys: whole fields
            data[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, rng.randbytes(4)))
        elif kind == 5:
            other = rng.choice(kept)
            data[at:] = other[at:]
        else:
            data[9:12] = (int.from_bytes(data[9:12]) + rng.randrange(-300, 300) & 0xFFFFFF).to_bytes(3)
    if len(data) >= 16 and data[1] & 0x0F == 0 and rng.random() < 0.8:
        del data[len(data) // 4 * 4 :]
        body = bytes(data[:-4])
        data[-4:] = _native.wire.icrc(_native.wire.icrc_seed_plain(), body).to_bytes(4, "little")
    return bytes(data[:65_000])


def exchange(pair: Pair, rng: random.Random, wait_s: float = WAIT_S) -> None:
    """One write in each direction; every byte must arrive, and none beside them."""
    for sender, to_peer, receiver in ((pair.a, pair.to_b, pair.b), (pair.b, pair.to_a, pair.a)):
        length = rng.randrange(1, WRITE_BYTES)
        source = np.frombuffer(rng.randbytes(length), np.uint8)
        around = np.full(length + 2 * MARGIN_BYTES, 0xA5, np.uint8)
        target = around[MARGIN_BYTES:-MARGIN_BYTES]
        with sender.register(source) as region, receiver.register(target) as landing:
            try:
                to_peer.write(region, 0, length, landing.remote, 0).wait(wait_s)
                is_whole = True
            except (ConnectionFailed, ConnectionAborted):
                is_whole = False
        margins = np.concatenate((around[:MARGIN_BYTES], around[-MARGIN_BYTES:]))
        assert (margins == 0xA5).all(), "memory outside a region was written"
        if not is_whole:
            raise ConnectionError
        if not np.array_equal(source, target):
            raise ValueError("what arrived is not what was sent")


def meddling(tap: Tap, kept: list[bytes], rng: random.Random, victims: set[bytes]) -> Callable[[bytes], bool]:
    """Sends changed copies beside what belongs to the connection under attack."""

    def lets_pass(datagram: bytes) -> bool:
        if len(tap.seen) > KEPT_MAX:
            tap.seen.clear()
        if bytes(datagram[5:8]) in victims and len(datagram) > 8:
            if len(kept) < KEPT_MAX:
                kept.append(datagram)
            else:
                kept[rng.randrange(KEPT_MAX)] = datagram
            for _ in range(rng.randrange(4)):
                tap.send(changed(rng.choice(kept[-50:]), kept, rng))
        return True

    return lets_pass


def numbers_of(pair: Pair) -> set[bytes]:
    return {end._own.qpn.to_bytes(3) for end in (pair.to_a, pair.to_b)}


def round_of(seed: int, profiles: tuple[EndpointProfile, EndpointProfile], *, is_protected: bool) -> int:
    """Plays for a while; returns how many writes got through under attack."""
    rng = random.Random(seed)
    written = 0
    with tapped_pair(*profiles) as (attacked, to_b, to_a):
        quiet = Pair(attacked.a, attacked.b, *joined(attacked.a, attacked.b))
        victims, kept = numbers_of(attacked), []
        to_b.lets_pass, to_a.lets_pass = (meddling(tap, kept, rng, victims) for tap in (to_b, to_a))
        end_s = time.monotonic() + ROUND_S
        while time.monotonic() < end_s:
            try:
                exchange(attacked, rng, WAIT_S if is_protected else FORGED_WAIT_S)
                written += 1
            except (ConnectionError, ValueError, EngineError):
                if is_protected:
                    raise
                attacked.to_a.close()
                attacked.to_b.close()
                attacked = Pair(attacked.a, attacked.b, *joined(attacked.a, attacked.b))
                victims |= numbers_of(attacked)
            if rng.random() < 0.2:
                exchange(quiet, rng)
        exchange(quiet, rng)
        assert quiet.to_a.is_open
        assert quiet.to_b.is_open
    return written


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    plain = replace(IMPATIENT, mtu_bytes=1024, burst_segments=1, seed=None)
    end_s = time.monotonic() + seconds
    rounds = written = 0
    with tempfile.TemporaryDirectory() as folder:
        people = identities(Path(folder), "alice", "bob")
        sealed = tuple(secured(plain, people[name], "encrypt") for name in ("alice", "bob"))
        while time.monotonic() < end_s:
            is_protected = rounds % 2 == 1
            try:
                written += round_of(
                    seed, sealed if is_protected else (plain, plain), is_protected=is_protected
                )
            except BaseException:
                print(f"seed {seed}, {'encrypted' if is_protected else 'in the clear'}", file=sys.stderr)
                raise
            rounds += 1
            seed += 1
    print(f"live: {rounds} rounds, {written} writes under attack, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
