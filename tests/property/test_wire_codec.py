"""Properties of the packet codec: both implementations read what they write and agree on everything else."""

from dataclasses import asdict, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from farstep import _native
from farstep.mrc import codec, headers, invariant_crc

wire = _native.wire


def uint(bits):
    return st.integers(0, 2**bits - 1)


def sint(bits):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def bths(opcodes, **fixed):
    fields = {
        "opcode": opcodes,
        "dest_qpn": uint(24),
        "psn": uint(24),
        "solicited": st.booleans(),
        "migrated": st.booleans(),
        "pkey": uint(16),
        "ack_request": st.booleans(),
        "rtx": st.booleans(),
    }
    return st.builds(headers.Bth, **fields, **fixed)


def control(kind, **parts):
    return st.builds(kind, bth=bths(st.just(kind.OPCODE)), **parts)


@st.composite
def writes(draw):
    opcode = draw(st.sampled_from([op for op in headers.Opcode if op.is_data]))
    payload = draw(st.binary(min_size=0 if opcode.is_only else 1, max_size=70))
    total = len(payload) if opcode.is_only else draw(st.integers(len(payload), 2**32 - 1))
    bth = draw(bths(st.just(opcode), has_timestamp=st.booleans(), pad_bytes=st.just(-len(payload) % 4)))
    return codec.Write(
        bth=bth,
        meth=draw(st.builds(headers.Meth, rqmsn=uint(16), msn=uint(16))),
        tseth=draw(st.builds(headers.Tseth, timestamp=uint(16))) if bth.has_timestamp else None,
        reth=headers.Reth(va=draw(uint(64)), rkey=draw(uint(32)), dma_length_bytes=total),
        immediate=draw(uint(32)) if opcode.has_immediate else None,
        payload=payload,
    )


controls = st.one_of(
    control(codec.Ack, aeth=st.builds(headers.Aeth, syndrome=uint(8), msn=uint(24))),
    control(
        codec.Sack,
        seth=st.builds(
            headers.Seth,
            mark=st.sampled_from(headers.SackMark),
            probe_reply=st.booleans(),
            ack_psn_offset=sint(16),
            entropy=uint(32),
            cack_psn=uint(24),
            cc_type=uint(4),
            cc_flags=uint(4),
            mpr=uint(8),
            sack_offset=sint(16),
            bitmap=uint(64),
        ),
        cc=st.builds(
            headers.CcState,
            timestamp=uint(16),
            ooo_count=uint(15),
            restore_cwnd=st.booleans(),
            rcv_cwnd_pen=uint(7),
            rcvd_units=uint(24),
        ),
    ),
    control(
        codec.Nack,
        neth=st.builds(
            headers.Neth,
            reason=st.sampled_from(headers.NackReason),
            vendor=uint(8),
            entropy=uint(32),
            nack_psn=uint(24),
            cc_type=uint(4),
            cc_flags=uint(4),
            timestamp=uint(16),
        ),
    ),
    control(codec.Probe, peth=st.builds(headers.Peth, vendor=uint(8), probe_id=uint(16), timestamp=uint(16))),
    control(
        codec.EndpointRequest,
        erth=st.builds(
            headers.Erth,
            op=st.sampled_from(headers.EndpointOp),
            vendor=uint(8),
            port_status_mask=uint(32),
            context=uint(32),
            timestamp=uint(16),
        ),
    ),
    control(
        codec.EndpointResponse,
        eeth=st.builds(headers.Eeth, op=uint(2), vendor=uint(8), context=uint(32), timestamp=uint(16)),
    ),
)
packets = st.one_of(writes(), controls)


def as_native(decoded):
    """What the compiled decoder should have answered."""
    if isinstance(decoded, codec.Rejected):
        return decoded.reason.value, None
    fields = {key: value for key, value in asdict(decoded.packet).items() if value is not None}
    fields["header_bytes"] = decoded.header_bytes
    if decoded.icrc is None:
        fields.pop("payload", None)
    else:
        fields["icrc"] = decoded.icrc
    return "ok", fields


def assert_both_agree(data):
    assert wire.decode(data) == as_native(codec.decode(data))
    assert wire.decode_trimmed(data) == as_native(codec.decode_trimmed(data))


@given(packets, uint(32))
def test_what_is_written_is_read_back_by_both(packet, seed):
    datagram = codec.encode(packet, seed)
    decoded = codec.decode(datagram)
    assert isinstance(decoded, codec.Decoded)
    assert decoded.packet == packet
    assert decoded.icrc == invariant_crc.icrc(datagram[:-4], seed)
    assert wire.decode(datagram) == as_native(decoded)
    assert wire.icrc_matches(seed, datagram)


@given(packets, uint(32))
def test_both_write_the_same_bytes(packet, seed):
    datagram = codec.encode(packet, seed)
    header = wire.encode_header(asdict(packet))
    payload = getattr(packet, "payload", b"")
    pad = bytes(packet.bth.pad_bytes)
    icrc = wire.icrc(seed, header, payload, pad)
    assert header + payload + pad + icrc.to_bytes(4, "little") == datagram


@given(writes(), st.integers(0, 100))
def test_a_trimmed_packet_keeps_its_headers(packet, kept_bytes):
    datagram = codec.encode(packet)
    survivor = replace(packet, payload=b"", immediate=None)
    header_bytes = 36 if packet.bth.has_timestamp else 32
    kept = datagram[: header_bytes + kept_bytes]
    decoded = codec.decode_trimmed(kept)
    assert decoded == codec.Decoded(survivor, header_bytes, None)
    assert_both_agree(kept)
    assert codec.decode_trimmed(datagram[: header_bytes - 1]) == codec.Rejected(codec.Reason.TOO_SHORT)


@settings(max_examples=1000)
@given(st.binary(max_size=120))
def test_both_agree_on_arbitrary_bytes(data):
    assert_both_agree(data)


@settings(max_examples=1000)
@given(st.sampled_from(headers.Opcode), st.binary(min_size=15, max_size=80))
def test_both_agree_on_arbitrary_bytes_behind_a_known_opcode(opcode, rest):
    assert_both_agree(bytes([opcode]) + rest)


@st.composite
def mutated(draw):
    data = bytearray(codec.encode(draw(packets)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["flip", "set", "cut", "grow", "swap opcode", "drop", "empty"])):
            case "flip":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "set":
                data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "cut":
                data = data[: at + 1]
            case "grow":
                data += draw(st.binary(min_size=1, max_size=9))
            case "swap opcode":
                data[0] = draw(st.sampled_from(headers.Opcode))
            case "drop":
                del data[at]
            case "empty" if len(data) > 8:  # headers and checksum with nothing between them
                has_immediate = data[0] in (0xC9, 0xCB)
                data = data[: 36 + (4 if data[8] & 0x10 else 0) + (4 if has_immediate else 0)]
        if not data:
            break
    return bytes(data)


@settings(max_examples=1000)
@given(mutated())
def test_both_agree_on_damaged_packets(data):
    assert_both_agree(data)


@given(mutated())
def test_what_is_accepted_means_what_its_bytes_say(data):
    """Re-encoding an accepted packet gives its bytes, apart from reserved bits, padding and the checksum."""
    decoded = codec.decode(data)
    if isinstance(decoded, codec.Rejected):
        return
    again = codec.decode(codec.encode(decoded.packet))
    assert isinstance(again, codec.Decoded)
    assert again.packet == decoded.packet
