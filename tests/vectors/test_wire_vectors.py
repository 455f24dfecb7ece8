"""The four regression packets of the wire reference, whole: IPv6 and UDP header, MRC headers, invariant CRC.

They pin our reading of the layout. They are not official vectors.
"""

import ipaddress
from dataclasses import asdict

import pytest

from farstep import _native
from farstep.mrc import codec, headers, invariant_crc

FD00_1 = ipaddress.ip_address("fd00::1").packed
FD00_2 = ipaddress.ip_address("fd00::2").packed
FORWARD_EV = 0xBEEF8001
REVERSE_EV = 0x00A10003
CONTROL_CLASS = 0xB8

WRITE_ONLY = codec.Write(
    bth=headers.Bth(
        opcode=headers.Opcode.WRITE_ONLY, ack_request=True, has_timestamp=True, dest_qpn=0x123, psn=0xABCD
    ),
    meth=headers.Meth(msn=7),
    tseth=headers.Tseth(timestamp=0x1234),
    reth=headers.Reth(va=0x7F00_1234_5000, rkey=0xCAFEBABE, dma_length_bytes=16),
    payload=bytes(range(16)),
)
# PSNs 0xABCB and 0xABCD arrived beyond the cumulative 0xABC9; the second carried a congestion mark.
SACK = codec.Sack(
    bth=headers.Bth(opcode=headers.Opcode.SACK, dest_qpn=0x456),
    seth=headers.Seth(
        mark=headers.SackMark.SKIP_ONCE,
        ack_psn_offset=0xABCD - 0xABC9,
        entropy=FORWARD_EV,
        cack_psn=0xABC9,
        mpr=8,
        sack_offset=1,
        bitmap=1 << (0xABCB - 0xABCA) | 1 << (0xABCD - 0xABCA),
    ),
    cc=headers.CcState(timestamp=0x1234, ooo_count=2, rcvd_units=(100_000 + 255) // 256),
)
NACK = codec.Nack(
    bth=headers.Bth(opcode=headers.Opcode.NACK, dest_qpn=0x456),
    neth=headers.Neth(
        reason=headers.NackReason.TRIMMED, entropy=FORWARD_EV, nack_psn=0xABCA, timestamp=0x1230
    ),
)
EV_PROBE = codec.EndpointRequest(
    bth=headers.Bth(opcode=headers.Opcode.ENDPOINT_REQUEST, dest_qpn=headers.ENDPOINT_QPN, psn=0x42),
    erth=headers.Erth(op=headers.EndpointOp.EV_PROBE, timestamp=0x2222),
)

# name, packet, from, to, entropy value of the packet, traffic class, bytes on the wire
VECTORS = [
    (
        "write_only",
        WRITE_ONLY,
        FD00_1,
        FD00_2,
        FORWARD_EV,
        0x02,
        "6020beef 0040 11 40 fd000000000000000000000000000001 fd000000000000000000000000000002"
        "8001 12b7 0040 0000  ca00ffff 00000123 9000abcd  00000007  12340001"
        "00007f0012345000 cafebabe 00000010  000102030405060708090a0b0c0d0e0f  ea04c193",
    ),
    (
        "sack",
        SACK,
        FD00_2,
        FD00_1,
        REVERSE_EV,
        CONTROL_CLASS,
        "6b8000a1 003c 11 40 fd000000000000000000000000000002 fd000000000000000000000000000001"
        "0003 12b7 003c 0000  dc00ffff 00000456 00000000"
        "00200004 beef8001 00000000 0000abc9 00080001 000000000000000a  12340002 00000187  45e89f13",
    ),
    (
        "nack",
        NACK,
        FD00_2,
        FD00_1,
        REVERSE_EV,
        CONTROL_CLASS,
        "6b8000a1 002c 11 40 fd000000000000000000000000000002 fd000000000000000000000000000001"
        "0003 12b7 002c 0000  dd00ffff 00000456 00000000"
        "00000100 beef8001 00000000 0000abca 20001230  c67f55e2",
    ),
    (
        "ev_probe",
        EV_PROBE,
        FD00_1,
        FD00_2,
        FORWARD_EV,
        CONTROL_CLASS,
        "6b80beef 0028 11 40 fd000000000000000000000000000001 fd000000000000000000000000000002"
        "8001 12b7 0028 0000  d800ffff 00000002 00000042  00010000 00000000 00000000 22220001  1680dfc9",
    ),
]
each_vector = pytest.mark.parametrize(
    ("packet", "source", "destination", "entropy", "traffic_class", "wire"),
    [(*v[1:5], v[5], bytes.fromhex(v[6])) for v in VECTORS],
    ids=[v[0] for v in VECTORS],
)


@each_vector
def test_the_readable_codec_writes_the_vector(packet, source, destination, entropy, traffic_class, wire):
    ip6 = invariant_crc.encode_ipv6_udp(
        source, destination, entropy, len(wire) - 48, traffic_class=traffic_class
    )
    assert ip6 + codec.encode(packet, invariant_crc.icrc_seed_ipv6(ip6)) == wire


@each_vector
def test_the_compiled_codec_writes_the_vector(packet, source, destination, entropy, traffic_class, wire):
    wirelib = _native.wire
    ip6 = wirelib.encode_ipv6_udp(source, destination, entropy, len(wire) - 48, traffic_class=traffic_class)
    header = wirelib.encode_header(asdict(packet))
    payload = getattr(packet, "payload", b"")
    icrc = wirelib.icrc(wirelib.icrc_seed_ipv6(ip6), header, payload)
    assert ip6 + header + payload + icrc.to_bytes(4, "little") == wire


@each_vector
def test_the_readable_codec_reads_the_vector(packet, source, destination, entropy, traffic_class, wire):
    decoded = codec.decode(wire[48:])
    assert isinstance(decoded, codec.Decoded)
    assert decoded.packet == packet
    assert decoded.icrc == invariant_crc.icrc(wire[48:-4], invariant_crc.icrc_seed_ipv6(wire[:48]))


@each_vector
def test_the_compiled_codec_reads_the_vector(packet, source, destination, entropy, traffic_class, wire):
    reason, read = _native.wire.decode(wire[48:])
    assert reason == "ok"
    expected = {key: value for key, value in asdict(packet).items() if value is not None}
    assert {key: read[key] for key in expected} == expected
    seed = _native.wire.icrc_seed_ipv6(wire[:48])
    assert _native.wire.icrc_matches(seed, wire[48:])


def test_the_crc_survives_what_routers_change_and_nothing_else():
    wire = bytes.fromhex(VECTORS[0][6])
    icrc_covers = 0
    for bit in range(len(wire) * 8):
        damaged = bytearray(wire)
        damaged[bit // 8] ^= 1 << bit % 8
        seed = _native.wire.icrc_seed_ipv6(bytes(damaged[:48]))
        assert seed == invariant_crc.icrc_seed_ipv6(bytes(damaged[:48]))
        matches = _native.wire.icrc_matches(seed, bytes(damaged[48:]))
        byte = bit // 8
        changeable = (
            (byte == 0 and bit % 8 < 4)  # traffic class, upper half
            or byte in (1, 2, 3)  # traffic class, flow label
            or byte == 7  # hop limit
            or byte in (46, 47)  # UDP checksum
            or byte == 48 + 4  # BTH byte 4: congestion marks of some fabrics
        )
        assert matches == changeable, f"bit {bit}"
        icrc_covers += not changeable
    assert icrc_covers == (len(wire) - 8) * 8 + 4
