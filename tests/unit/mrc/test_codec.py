"""What the packet codec refuses, and with which word."""

import pytest

from farstep import _native
from farstep.mrc import InvalidFieldError, codec, headers
from farstep.mrc.codec import Reason

ICRC = b"\0\0\0\0"


def bth(opcode, *, byte1=0, byte8=0):
    return bytes([opcode, byte1, 0xFF, 0xFF, 0, 0, 0, 1, byte8, 0, 0, 1])


def write(opcode=0xCA, *, byte1=0, byte8=0, dma_length_bytes=0, body=b""):
    extension = bytes([0, 0, 0, 1]) if byte8 & 0x10 else b""
    immediate = b"\0\0\0\7" if opcode in (0xC9, 0xCB) else b""
    reth = bytes(12) + dma_length_bytes.to_bytes(4, "big")
    return bth(opcode, byte1=byte1, byte8=byte8) + bytes(4) + extension + reth + immediate + body + ICRC


SACK_BODY = bytes(28 + 8)
NACK_BODY = bytes([0, 0, 1]) + bytes(17)
PROBE_BODY = bytes(15) + b"\1"
CASES = [
    ("empty", b"", Reason.TOO_SHORT),
    ("one byte", b"\xca", Reason.TOO_SHORT),
    ("one byte short of any packet", bth(0xD1) + b"\0\0\0", Reason.TOO_SHORT),
    ("RDMA READ of another transport", bth(0x0C) + bytes(40), Reason.UNKNOWN_OPCODE),
    ("opcode next to the last write", bth(0xCC) + bytes(40), Reason.UNKNOWN_OPCODE),
    ("opcode next to the probe", bth(0xDF) + bytes(40), Reason.UNKNOWN_OPCODE),
    ("unknown opcode before too long", bth(0xCC) + bytes(70_000), Reason.UNKNOWN_OPCODE),
    ("more than a UDP datagram", write(body=bytes(65_536)), Reason.BAD_LENGTH),
    ("transport version 1", write(byte1=0x01), Reason.BAD_VERSION),
    ("write without its RETH", write()[:-17] + ICRC, Reason.TOO_SHORT),
    ("timestamp announced, bytes missing", write()[:8] + b"\x10" + write()[9:], Reason.TOO_SHORT),
    ("immediate missing", b"\xcb" + write(0xCA)[1:], Reason.TOO_SHORT),
    ("padding without body", write(0xC6, byte1=0x30, dma_length_bytes=2**32 - 1), Reason.BAD_PADDING),
    ("body of 3 bytes", write(dma_length_bytes=3, body=b"abc"), Reason.BAD_PADDING),
    ("more payload than message", write(0xC6, dma_length_bytes=3, body=b"abcd"), Reason.BAD_FIELD),
    ("less payload than its only packet promises", write(dma_length_bytes=5, body=b"abcd"), Reason.BAD_FIELD),
    ("middle packet without payload", write(0xC7, dma_length_bytes=9), Reason.BAD_FIELD),
    ("timestamp of another type", write(byte8=0x10)[:19] + b"\2" + write(byte8=0x10)[20:], Reason.BAD_FIELD),
    ("padding on a SACK", bth(0xDC, byte1=0x10) + SACK_BODY + ICRC, Reason.BAD_PADDING),
    ("timestamp on a SACK", bth(0xDC, byte8=0x10) + SACK_BODY + ICRC, Reason.BAD_FIELD),
    ("SACK without CC_STATE", bth(0xDC) + SACK_BODY[:28] + ICRC, Reason.TOO_SHORT),
    ("SACK and four bytes more", bth(0xDC) + SACK_BODY + bytes(4) + ICRC, Reason.BAD_LENGTH),
    ("reserved SACK mark", bth(0xDC) + b"\0\x60" + SACK_BODY[2:] + ICRC, Reason.BAD_FIELD),
    ("NACK for no known reason", bth(0xDD) + bytes(20) + ICRC, Reason.BAD_FIELD),
    ("probe without timestamp type", bth(0xDE) + bytes(16) + ICRC, Reason.BAD_FIELD),
    ("endpoint operation 2", bth(0xD8) + b"\0\2" + PROBE_BODY[2:] + ICRC, Reason.BAD_FIELD),
]


