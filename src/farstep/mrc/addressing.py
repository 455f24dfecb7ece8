"""What an entropy value (EV) means to a network: ports and labels, hop fields, or an SRv6 path.

An EV is 32 bits on the wire, whatever it stands for: the low half travels as UDP source port, the high half
in the IPv6 flow label, where the receiver finds it to echo it. On top of that placement

* a network that hashes headers (ECMP) takes the bits as they are,
* STEV reads them as one index per hop (`EvFormat`),
* SRv6 writes the whole path into the outer destination address (`UsidPath`, `PathTemplate`), and the EV only
  remembers which one was meant.

Nothing here opens a socket.
"""

from __future__ import annotations

import enum
import ipaddress
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from farstep.mrc.errors import InvalidFieldError, check_range

__all__ = [
    "USIDS_PER_ADDRESS_MAX",
    "Attachment",
    "EvCarriage",
    "EvField",
    "EvFormat",
    "EvMode",
    "PathTemplate",
    "SrEv",
    "Tier",
    "Usid",
    "UsidPath",
    "place_ev",
    "read_ev",
    "shift_usid",
]

USIDS_PER_ADDRESS_MAX = 6
"""A 128-bit address minus a 32-bit block leaves room for six 16-bit uSIDs (format F3216)."""


class EvCarriage(NamedTuple):
    """Where the 32 bits of an EV travel."""

    source_port: int
    flow_label: int


def place_ev(ev: int) -> EvCarriage:
    """Returns where an EV travels: low half UDP source port, high half the low 16 bits of the flow label.

    Readers of the specification disagree about the halves; this is our choice, for ECMP and STEV alike.

    >>> place_ev(0xBEEF8001)
    EvCarriage(source_port=32769, flow_label=48879)

    Raises:
        InvalidFieldError: `ev` has more than 32 bits.
    """
    check_range("ev", ev, 0, 2**32 - 1)
    return EvCarriage(source_port=ev & 0xFFFF, flow_label=ev >> 16)


def read_ev(source_port: int, flow_label: int = 0) -> int:
    """Returns the EV a receiver sees. Bits it cannot see (over IPv4, the flow label) count as zero.

    >>> hex(read_ev(0x8001, 0x0BEEF))
    '0xbeef8001'
    """
    check_range("source_port", source_port, 0, 0xFFFF)
    check_range("flow_label", flow_label, 0, 0xFFFFF)
    return (flow_label & 0xFFFF) << 16 | source_port


# ---- fields of a generated EV --------------------------------------------------------------------


class EvMode(enum.Enum):
    """How an EV is carried; the value is the most bits its fields may have together."""

    ECMP = 16
    STEV = 32
    USID = 128
    USID_SRH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EvField:
    """One field of an EV: a constant, with the bits under `mask` generated.

    Generated values run from `minimum` to `maximum` and count in the compact form, that is, before their bits
    are spread over the mask. A field that is fixed has mask, minimum and maximum 0.
    """

    width_bits: int
    init_value: int = 0
    mask: int = 0
    minimum: int = 0
    maximum: int = 0

    def __post_init__(self) -> None:
        check_range("width_bits", self.width_bits, 1, EvMode.USID_SRH.value)
        check_range("init_value", self.init_value, 0, 2**self.width_bits - 1)
        check_range("mask", self.mask, 0, 2**self.width_bits - 1)
        check_range("maximum", self.maximum, 0, 2**self.compact_bits - 1)
        check_range("minimum", self.minimum, 0, self.maximum)

    @property
    def compact_bits(self) -> int:
        """Number of generated bits."""
        return self.mask.bit_count()

    def expand(self, compact: int) -> int:
        """Spreads the bits of `compact` over the mask, most significant first, on top of `init_value`."""
        value = self.init_value
        remaining = self.compact_bits
        for position in reversed(range(self.width_bits)):
            if self.mask >> position & 1:
                remaining -= 1
                value = value & ~(1 << position) | (compact >> remaining & 1) << position
        return value

    def compact(self, value: int) -> int:
        """Collects the bits under the mask again."""
        gathered = 0
        for position in reversed(range(self.width_bits)):
            if self.mask >> position & 1:
                gathered = gathered << 1 | value >> position & 1
        return gathered


