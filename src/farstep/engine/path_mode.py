"""How packets find their way: by their ports through networks that hash (`udp`), or by their address (`srv6`)."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from farstep.engine.errors import EngineError
from farstep.mrc.addressing import Attachment
from farstep.mrc.errors import InvalidFieldError

if TYPE_CHECKING:
    from farstep.engine.profile import PortConfig

__all__ = ["PathMode", "PathModeWish", "choose_path_mode", "why_never_srv6", "why_not_srv6"]

PathMode = Literal["udp", "srv6"]
PathModeWish = Literal["auto", "udp", "srv6"]

PLANES_MAX = 8
"""What the three bits of a uSID's plane hold."""

_log = logging.getLogger("farstep.engine")

# <linux/udp.h> and <linux/in6.h>; Python's socket module does not name them.
_UDP_NO_CHECK6_TX, _UDP_NO_CHECK6_RX = 101, 102
_IPV6_FLOWINFO, _IPV6_FLOWINFO_SEND = 11, 33
_ANY_PORT = 9  # routes do not depend on it
_PROBE_LABEL = 0x8BEEF
_LABEL_MASK = 0xFFFFF
_PROBE_TIMEOUT_S = 1.0  # of a packet to ourselves, which needs none


def choose_path_mode(wish: PathModeWish, ports: Sequence[PortConfig]) -> PathMode:
    """Returns the path mode of an endpoint.

    With "auto" that is `srv6` where every port has an attachment and this host can do it; where it cannot, a warning
    says why, and it is `udp`.

    Raises:
        InvalidFieldError: some ports have an attachment and some have none, or none has and `srv6` is asked for.
        EngineError: `srv6` is asked for, and something is missing on this host.
    """
    attachments = [port.attachment for port in ports]
    if wish == "udp" or (wish == "auto" and not any(attachments)):
        return "udp"
    if not all(attachments):
        missing = [i for i, attachment in enumerate(attachments) if attachment is None]
        raise InvalidFieldError(
            "ports", f"no attachment on port {missing[0]}", "one on every port, or on none"
        )
    for port in ports:
        if port.plane >= PLANES_MAX:
            raise InvalidFieldError("plane", port.plane, f"0 to {PLANES_MAX - 1} in path mode srv6")
    reasons = [
        reason for port in ports if port.attachment and (reason := why_not_srv6(port.attachment, port.plane))
    ]
    if not reasons:
        return "srv6"
    if wish == "srv6":
        raise EngineError(f"path mode srv6 is not possible here: {reasons[0]}")
    _log.warning("path mode srv6 is not possible here: %s; udp is used instead", reasons[0])
    return "udp"


def why_not_srv6(attachment: Attachment, plane: int) -> str | None:
    """Returns what this host lacks to send and receive along paths of a plane; None if nothing.

    Sends a packet without checksum to its own address, and looks whether it comes with its flow label.
    """
    arrival, gateway = str(attachment.arrival(plane)), str(attachment.gateway(plane))
    try:
        probe = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    except OSError as error:
        return f"there is no IPv6 ({error.strerror})"
    with probe:
        if lacks := _lacking(probe):
            return lacks
        try:
            probe.bind((arrival, 0))
        except OSError as error:
            return f"the arrival address {arrival} of plane {plane} is not an address of this host ({error.strerror})"
        return _why_not_labelled(probe) or _why_not_routed(arrival, gateway, plane)


def why_never_srv6() -> str | None:
    """Returns what this kernel lacks, whatever network it is in; None if nothing."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            return _lacking(probe)
    except OSError as error:
        return f"there is no IPv6 ({error.strerror})"


def _lacking(probe: socket.socket) -> str | None:
    for level, option, name in (
        (socket.IPPROTO_UDP, _UDP_NO_CHECK6_TX, "UDP_NO_CHECK6_TX"),
        (socket.IPPROTO_UDP, _UDP_NO_CHECK6_RX, "UDP_NO_CHECK6_RX"),
        (socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, "IPV6_FLOWINFO_SEND"),
        (socket.IPPROTO_IPV6, _IPV6_FLOWINFO, "IPV6_FLOWINFO"),
    ):
        try:
            probe.setsockopt(level, option, 1)
        except OSError as error:
            return f"the kernel has no {name} ({error.strerror})"
    return None


def _why_not_labelled(probe: socket.socket) -> str | None:
    host, port, *_ = probe.getsockname()
    probe.settimeout(_PROBE_TIMEOUT_S)
    try:
        probe.sendto(b"", (host, port, _PROBE_LABEL, 0))
        _, control, _, _ = probe.recvmsg(1, 256)
    except OSError as error:
        cause = error.strerror or "it does not arrive"
        return f"a packet with a flow label and no checksum cannot be sent to {host} ({cause})"
    for level, kind, data in control:
        if (level, kind) == (socket.IPPROTO_IPV6, _IPV6_FLOWINFO):
            (label,) = struct.unpack_from("!I", data)
            if label & _LABEL_MASK == _PROBE_LABEL:
                return None
    return "the kernel does not tell the flow label of a packet (IPV6_FLOWINFO)"


def _why_not_routed(arrival: str, gateway: str, plane: int) -> str | None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        probe.bind((arrival, 0))
        try:
            probe.connect((gateway, _ANY_PORT))
        except OSError as error:
            return f"no route leads to {gateway}, the T0 switch of plane {plane} ({error.strerror})"
    return None