@pytest.mark.parametrize(("data", "reason"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_both_codecs_refuse_with_the_same_word(data, reason):
    assert codec.decode(data) == codec.Rejected(reason)
    assert _native.wire.decode(data) == (reason.value, None)


@pytest.mark.parametrize(
    "data",
    [
        write(),
        write(dma_length_bytes=1, byte1=0x30, body=b"a\0\0\0"),
        write(0xCB, byte8=0x10),
        bth(0xDC) + SACK_BODY + ICRC,
        bth(0xDD) + NACK_BODY + ICRC,
        bth(0xDE) + PROBE_BODY + ICRC,
        bth(0xD8) + PROBE_BODY + ICRC,
        bth(0xD9) + bytes([0, 0x30]) + bytes(34) + ICRC,  # a disputed operation field is no reason to refuse
        bth(0xD1) + bytes(4) + ICRC,
    ],
    ids=lambda data: f"{data[0]:02x}",
)
def test_both_codecs_accept(data):
    assert isinstance(codec.decode(data), codec.Decoded)
    assert _native.wire.decode(data)[0] == "ok"


def test_reserved_bits_are_ignored_on_receipt():
    clean = codec.decode(write(0xC6, dma_length_bytes=8, body=b"abcd"))
    noisy = bytearray(write(0xC6, dma_length_bytes=8, body=b"abcd"))
    noisy[4] = 0xFF
    noisy[8] |= 0x4F
    assert codec.decode(bytes(noisy)) == clean
    assert _native.wire.decode(bytes(noisy)) == _native.wire.decode(
        write(0xC6, dma_length_bytes=8, body=b"abcd")
    )


def test_only_data_packets_can_be_trimmed():
    sack = bth(0xDC) + SACK_BODY + ICRC
    assert codec.decode_trimmed(sack) == codec.Rejected(Reason.NOT_TRIMMABLE)
    assert _native.wire.decode_trimmed(sack) == ("not_trimmable", None)


def test_a_trimmed_packet_reports_no_payload():
    cut = write(0xC6, byte8=0x10, dma_length_bytes=4096, body=bytes(4096))[:36]
    decoded = codec.decode_trimmed(cut)
    assert isinstance(decoded, codec.Decoded)
    assert decoded.packet.payload == b""
    assert decoded.header_bytes == 36
    assert "payload" not in _native.wire.decode_trimmed(cut)[1]


def test_both_codecs_use_the_same_words():
    assert ["ok", *(reason.value for reason in Reason)] == _native.wire.decode_reasons()


def test_a_field_that_does_not_fit_is_named():
    with pytest.raises(InvalidFieldError, match=r"Bth.psn = 16777216 is not valid; valid is 0 to 16777215"):
        headers.Bth(opcode=headers.Opcode.ACK, psn=1 << 24)
    with pytest.raises(InvalidFieldError, match=r"Seth.sack_offset"):
        headers.Seth(sack_offset=40_000)
    with pytest.raises(InvalidFieldError, match="whole number"):
        headers.Meth(msn=1.5)


def test_packets_that_contradict_themselves_cannot_be_built():
    ack = headers.Bth(opcode=headers.Opcode.ACK)
    with pytest.raises(InvalidFieldError, match=r"Nack.bth.opcode"):
        codec.Nack(bth=ack, neth=headers.Neth(reason=headers.NackReason.TRIMMED))
    with pytest.raises(InvalidFieldError, match=r"Write.bth.opcode"):
        codec.Write(bth=ack, meth=headers.Meth(), reth=headers.Reth())
    first = headers.Bth(opcode=headers.Opcode.WRITE_FIRST)
    with pytest.raises(InvalidFieldError, match=r"Write.tseth"):
        codec.Write(bth=first, meth=headers.Meth(), reth=headers.Reth(), tseth=headers.Tseth())
    with pytest.raises(InvalidFieldError, match=r"Write.immediate"):
        codec.Write(bth=first, meth=headers.Meth(), reth=headers.Reth(), immediate=1)
    with pytest.raises(InvalidFieldError, match="pad_bytes"):
        codec.encode(codec.Write(bth=first, meth=headers.Meth(), reth=headers.Reth(), payload=b"abc"))
