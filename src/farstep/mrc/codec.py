"""MRC packets in readable Python: the oracle against which the compiled codec is tested.

The compiled codec (`native/include/farstep/wire.hpp`) is written differently on purpose: the two share no
code and must agree on every input, accepted or rejected.

`decode` never raises on arbitrary bytes: it returns `Decoded` or `Rejected`. The invariant CRC is reported,
not judged: see `farstep.mrc.invariant_crc`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from farstep.mrc.errors import InvalidFieldError, check_range
from farstep.mrc.headers import (
    Aeth,
    Bth,
    CcState,
    Eeth,
    Erth,
    Header,
    Meth,
    Neth,
    Opcode,
    Peth,
    Reth,
    Seth,
    Tseth,
)
from farstep.mrc.invariant_crc import ICRC_BYTES, ICRC_SEED_ONES, icrc

__all__ = [
    "Ack",
    "Decoded",
    "EndpointRequest",
    "EndpointResponse",
    "Nack",
    "Packet",
    "Probe",
    "Reason",
    "Rejected",
    "Sack",
    "Write",
    "decode",
    "decode_trimmed",
    "encode",
    "encode_header",
]

_BTH_BYTES = Bth.size_bytes()
_MAX_PACKET_BYTES = 65535  # what a UDP length can say


class Reason(enum.StrEnum):
    """Why bytes were rejected; the compiled codec uses the same names."""

    TOO_SHORT = "too_short"
    UNKNOWN_OPCODE = "unknown_opcode"
    BAD_VERSION = "bad_version"
    BAD_PADDING = "bad_padding"
    BAD_LENGTH = "bad_length"
    BAD_FIELD = "bad_field"
    BAD_ICRC = "bad_icrc"
    NOT_TRIMMABLE = "not_trimmable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A piece of an RDMA WRITE. `tseth` and `immediate` are None when absent, the second also if trimmed."""

    bth: Bth
    meth: Meth
    reth: Reth
    tseth: Tseth | None = None
    immediate: int | None = None
    payload: bytes = b""

    def __post_init__(self) -> None:
        if not self.bth.opcode.is_data:
            raise InvalidFieldError("Write.bth.opcode", self.bth.opcode, "one of the WRITE opcodes")
        if (self.tseth is None) == self.bth.has_timestamp:
            raise InvalidFieldError("Write.tseth", self.tseth, "present exactly when bth.has_timestamp is")
        if self.immediate is not None:
            if not self.bth.opcode.has_immediate:
                raise InvalidFieldError(
                    "Write.immediate", self.immediate, f"None with {self.bth.opcode.name}"
                )
            check_range("Write.immediate", self.immediate, 0, 2**32 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Control:
    """A packet without payload: its BTH names the opcode of its class, no padding and no TSETH."""

    bth: Bth

    OPCODE: ClassVar[Opcode]

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.bth.opcode is not self.OPCODE:
            raise InvalidFieldError(f"{kind}.bth.opcode", self.bth.opcode, self.OPCODE.name)
        if self.bth.pad_bytes or self.bth.has_timestamp:
            raise InvalidFieldError(f"{kind}.bth", self.bth, "pad_bytes = 0 and has_timestamp = False")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack(_Control):
    """Completes messages."""

    OPCODE: ClassVar[Opcode] = Opcode.ACK
    aeth: Aeth = field(default_factory=Aeth)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sack(_Control):
    """Frees packets and feeds congestion control."""

    OPCODE: ClassVar[Opcode] = Opcode.SACK
    seth: Seth = field(default_factory=Seth)
    cc: CcState = field(default_factory=CcState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack(_Control):
    """Refuses one packet."""

    OPCODE: ClassVar[Opcode] = Opcode.NACK
    neth: Neth


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(_Control):
    """Asks for a SACK."""

    OPCODE: ClassVar[Opcode] = Opcode.PROBE
    peth: Peth = field(default_factory=Peth)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRequest(_Control):
    """Tells port states or probes an entropy value, outside any connection."""

    OPCODE: ClassVar[Opcode] = Opcode.ENDPOINT_REQUEST
    erth: Erth


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointResponse(_Control):
    """Answers an endpoint request."""

    OPCODE: ClassVar[Opcode] = Opcode.ENDPOINT_RESPONSE
    eeth: Eeth = field(default_factory=Eeth)


Packet: TypeAlias = Write | Ack | Sack | Nack | Probe | EndpointRequest | EndpointResponse

# What each control opcode becomes, and the headers behind its BTH.
_CONTROL: dict[Opcode, tuple[Callable[..., Packet], dict[str, type[Header]]]] = {
    Opcode.ACK: (Ack, {"aeth": Aeth}),
    Opcode.SACK: (Sack, {"seth": Seth, "cc": CcState}),
    Opcode.NACK: (Nack, {"neth": Neth}),
    Opcode.PROBE: (Probe, {"peth": Peth}),
    Opcode.ENDPOINT_REQUEST: (EndpointRequest, {"erth": Erth}),
    Opcode.ENDPOINT_RESPONSE: (EndpointResponse, {"eeth": Eeth}),
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """An accepted packet; `icrc` is what it carries (None when trimmed), not what it should be."""

    packet: Packet
    header_bytes: int
    icrc: int | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Bytes that are no MRC packet."""

    reason: Reason


def decode(data: bytes) -> Decoded | Rejected:
    """Parses one datagram from the BTH to the invariant CRC."""
    opcode = _judge_start(data, _BTH_BYTES + ICRC_BYTES)
    if isinstance(opcode, Rejected):
        return opcode
    bth = Bth.read(data)
    body = data[_BTH_BYTES:-ICRC_BYTES]
    carried_icrc = int.from_bytes(data[-ICRC_BYTES:], "little")
    if opcode.is_data:
        return _decode_write(bth, body, carried_icrc)
    if bth.pad_bytes:
        return Rejected(Reason.BAD_PADDING)
    if bth.has_timestamp:
        return Rejected(Reason.BAD_FIELD)
    kind, headers = _CONTROL[opcode]
    expected_bytes = sum(header.size_bytes() for header in headers.values())
    if len(body) != expected_bytes:
        return Rejected(Reason.TOO_SHORT if len(body) < expected_bytes else Reason.BAD_LENGTH)
    try:
        packet = kind(bth=bth, **_read_all(headers, body))
    except ValueError:
        return Rejected(Reason.BAD_FIELD)
    return Decoded(packet, _BTH_BYTES + expected_bytes, carried_icrc)


def decode_trimmed(data: bytes) -> Decoded | Rejected:
    """Parses what a trimming switch left of a data packet; bytes behind the RETH are ignored.

    Nothing vouches for the content: only QPN, PSN, entropy value and timestamp may be acted on.
    """
    opcode = _judge_start(data, _BTH_BYTES + Meth.size_bytes() + Reth.size_bytes())
    if isinstance(opcode, Rejected):
        return opcode
    if not opcode.is_data:
        return Rejected(Reason.NOT_TRIMMABLE)
    bth = Bth.read(data)
    headers = _write_headers(bth)
    header_bytes = _BTH_BYTES + sum(header.size_bytes() for header in headers.values())
    if len(data) < header_bytes:
        return Rejected(Reason.TOO_SHORT)
    try:
        packet = Write(bth=bth, **_read_all(headers, data[_BTH_BYTES:]))
    except ValueError:
        return Rejected(Reason.BAD_FIELD)
    return Decoded(packet, header_bytes, None)


def _judge_start(data: bytes, minimum_bytes: int) -> Opcode | Rejected:
    """Length, opcode and version, before anything else is looked at."""
    if len(data) < minimum_bytes:
        return Rejected(Reason.TOO_SHORT)
    if data[0] not in _OPCODES:
        return Rejected(Reason.UNKNOWN_OPCODE)
    if len(data) > _MAX_PACKET_BYTES:
        return Rejected(Reason.BAD_LENGTH)
    if data[1] & 0x0F:
        return Rejected(Reason.BAD_VERSION)
    return Opcode(data[0])


_OPCODES = frozenset(int(opcode) for opcode in Opcode)


def _write_headers(bth: Bth) -> dict[str, type[Header]]:
    if bth.has_timestamp:
        return {"meth": Meth, "tseth": Tseth, "reth": Reth}
    return {"meth": Meth, "reth": Reth}


def _read_all(headers: dict[str, type[Header]], data: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, header in headers.items():
        values[name] = header.read(data)
        data = data[header.size_bytes() :]
    return values


def _decode_write(bth: Bth, body: bytes, carried_icrc: int) -> Decoded | Rejected:
    headers = _write_headers(bth)
    fixed_bytes = sum(header.size_bytes() for header in headers.values())
    header_bytes = fixed_bytes + (4 if bth.opcode.has_immediate else 0)
    if len(body) < header_bytes:
        return Rejected(Reason.TOO_SHORT)
    padded = body[header_bytes:]
    if len(padded) % 4 or len(padded) < bth.pad_bytes:
        return Rejected(Reason.BAD_PADDING)
    try:
        values = _read_all(headers, body)
    except ValueError:
        return Rejected(Reason.BAD_FIELD)
    if bth.opcode.has_immediate:
        values["immediate"] = int.from_bytes(body[fixed_bytes:header_bytes], "big")
    packet = Write(bth=bth, payload=padded[: len(padded) - bth.pad_bytes], **values)
    if not _payload_fits(packet):
        return Rejected(Reason.BAD_FIELD)
    return Decoded(packet, _BTH_BYTES + header_bytes, carried_icrc)


def _payload_fits(packet: Write) -> bool:
    """A message of one packet carries its whole length; a longer one has some bytes in every packet."""
    if packet.bth.opcode.is_only:
        return len(packet.payload) == packet.reth.dma_length_bytes
    return 0 < len(packet.payload) <= packet.reth.dma_length_bytes


def encode_header(packet: Packet) -> bytes:
    """Returns BTH and the headers of the opcode: everything in front of the payload or the invariant CRC."""
    parts = [getattr(packet, f.name) for f in fields(packet)]
    if isinstance(packet, Write):
        parts = [packet.bth, packet.meth, packet.tseth, packet.reth]
    written = b"".join(part.write() for part in parts if part is not None)
    if isinstance(packet, Write) and packet.bth.opcode.has_immediate:
        written += (packet.immediate or 0).to_bytes(4, "big")
    return written


def encode(packet: Packet, seed: int = ICRC_SEED_ONES) -> bytes:
    """Returns the datagram from the BTH to the invariant CRC, padded as `bth.pad_bytes` says.

    Raises:
        InvalidFieldError: payload and padding are not a multiple of 4 bytes together.
    """
    covered = encode_header(packet)
    if isinstance(packet, Write):
        covered += packet.payload + bytes(packet.bth.pad_bytes)
    if len(covered) % 4:
        raise InvalidFieldError("Write.bth.pad_bytes", packet.bth.pad_bytes, "-len(payload) modulo 4")
    return covered + icrc(covered, seed).to_bytes(ICRC_BYTES, "little")