@dataclass(frozen=True, slots=True)
class EvFormat:
    """The fields of an EV, first field most significant, and what may carry them.

    >>> leaf = EvField(width_bits=8, mask=0xFF, maximum=179)      # 180 of 256 leaves exist
    >>> spine = EvField(width_bits=4, mask=0xF, maximum=15)
    >>> fixed = EvField(width_bits=4, init_value=0x5)
    >>> stev = EvFormat((leaf, spine, fixed), EvMode.STEV)
    >>> hex(stev.expand(0xB37)), stev.compact_bits, stev.count
    ('0xb375', 12, 2880)
    """

    fields: tuple[EvField, ...]
    mode: EvMode = EvMode.STEV

    def __post_init__(self) -> None:
        if not 1 <= self.width_bits <= self.mode.value:
            valid = f"1 to {self.mode.value} bits together for {self.mode.name}"
            raise InvalidFieldError("fields", f"{self.width_bits} bits", valid)

    @property
    def width_bits(self) -> int:
        """Bits of an expanded EV."""
        return sum(field.width_bits for field in self.fields)

    @property
    def compact_bits(self) -> int:
        """Bits of a compact EV."""
        return sum(field.compact_bits for field in self.fields)

    @property
    def count(self) -> int:
        """How many different EVs the field ranges allow."""
        return math.prod(field.maximum - field.minimum + 1 for field in self.fields)

    def expand(self, compact: int) -> int:
        """Returns the EV as carried, from its generated bits.

        Raises:
            InvalidFieldError: `compact` is too wide, or a field leaves its range.
        """
        check_range("compact", compact, 0, 2**self.compact_bits - 1)
        expanded = 0
        remaining = self.compact_bits
        for index, field in enumerate(self.fields):
            remaining -= field.compact_bits
            own = compact >> remaining & (1 << field.compact_bits) - 1
            check_range(f"fields[{index}]", own, field.minimum, field.maximum)
            expanded = expanded << field.width_bits | field.expand(own)
        return expanded

    def compact(self, expanded: int) -> int:
        """Returns the generated bits of an EV as carried."""
        check_range("expanded", expanded, 0, 2**self.width_bits - 1)
        gathered = 0
        remaining = self.width_bits
        for field in self.fields:
            remaining -= field.width_bits
            own = expanded >> remaining & (1 << field.width_bits) - 1
            gathered = gathered << field.compact_bits | field.compact(own)
        return gathered

    def values(self) -> Iterator[int]:
        """Yields every compact EV the field ranges allow, in ascending order."""
        for choice in itertools.product(*(range(f.minimum, f.maximum + 1) for f in self.fields)):
            compact = 0
            for field, own in zip(self.fields, choice, strict=True):
                compact = compact << field.compact_bits | own
            yield compact


