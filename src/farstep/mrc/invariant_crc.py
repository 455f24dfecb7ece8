"""The invariant CRC that guards a packet, and the IPv6 and UDP headers it may cover.

The CRC is RoCEv2's: Ethernet CRC-32 over eight bytes of ones, the network headers with everything a router
may change counted as ones, and the packet itself. It is stored little-endian behind the packet.
"""

from __future__ import annotations

import zlib

__all__ = [
    "ICRC_BYTES",
    "ICRC_SEED_ONES",
    "UDP_PORT",
    "UDP_PORT_ALTERNATE",
    "encode_ipv6_udp",
    "icrc",
    "icrc_seed_ipv6",
    "icrc_seed_plain",
]

UDP_PORT = 4791
"""Destination port that is sent: RoCEv2's."""
UDP_PORT_ALTERNATE = 4971
"""Also accepted: some readers report the specification prints this one."""
ICRC_BYTES = 4
ICRC_SEED_ONES = 0xDEBB20E3
"""CRC register after the eight bytes of ones that precede the packet."""


def icrc(covered: bytes, seed: int = ICRC_SEED_ONES) -> int:
    """Returns the invariant CRC over a packet without it (BTH to padding), to be stored little-endian.

    BTH byte 4 counts as ones, because a network may use it for congestion marks.
    """
    return zlib.crc32(covered[:4] + b"\xff" + covered[5:], seed ^ 0xFFFFFFFF)


def icrc_seed_plain() -> int:
    """Seed in `udp` path mode: translators rewrite addresses and ports, so the CRC starts at the BTH."""
    return zlib.crc32(b"\xff" * 8) ^ 0xFFFFFFFF


def icrc_seed_ipv6(headers: bytes) -> int:
    """Seed that covers the IPv6 and UDP headers, with what routers may change counted as ones.

    Args:
        headers: the 48 bytes in front of the BTH.
    """
    changeable = bytearray(48)
    changeable[0] = 0x0F  # traffic class, flow label
    changeable[1:4] = b"\xff\xff\xff"
    changeable[7] = 0xFF  # hop limit
    changeable[46:48] = b"\xff\xff"  # UDP checksum
    masked = bytes(a | b for a, b in zip(headers, changeable, strict=True))
    return zlib.crc32(b"\xff" * 8 + masked) ^ 0xFFFFFFFF


def encode_ipv6_udp(
    source: bytes,
    destination: bytes,
    entropy: int,
    packet_bytes: int,
    *,
    traffic_class: int = 0,
    hop_limit: int = 64,
    destination_port: int = UDP_PORT,
) -> bytes:
    """Returns the IPv6 and UDP headers of a packet of `packet_bytes` (BTH to invariant CRC).

    The entropy value sits in the source port (low half) and the flow label (high half). The UDP checksum
    is zero.
    """
    udp_bytes = (8 + packet_bytes).to_bytes(2, "big")
    first_word = 6 << 28 | traffic_class << 20 | entropy >> 16
    ipv6 = first_word.to_bytes(4, "big") + udp_bytes + bytes([17, hop_limit]) + source + destination
    ports = (entropy & 0xFFFF).to_bytes(2, "big") + destination_port.to_bytes(2, "big")
    return ipv6 + ports + udp_bytes + b"\x00\x00"
