"""What an endpoint is configured with."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import get_args

from farstep import _native
from farstep.engine.path_mode import PathModeWish
from farstep.engine.security import SecurityProfile
from farstep.mrc.addressing import Attachment
from farstep.mrc.errors import InvalidFieldError, check_range
from farstep.mrc.profiles import CongestionProfile, EvProfile

__all__ = ["EndpointProfile", "PortConfig", "split_address"]

MPR_UNIT_PACKETS = 128
"""Unit of the receive window on the wire."""
SEGMENT_OVERHEAD_BYTES = 44
"""Headers, immediate and iCRC of one data packet."""
DATAGRAM_OVERHEAD_MAX_BYTES = 128
"""What any packet has around its payload, at most."""
PROTECTION_MORE_BYTES = _native.PROTECTION_BYTES - 4
"""What a protected packet is longer: packet number and tag, in place of the iCRC."""
OFFLOAD_MAX_BYTES = 65_000
"""What one segmented UDP send holds, a little below the 16-bit length."""
MAX_BURST_SEGMENTS = 64


def split_address(address: str) -> tuple[str, int]:
    """Splits "host", "host:port" or "[v6]:port" and resolves the host to a numeric address.

    Raises:
        InvalidFieldError: the text has another form, or the host has no address.
    """
    valid = '"host", "host:port" or "[IPv6]:port" with a port from 0 to 65535'
    if not isinstance(address, str):
        raise InvalidFieldError("address", address, valid)
    host, port = address, "0"
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else ("0" if bracket and not rest else "")
    elif address.count(":") == 1:
        host, _, port = address.partition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidFieldError("address", address, valid)
    return _numeric(host), int(port)


def _numeric(host: str) -> str:
    if "%" in host:
        raise InvalidFieldError("address", host, "an address without a scope")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise InvalidFieldError("address", host, f"a name or number that resolves ({error})") from None
    return str(found[0][4][0])


@dataclass(frozen=True, slots=True)
class PortConfig:
    """One local port of an endpoint: an address to bind, and the plane of the network it belongs to.

    Attributes:
        bind: "host:port"; port 0 takes a free one. In path mode `srv6` the port number alone counts: the address is
            the one at which the paths of the plane arrive.
        plane: ports of two endpoints with the same plane number are joined by paths. Where no number is shared,
            every local port is joined to every remote one.
        rate_mbps: line rate in 10^6 bit/s, for pacing and for the size of the window; None: learned.
        attachment: where the network card hangs in a network of SRv6 micro-SIDs, for path mode `srv6`.
    """

    bind: str = "127.0.0.1:0"
    plane: int = 0
    rate_mbps: float | None = None
    attachment: Attachment | None = None

    def __post_init__(self) -> None:
        check_range("plane", self.plane, 0, 31)
        if self.attachment is not None and not isinstance(self.attachment, Attachment):
            raise InvalidFieldError("attachment", self.attachment, "an Attachment, or None")
        if self.rate_mbps is not None:
            check_range("rate_mbps", self.rate_mbps, 0.01, 10_000_000, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointProfile:
    """Settings of the transport. The defaults suit hosts of one building as well as sites far apart.

    Attributes:
        path_mode: `udp`: routers choose the way of a packet by its ports. `srv6`: the sender does, by its destination
            address; every port needs an attachment. `auto`: `srv6` where ports have attachments and this host can do
            it, otherwise `udp`, with a warning if that is a surprise.
        mtu_bytes: payload of a full packet; both ends use the smaller of the two. None: what the device of each port
            sends in one piece, at most MRC's 4096 (16,000 on loopback), and 1360 toward another site.
        burst_segments: packets that leave together on one entropy value. 1 sprays every packet on its own path;
            more let the kernel segment and merge, which is what makes user space fast.
        mpr: receive window in units of 128 packets, 1 to 255. After a path fails silently it must hold what is sent
            until the loss is noticed and made good, some three round trips: 64 carries 800 Mbit/s over 50 ms.
        wimm: write-immediates in flight at most.
        send_queue: messages handed to the protocol at once, a power of two; more wait in a queue without limit.
        immediate_queue: immediates received and not yet taken, a power of two.
        sack_threshold_bytes: received bytes after which a SACK is due (UET: 16 KiB).
        ev: entropy values and their life cycle. Every value of a plane is a UDP source port of its own.
        congestion: NSCC and its knobs.
        rto_base_ns: least retransmission timeout; the measured round trip raises it.
        rto_max_ns: where its doubling stops.
        linear_count: timeouts before it doubles.
        exponential_count: doublings before the connection fails; 25: never.
        loss_slack_min_ns: least lateness, while later packets arrive, that counts as loss.
        icrc: whether packets carry and check the invariant CRC.
        receive_buffer_bytes: asked of the kernel for each port.
        send_buffer_bytes: asked of the kernel for each source port.
        max_connections: connections of one endpoint at most.
        max_regions: registered regions of one endpoint at most.
        seed: of path selection, connection numbers and keys of regions; None: from the system.
        security: who this endpoint is, and what protection it asks for.
    """

    path_mode: PathModeWish = "auto"
    mtu_bytes: int | None = None
    burst_segments: int = 15
    mpr: int = 64
    wimm: int = 256
    send_queue: int = 1024
    immediate_queue: int = 4096
    sack_threshold_bytes: int = 16_384
    ev: EvProfile = field(default_factory=lambda: EvProfile(active_per_plane=8, backup_per_plane=4))
    congestion: CongestionProfile = field(default_factory=CongestionProfile)
    rto_base_ns: int = 67_108_864
    rto_max_ns: int = 2_000_000_000
    linear_count: int = 3
    exponential_count: int = 16
    loss_slack_min_ns: int = 3_000_000
    icrc: bool = True
    receive_buffer_bytes: int = 4 << 20
    send_buffer_bytes: int = 4 << 20
    max_connections: int = 256
    max_regions: int = 4096
    seed: int | None = None
    security: SecurityProfile = field(default_factory=SecurityProfile)

    def __post_init__(self) -> None:
        if self.path_mode not in get_args(PathModeWish):
            raise InvalidFieldError(
                "path_mode", self.path_mode, "one of " + ", ".join(get_args(PathModeWish))
            )
        if self.mtu_bytes is not None:
            check_range("mtu_bytes", self.mtu_bytes, 64, 60_000)
        check_range("burst_segments", self.burst_segments, 1, MAX_BURST_SEGMENTS)
        check_range("mpr", self.mpr, 1, 255)
        check_range("wimm", self.wimm, 1, 32_768)
        for name in ("send_queue", "immediate_queue"):
            value = getattr(self, name)
            check_range(name, value, 2, 32_768)
            if value & (value - 1):
                raise InvalidFieldError(name, value, "a power of two from 2 to 32768")
        check_range("sack_threshold_bytes", self.sack_threshold_bytes, 1, 1 << 24)
        check_range("rto_base_ns", self.rto_base_ns, 100_000, 17_179_869_184)
        check_range("rto_max_ns", self.rto_max_ns, self.rto_base_ns, 600_000_000_000)
        check_range("linear_count", self.linear_count, 0, 7)
        check_range("exponential_count", self.exponential_count, 0, 25)
        check_range("loss_slack_min_ns", self.loss_slack_min_ns, 1_000, 1_000_000_000)
        check_range("receive_buffer_bytes", self.receive_buffer_bytes, 65_536, 1 << 30)
        check_range("send_buffer_bytes", self.send_buffer_bytes, 65_536, 1 << 30)
        check_range("max_connections", self.max_connections, 1, 4096)
        check_range("max_regions", self.max_regions, 1, 65_536)
        if self.seed is not None:
            check_range("seed", self.seed, 0, 2**64 - 1)
        if not isinstance(self.icrc, bool):
            raise InvalidFieldError("icrc", self.icrc, "True or False")
        if not isinstance(self.congestion, CongestionProfile):
            raise InvalidFieldError("congestion", self.congestion, "a CongestionProfile")
        if not isinstance(self.security, SecurityProfile):
            raise InvalidFieldError("security", self.security, "a SecurityProfile")
        if not isinstance(self.ev, EvProfile):
            raise InvalidFieldError("ev", self.ev, "an EvProfile")
        if self.ev.mode != "generated":
            raise InvalidFieldError(
                "ev.mode", self.ev.mode, "'generated': entropy values are UDP source ports here"
            )

    def burst_packets(self, mtu_bytes: int, *, is_protected: bool = False) -> int:
        """Packets of one burst at this MTU: what is asked for, if one segmented send can hold it."""
        around = SEGMENT_OVERHEAD_BYTES + (PROTECTION_MORE_BYTES if is_protected else 0)
        return max(1, min(self.burst_segments, OFFLOAD_MAX_BYTES // (mtu_bytes + around)))
