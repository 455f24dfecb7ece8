"""How large a packet a local address can send without being cut into fragments."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

__all__ = ["EMULATED_SITE_MTU_BYTES", "LOCAL_MTU_MAX_BYTES", "SITE_MTU_BYTES", "mtu_for_address"]

LOCAL_MTU_MAX_BYTES = 16_000
"""Payload of a full packet on the loopback device: four of them fill one segmented send, and more gains nothing."""
SITE_MTU_BYTES = 1_360
"""Payload of a full packet to another site: what every provider carries, tunnels included."""
EMULATED_SITE_MTU_BYTES = 4_096
"""The same when both sites are this machine: MRC's own size."""
MRC_MTU_BYTES = 4_096
"""Payload of a full packet where the device allows it (MRC, section 3.1)."""
_HEADER_BYTES = 40 + 8 + 44  # IPv6, UDP, and ours
_SIOCGIFADDR = 0x8915
_FALLBACK_DEVICE_MTU_BYTES = 1_500


def mtu_for_address(host: str) -> int:
    """Payload of a full packet in bytes that leaves the device of this local address in one piece.

    Args:
        host: numeric address that can be bound; a wildcard stands for all devices.

    >>> mtu_for_address("127.0.0.1")
    16000
    """
    address = ipaddress.ip_address(host)
    if address.is_loopback:
        return LOCAL_MTU_MAX_BYTES
    devices = [name for _, name in socket.if_nameindex()]
    if not address.is_unspecified:
        devices = [name for name in devices if host in _addresses(name)]
    sizes = [_device_mtu_bytes(name) for name in devices if name != "lo"]
    device_mtu = min(sizes, default=_FALLBACK_DEVICE_MTU_BYTES)
    fitting = (device_mtu - _HEADER_BYTES) // 16 * 16
    return max(64, min(fitting, MRC_MTU_BYTES))


def _device_mtu_bytes(name: str) -> int:
    try:
        return int(Path("/sys/class/net", name, "mtu").read_text())
    except (OSError, ValueError):
        return _FALLBACK_DEVICE_MTU_BYTES


def _addresses(name: str) -> set[str]:
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", name.encode()[:15])
            found.add(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]))
        except OSError:
            pass  # the device has no IPv4 address
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        fields = line.split()
        if fields[-1] == name:
            found.add(str(ipaddress.ip_address(bytes.fromhex(fields[0]))))
    return found
