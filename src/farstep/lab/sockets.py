"""UDP sockets with the kernel's batching: what enters the emulation and what leaves it.

Receive offload (UDP_GRO) hands over a burst of equal-size datagrams in one call, segmentation offload
(UDP_SEGMENT) sends one; both are told and asked by control messages, as are the ECN bits.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from farstep.lab.buffers import DATAGRAM_BYTES_MAX

SOCKET_BUFFER_BYTES = 16 * 1024 * 1024
"""Wanted socket buffers. The kernel charges about twice the payload, so this is some 60 ms at 1 Gbit/s: a busy
machine lets a process wait for tens of milliseconds. Without privileges net.core.{r,w}mem_max limits it."""

ANCILLARY_BYTES = 160
"""Room for four control messages: segment size, traffic class, arrival time, overflow count."""

SOL_UDP = socket.IPPROTO_UDP
UDP_SEGMENT = 103
UDP_GRO = 104
IP_RECVTOS = 13
IPV6_RECVTCLASS = 66
SO_TIMESTAMPNS = 35
SO_RXQ_OVFL = 40
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

UNDELIVERABLE = frozenset(
    {
        errno.ECONNREFUSED,
        errno.EAGAIN,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EPERM,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
    }
)
"""Errors that mean "this datagram does not arrive", which is what UDP is allowed to do."""

NO_OFFLOAD = frozenset({errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.EOPNOTSUPP})
"""Errors by which the kernel says that a burst cannot be segmented on its way out."""

Address = tuple[str, int]


def open_udp(bind: Address | None = None, connect: Address | None = None) -> socket.socket:
    """Opens a non-blocking UDP socket with large buffers, receive offload and ECN reporting.

    Raises:
        OSError: the address cannot be used.
    """
    host = (bind or connect or ("", 0))[0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        for forced, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                udp.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER_BYTES)
            except OSError:  # needs a privilege
                udp.setsockopt(socket.SOL_SOCKET, plain, SOCKET_BUFFER_BYTES)
        udp.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        udp.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVTCLASS, 1)
        else:
            udp.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        with contextlib.suppress(OSError):  # before Linux 5.0, where datagrams come one by one
            udp.setsockopt(SOL_UDP, UDP_GRO, 1)
        if bind is not None:
            udp.bind(bind)
        if connect is not None:
            udp.connect(connect)
    except OSError:
        udp.close()
        raise
    return udp


class UdpExit:
    """Sends packets that leave the emulation.

    Args:
        udp: socket to send from.
        address: where to; None: where the socket is connected to.
    """

    __slots__ = ("_address", "_family", "_has_offload", "_is_closed", "socket", "undeliverable")

    def __init__(self, udp: socket.socket, address: Address | None = None) -> None:
        self.socket = udp
        self.undeliverable = 0
        self._address = address
        self._family = udp.family
        self._has_offload = True
        self._is_closed = False

    def close(self) -> None:
        """Closes the socket; packets still on their way to it become undeliverable."""
        self._is_closed = True
        self.socket.close()

    def send(self, views: Sequence[memoryview], segment_bytes: int, count: int, tos: int) -> None:
        """Sends `count` datagrams lying one after the other in `views`; only the last may be shorter."""
        if self._is_closed:
            self.undeliverable += count
            return
        ancillary: list[tuple[int, int, bytes]] = []
        if count > 1:
            if not self._has_offload:
                self._send_one_by_one(views, segment_bytes, tos)
                return
            ancillary.append((SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment_bytes)))
        if tos:
            ancillary.append(self._traffic_class(tos))
        try:
            if self._address is None:
                self.socket.sendmsg(views, ancillary)
            else:
                self.socket.sendmsg(views, ancillary, 0, self._address)
        except OSError as error:
            if count > 1 and error.errno in NO_OFFLOAD:
                self._has_offload = False
                self._send_one_by_one(views, segment_bytes, tos)
            elif error.errno == errno.ECONNREFUSED:
                # It answers an earlier datagram; this one was not tried at all.
                self.undeliverable += 1
                self._try_again(views, ancillary, count)
            else:
                self._give_up(error, count)

    def _try_again(
        self, views: Sequence[memoryview], ancillary: list[tuple[int, int, bytes]], count: int
    ) -> None:
        try:
            self.socket.sendmsg(views, ancillary)
        except OSError as error:
            self._give_up(error, count)

    def _send_one_by_one(self, views: Sequence[memoryview], segment_bytes: int, tos: int) -> None:
        for view in views:
            for start in range(0, len(view), segment_bytes):
                self.send([view[start : start + segment_bytes]], segment_bytes, 1, tos)

    def _give_up(self, error: OSError, count: int) -> None:
        if error.errno not in UNDELIVERABLE and error.errno not in NO_OFFLOAD:
            raise error
        self.undeliverable += count

    def _traffic_class(self, tos: int) -> tuple[int, int, bytes]:
        if self._family == socket.AF_INET6:
            return socket.IPPROTO_IPV6, socket.IPV6_TCLASS, struct.pack("=i", tos)
        return socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", tos)


class Arrival(NamedTuple):
    """What the kernel says about a received burst."""

    segment_bytes: int
    """Size of each datagram but the last."""
    tos: int
    """Traffic class byte, ECN bits included."""
    wall_ns: int
    """When it arrived, by the system's clock; 0: not told."""
    overflow: int
    """Datagrams the socket has lost so far for lack of room; 0: none."""


def read_ancillary(ancillary: list[tuple[int, int, bytes]], num_bytes: int) -> Arrival:
    """Reads the control messages of a received burst of `num_bytes`."""
    segment_bytes, tos, wall_ns, overflow = num_bytes, 0, 0, 0
    for level, kind, data in ancillary:
        if level == SOL_UDP:
            segment_bytes = int.from_bytes(data[:4], sys.byteorder)
        elif level == socket.SOL_SOCKET:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                wall_ns = seconds * 1_000_000_000 + nanoseconds
            elif kind == SO_RXQ_OVFL:
                overflow = int.from_bytes(data[:4], sys.byteorder)
        elif kind in _TRAFFIC_CLASS:
            tos = data[0] if len(data) == 1 else int.from_bytes(data[:4], sys.byteorder) & 0xFF
    return Arrival(max(1, min(segment_bytes, DATAGRAM_BYTES_MAX)), tos, wall_ns, overflow)


_TIMESPEC = struct.Struct("@ll")
_TRAFFIC_CLASS = (socket.IP_TOS, socket.IPV6_TCLASS)