# ---- SRv6 uSID ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsidPath:
    """An SRv6 path as one address: a 32-bit locator block and up to six 16-bit uSIDs, next hop first.

    >>> path = UsidPath.parse("fcbb:bbbb:0103:0207:0105:f011::")
    >>> [hex(usid) for usid in path.usids]
    ['0x103', '0x207', '0x105', '0xf011']
    >>> path.shifted().address
    IPv6Address('fcbb:bbbb:207:105:f011::')

    Invariant: no uSID is 0. Zero marks the end, and some switches drop a packet whose second uSID is 0.
    """

    block: int
    usids: tuple[int, ...]

    def __post_init__(self) -> None:
        check_range("block", self.block, 0, 2**32 - 1)
        check_range("len(usids)", len(self.usids), 0, USIDS_PER_ADDRESS_MAX)
        for index, usid in enumerate(self.usids):
            check_range(f"usids[{index}]", usid, 1, 0xFFFF)

    @classmethod
    def parse(cls, address: str | int | bytes | ipaddress.IPv6Address) -> UsidPath:
        """Reads a path from a destination address.

        Raises:
            InvalidFieldError: a zero uSID has others behind it.
            ipaddress.AddressValueError: `address` is no IPv6 address.
        """
        number = int(ipaddress.IPv6Address(address))
        parts = [number >> shift & 0xFFFF for shift in range(80, -1, -16)]
        while parts and parts[-1] == 0:
            parts.pop()
        return cls(number >> 96, tuple(parts))

    @property
    def address(self) -> ipaddress.IPv6Address:
        """The outer destination address."""
        number = self.block
        for usid in self.usids:
            number = number << 16 | usid
        return ipaddress.IPv6Address(number << 16 * (USIDS_PER_ADDRESS_MAX - len(self.usids)))

    def shifted(self) -> UsidPath:
        """What a switch forwards: the first uSID consumed (RFC 9800, NEXT-CSID)."""
        return UsidPath(self.block, self.usids[1:])


def shift_usid(address: str | ipaddress.IPv6Address) -> ipaddress.IPv6Address:
    """Moves the 96 uSID bits of an address 16 to the left, as a switch does, and fills with zeros.

    >>> shift_usid("fcbb:bbbb:0105:f011::")
    IPv6Address('fcbb:bbbb:f011::')
    """
    number = int(ipaddress.IPv6Address(address))
    return ipaddress.IPv6Address(number >> 96 << 96 | number << 16 & (1 << 96) - 1)


class Tier(enum.IntEnum):
    """What a uSID of our plan names. 0 stays free: no uSID is 0. 7 would leave the global id block."""

    T0 = 1
    T1 = 2
    T2 = 3
    DOWNLINK = 6


@dataclass(frozen=True, slots=True)
class Usid:
    """A uSID of our plan: tier (3 bits), plane (3 bits), index (10 bits).

    >>> hex(Usid(Tier.T1, plane=2, index=7).value)
    '0x4807'
    >>> Usid.parse(0x4807)
    Usid(tier=<Tier.T1: 2>, plane=2, index=7)
    """

    tier: Tier
    plane: int
    index: int

    def __post_init__(self) -> None:
        check_range("plane", self.plane, 0, 7)
        check_range("index", self.index, 0, 1023)

    @property
    def value(self) -> int:
        """The 16 bits on the wire."""
        return self.tier << 13 | self.plane << 10 | self.index

    @classmethod
    def parse(cls, value: int) -> Usid:
        """Reads the 16 bits on the wire.

        Raises:
            InvalidFieldError: more than 16 bits, or a tier that our plan does not use.
        """
        check_range("usid", value, 1, 0xFFFF)
        try:
            tier = Tier(value >> 13)
        except ValueError:
            valid = ", ".join(f"{tier.value} ({tier.name})" for tier in Tier)
            raise InvalidFieldError("usid.tier", value >> 13, valid) from None
        return cls(tier, value >> 10 & 7, value & 1023)


