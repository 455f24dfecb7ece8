"""The headers of an MRC packet: each a list of bit fields in wire order, as a specification would print it.

One generic reader and writer does the rest. Reserved bits are sent as zero and ignored on receipt.
What a header means beyond its own fields is the business of `farstep.mrc.codec`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from farstep.mrc.errors import check_range

__all__ = [
    "ENDPOINT_QPN",
    "TIMESTAMP_TICK_NS",
    "Aeth",
    "Bth",
    "CcState",
    "Eeth",
    "EndpointOp",
    "Erth",
    "Header",
    "Meth",
    "NackReason",
    "Neth",
    "Opcode",
    "Peth",
    "Reth",
    "SackMark",
    "Seth",
    "Tseth",
]

ENDPOINT_QPN = 0x000002
"""Destination of endpoint requests, which belong to no connection."""
TIMESTAMP_TICK_NS = 128
"""One unit of every 16-bit timestamp, which therefore wraps after 8.39 ms."""

_TSETH_TYPE = 1


class Opcode(enum.IntEnum):
    """First byte of the BTH."""

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACK = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE = 0xDE

    @property
    def is_data(self) -> bool:
        """Whether the packet carries bytes of a message."""
        return Opcode.WRITE_FIRST <= self <= Opcode.WRITE_ONLY_IMM

    @property
    def has_immediate(self) -> bool:
        """Whether 32 bits of immediate data follow the RETH."""
        return self in (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM)

    @property
    def is_only(self) -> bool:
        """Whether the packet is a whole message."""
        return self in (Opcode.WRITE_ONLY, Opcode.WRITE_ONLY_IMM)


class NackReason(enum.IntEnum):
    """Why a responder refused a packet; `UNEXPECTED_EVENT` is fatal to the connection."""

    TRIMMED = 0x01
    TRIMMED_LAST_HOP = 0x02
    NO_BITMAP = 0x06
    NO_PACKET_BUFFER = 0x07
    NO_RESOURCE = 0x0A
    PSN_OUT_OF_WINDOW = 0x0B
    UNEXPECTED_EVENT = 0x19


class SackMark(enum.IntEnum):
    """What the responder asks the sender to do with the entropy value of the triggering packet."""

    NONE = 0
    SKIP_ONCE = 1
    ALWAYS_SKIP = 2


class EndpointOp(enum.IntEnum):
    """Operation between two endpoints, outside any connection."""

    PORT_STATUS_UPDATE = 0
    EV_PROBE = 1


class _Bits(NamedTuple):
    """One field of a header: its attribute (empty: reserved), width, and how the number becomes a value."""

    name: str
    width: int
    convert: Callable[[int], Any] = int
    signed: bool = False
    constant: int = 0  # written into a nameless field
    required: bool = False  # a nameless field that must hold the constant on receipt


def _reserved(width: int) -> _Bits:
    return _Bits("", width)


def _flag(name: str) -> _Bits:
    return _Bits(name, 1, bool)


# vendor-tick bit (ignored), 11 reserved bits, and the type of the extension
_TIMESTAMP = (_Bits("timestamp", 16), _reserved(12), _Bits("", 4, constant=_TSETH_TYPE, required=True))

_H = TypeVar("_H", bound="Header")


@dataclass(frozen=True, slots=True)
class Header:
    """A header that is written and read by its `LAYOUT`."""

    LAYOUT: ClassVar[tuple[_Bits, ...]] = ()

    def __post_init__(self) -> None:
        for bits in self.LAYOUT:
            if not bits.name:
                continue
            value = getattr(self, bits.name)
            low = -(1 << bits.width - 1) if bits.signed else 0
            check_range(f"{type(self).__name__}.{bits.name}", +value, low, low + (1 << bits.width) - 1)

    @classmethod
    def size_bytes(cls) -> int:
        """Length on the wire."""
        return sum(bits.width for bits in cls.LAYOUT) // 8

    def write(self) -> bytes:
        """Returns the header as it travels."""
        total = 0
        for bits in self.LAYOUT:
            value = int(getattr(self, bits.name)) if bits.name else bits.constant
            total = total << bits.width | value & (1 << bits.width) - 1
        return total.to_bytes(self.size_bytes(), "big")

    @classmethod
    def read(cls: type[_H], data: bytes) -> _H:
        """Parses the first `size_bytes()` of `data`.

        Raises:
            ValueError: a field holds a value that has no meaning.
        """
        total = int.from_bytes(data[: cls.size_bytes()], "big")
        left = cls.size_bytes() * 8
        values: dict[str, Any] = {}
        for bits in cls.LAYOUT:
            left -= bits.width
            value = total >> left & (1 << bits.width) - 1
            if bits.required and value != bits.constant:
                raise ValueError(f"{cls.__name__}: {value} where {bits.constant} is required")
            if bits.signed and value >> bits.width - 1:
                value -= 1 << bits.width
            if bits.name:
                values[bits.name] = bits.convert(value)
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bth(Header):
    """Base transport header. `psn` is reserved in SACK, NACK and probe, and the id in endpoint operations."""

    opcode: Opcode
    dest_qpn: int = 0
    psn: int = 0
    solicited: bool = False
    migrated: bool = False
    pad_bytes: int = 0
    pkey: int = 0xFFFF
    ack_request: bool = False
    rtx: bool = False
    has_timestamp: bool = False

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _Bits("opcode", 8, Opcode),
        _flag("solicited"),
        _flag("migrated"),
        _Bits("pad_bytes", 2),
        _reserved(4),  # transport version, judged by decode
        _Bits("pkey", 16),
        _reserved(8),
        _Bits("dest_qpn", 24),
        _flag("ack_request"),
        _reserved(1),
        _flag("rtx"),
        _flag("has_timestamp"),
        _reserved(4),
        _Bits("psn", 24),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Meth(Header):
    """Message numbers: `msn` counts all requests, `rqmsn` only those with an immediate."""

    rqmsn: int = 0
    msn: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (_Bits("rqmsn", 16), _Bits("msn", 16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tseth(Header):
    """When the packet was sent, in units of `TIMESTAMP_TICK_NS` modulo 2**16."""

    timestamp: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = _TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class Reth(Header):
    """Where the payload of this very packet goes, and the length of the whole message."""

    va: int = 0
    rkey: int = 0
    dma_length_bytes: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (_Bits("va", 64), _Bits("rkey", 32), _Bits("dma_length_bytes", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aeth(Header):
    """Cumulative acknowledgement of whole messages."""

    syndrome: int = 0
    msn: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (_Bits("syndrome", 8), _Bits("msn", 24))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seth(Header):
    """Selective acknowledgement: bit i of `bitmap` says PSN `cack_psn + sack_offset + i` was received.

    `cack_psn + ack_psn_offset` is the PSN that triggered it. In a reply to a probe the same 16 bits hold
    the id of the probe (read here as a signed number).
    """

    mark: SackMark = SackMark.NONE
    probe_reply: bool = False
    ack_psn_offset: int = 0
    entropy: int = 0
    cack_psn: int = 0
    cc_type: int = 0
    cc_flags: int = 0
    mpr: int = 0
    sack_offset: int = 0
    bitmap: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _reserved(9),  # type and next header, relics of an ancestor
        _Bits("mark", 2, SackMark),
        _reserved(3),
        _flag("probe_reply"),
        _reserved(1),
        _Bits("ack_psn_offset", 16, signed=True),
        _Bits("entropy", 32),
        _reserved(40),  # two context ids of an ancestor, one empty byte
        _Bits("cack_psn", 24),
        _Bits("cc_type", 4),
        _Bits("cc_flags", 4),
        _Bits("mpr", 8),
        _Bits("sack_offset", 16, signed=True),
        _Bits("bitmap", 64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CcState(Header):
    """What congestion control needs to know: timestamp echo, disorder, penalty, received bytes / 256."""

    timestamp: int = 0
    ooo_count: int = 0
    restore_cwnd: bool = False
    rcv_cwnd_pen: int = 0
    rcvd_units: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _Bits("timestamp", 16),
        _reserved(1),
        _Bits("ooo_count", 15),
        _flag("restore_cwnd"),
        _Bits("rcv_cwnd_pen", 7),
        _Bits("rcvd_units", 24),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Neth(Header):
    """Refusal of one packet, with the echo of its timestamp and entropy value."""

    reason: NackReason
    vendor: int = 0
    entropy: int = 0
    nack_psn: int = 0
    cc_type: int = 2
    cc_flags: int = 0
    timestamp: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _reserved(16),
        _Bits("reason", 8, NackReason),
        _Bits("vendor", 8),
        _Bits("entropy", 32),
        _reserved(40),
        _Bits("nack_psn", 24),
        _Bits("cc_type", 4),
        _Bits("cc_flags", 4),
        _reserved(8),
        _Bits("timestamp", 16),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Peth(Header):
    """Request for a SACK, whatever has arrived."""

    vendor: int = 0
    probe_id: int = 0
    timestamp: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _reserved(24),
        _Bits("vendor", 8),
        _Bits("probe_id", 16),
        _reserved(48),
        *_TIMESTAMP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Erth(Header):
    """Endpoint request; bit n of `port_status_mask` says port n is usable.

    `context` is ours, in bytes that MRC leaves zero: a connection of the receiver that is live with the
    sender, so that port states are believed from peers alone; 0 for none.
    """

    op: EndpointOp
    vendor: int = 0
    port_status_mask: int = 0
    context: int = 0
    timestamp: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _reserved(14),
        _Bits("op", 2, EndpointOp),
        _reserved(8),
        _Bits("vendor", 8),
        _Bits("port_status_mask", 32),
        _Bits("context", 32),
        *_TIMESTAMP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Eeth(Header):
    """Endpoint response. `op` is a plain number: its place is disputed; replies are matched by probe id."""

    op: int = 0
    vendor: int = 0
    context: int = 0
    timestamp: int = 0

    LAYOUT: ClassVar[tuple[_Bits, ...]] = (
        _reserved(10),
        _Bits("op", 2),
        _reserved(12),
        _Bits("vendor", 8),
        _reserved(32),
        _Bits("context", 32),
        _reserved(128),
        _Bits("timestamp", 16),
        _reserved(48),
    )