@dataclass(frozen=True, slots=True)
class SrEv:
    """An EV that stands for an SRv6 path: plane (3 bits), T0 uplink (10 bits), 19 zero bits.

    >>> hex(SrEv(plane=5, uplink=3).value)
    '0xa0180000'
    """

    plane: int
    uplink: int

    def __post_init__(self) -> None:
        check_range("plane", self.plane, 0, 7)
        check_range("uplink", self.uplink, 0, 1023)

    @property
    def value(self) -> int:
        """The 32 bits of the EV."""
        return self.plane << 29 | self.uplink << 19

    @classmethod
    def parse(cls, ev: int) -> SrEv:
        """Reads an EV.

        Raises:
            InvalidFieldError: one of the 19 low bits is set.
        """
        check_range("ev", ev, 0, 2**32 - 1)
        if ev & (1 << 19) - 1:
            raise InvalidFieldError("ev", hex(ev), "19 zero bits behind plane and uplink")
        return cls(ev >> 29, ev >> 19 & 1023)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTemplate:
    """All paths from one host to another; an EV picks one, so no table of addresses is needed.

    The plane of the EV goes into every uSID, its uplink number into the uSID of the T1 switch.

    >>> row = PathTemplate(block=0xFCBBBBBB, source_leaf=3, destination_leaf=5, downlink=0x11)
    >>> row.path(SrEv(plane=0, uplink=7)).address
    IPv6Address('fcbb:bbbb:2003:4007:2005:c011::')
    """

    block: int
    source_leaf: int
    destination_leaf: int
    downlink: int

    def __post_init__(self) -> None:
        check_range("block", self.block, 0, 2**32 - 1)
        for name in ("source_leaf", "destination_leaf", "downlink"):
            check_range(name, getattr(self, name), 0, 1023)

    def path(self, ev: SrEv) -> UsidPath:
        """Returns the uSIDs {T0, T1, T0', downlink}, or {T0, downlink} when both hosts hang on one T0."""
        hops: Sequence[tuple[Tier, int]] = (
            (Tier.T0, self.source_leaf),
            (Tier.T1, ev.uplink),
            (Tier.T0, self.destination_leaf),
            (Tier.DOWNLINK, self.downlink),
        )
        if self.source_leaf == self.destination_leaf:
            hops = (hops[0], hops[-1])
        return UsidPath(self.block, tuple(Usid(tier, ev.plane, index).value for tier, index in hops))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Where a NIC hangs in a network of uSIDs, in every plane alike. Two of these make all paths between two NICs.

    Attributes:
        block: the 32 bits that all uSID addresses begin with.
        leaf: number of its T0 switch.
        downlink: its number among the NICs of that T0.
        uplinks: uplinks of the T0; EVs have uplink numbers below this.

    >>> here = Attachment(block=0xFCBBBBBB, leaf=3, downlink=2, uplinks=2)
    >>> there = Attachment(block=0xFCBBBBBB, leaf=5, downlink=0x11, uplinks=2)
    >>> [str(here.paths_to(there).path(ev).address) for ev in here.evs_to(there, plane=0)]
    ['fcbb:bbbb:2003:4000:2005:c011::', 'fcbb:bbbb:2003:4001:2005:c011::']
    >>> there.arrival(plane=0)
    IPv6Address('fcbb:bbbb:c011::')
    """

    block: int
    leaf: int
    downlink: int
    uplinks: int

    def __post_init__(self) -> None:
        check_range("block", self.block, 0, 2**32 - 1)
        check_range("leaf", self.leaf, 0, 1023)
        check_range("downlink", self.downlink, 0, 1023)
        check_range("uplinks", self.uplinks, 1, 1024)

    def arrival(self, plane: int) -> ipaddress.IPv6Address:
        """Returns the address at which packets arrive at the port in a plane: what is left of every path to it."""
        return UsidPath(self.block, (Usid(Tier.DOWNLINK, plane, self.downlink).value,)).address

    def gateway(self, plane: int) -> ipaddress.IPv6Address:
        """Returns the address of our T0 in a plane, with which every path from here begins."""
        return UsidPath(self.block, (Usid(Tier.T0, plane, self.leaf).value,)).address

    def paths_to(self, peer: Attachment) -> PathTemplate:
        """Returns the template of the paths to another NIC.

        Raises:
            InvalidFieldError: it is in a network of another block.
        """
        if peer.block != self.block:
            raise InvalidFieldError("block", hex(peer.block), f"{self.block:#x}, as here")
        return PathTemplate(
            block=self.block,
            source_leaf=self.leaf,
            destination_leaf=peer.leaf,
            downlink=peer.downlink,
        )

    def evs_to(self, peer: Attachment, *, plane: int) -> tuple[SrEv, ...]:
        """Returns the EVs of a plane, each a path of its own; between NICs of one T0 there is one."""
        count = 1 if peer.leaf == self.leaf else self.uplinks
        return tuple(SrEv(plane, uplink) for uplink in range(count))
