"""Cables with delay where the kernel has none: TUN devices at both ends, and the path emulator's carriers between.

A TUN device gives what is sent out of it to a process, and takes from it what shall arrive. So rate, queue, loss,
delay and ECN marks on such a cable are those of `farstep.lab.carrier`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from farstep.fabric.channels import Channel, ChannelState
from farstep.lab.buffers import BufferPool
from farstep.lab.carrier import ECN_CE, Carrier
from farstep.lab.poller import Poller

__all__ = ["Tunnel", "TunnelEnd", "Tunnels", "open_tun"]

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
TUNSETCARRIER = 0x400454E2
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000

READS_PER_WAKE = 64
"""Packets taken from one device before others get their turn."""

RELEASE_INTERVAL_NS = 100_000
"""Packets that become due within this are sent together."""

_IPV6 = 6
_SPILL = memoryview(bytearray(65_536))

_libc = ctypes.CDLL(None, use_errno=True)


def open_tun(netns: str, interface: str) -> int:
    """Makes a TUN device in a network namespace and returns its descriptor.

    Args:
        netns: file that stands for the namespace.
        interface: name of the device.

    Raises:
        OSError: there is no such namespace, or the kernel makes no such device.
    """
    ours = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    theirs = -1
    try:
        theirs = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        _enter(theirs)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                request = struct.pack("16sH22x", interface.encode(), IFF_TUN | IFF_NO_PI)
                fcntl.ioctl(device, TUNSETIFF, request)
            except BaseException:
                os.close(device)
                raise
        finally:
            _enter(ours)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    return device


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelEnd:
    """An end of a cable: where its device is made."""

    netns: str
    interface: str


class _Exit:
    """Puts packets into a device."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.refused = 0

    def send(self, views: Sequence[memoryview], segment_bytes: int, count: int, tos: int) -> None:
        for view in views:
            for start in range(0, len(view), segment_bytes):
                packet = view[start : start + segment_bytes]
                if tos & ECN_CE == ECN_CE and packet[0] >> 4 == _IPV6:
                    packet[1] |= ECN_CE << 4  # the low half of the traffic class; no checksum covers it
                try:
                    os.write(self._fd, packet)
                except OSError:  # no carrier, or set down: lost as on any cable
                    self.refused += 1


class Tunnel:
    """A cable: a device at each end, a carrier for each direction.

    Raises:
        OSError: a device cannot be made.
    """

    def __init__(
        self, number: int, ends: Sequence[TunnelEnd], states: Sequence[ChannelState], pool: BufferPool
    ) -> None:
        self.devices: list[int] = []
        try:
            for end in ends:
                self.devices.append(open_tun(end.netns, end.interface))
        except BaseException:
            self.close()
            raise
        self.exits = [_Exit(device) for device in reversed(self.devices)]
        self.carriers = [
            Carrier(Channel(str(number), 0, str(side), str(1 - side)), state, number, pool)
            for side, state in enumerate(states)
        ]

    def set_carrier(self, is_on: bool) -> None:
        """Says whether the ends see a carrier."""
        for device in self.devices:
            fcntl.ioctl(device, TUNSETCARRIER, struct.pack("i", int(is_on)))

    def close(self) -> None:
        """Removes the devices."""
        for device in self.devices:
            with contextlib.suppress(OSError):
                os.close(device)
        self.devices = []


class Tunnels:
    """All carried cables of a lab."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._pool = BufferPool()
        self._tunnels: dict[int, Tunnel] = {}
        self._wakeups: list[tuple[int, int, Carrier]] = []
        self._sequence = 0
        self._not_before_ns = 0

    def add(self, number: int, ends: Sequence[TunnelEnd], states: Sequence[ChannelState]) -> None:
        """Makes the devices of a cable and begins to carry its packets.

        Raises:
            OSError: a device cannot be made.
        """
        tunnel = Tunnel(number, ends, states, self._pool)
        self._tunnels[number] = tunnel
        for side, device in enumerate(tunnel.devices):
            self._poller.add(device, lambda side=side: self._receive(tunnel, side))  # type: ignore[misc]

    def set_state(self, link: int, state: ChannelState) -> None:
        """Changes what a directed link does to packets."""
        carrier = self._tunnels[link >> 1].carriers[link & 1]
        carrier.set_state(state, time.monotonic_ns())
        carrier.wakeup = 0
        self._arm(carrier)

    def set_carrier(self, cable: int, is_on: bool) -> None:
        """Says whether the ends of a cable see a carrier."""
        self._tunnels[cable].set_carrier(is_on)

    def numbers(self) -> list[int]:
        """Returns the numbers of the cables."""
        return sorted(self._tunnels)

    @property
    def next_due_ns(self) -> int | None:
        """When `release` has something to do; None while nothing is on its way."""
        return max(self._wakeups[0][0], self._not_before_ns) if self._wakeups else None

    def release(self, now_ns: int) -> None:
        """Sends what is due."""
        while self._wakeups and self._wakeups[0][0] <= now_ns:
            _, number, carrier = heapq.heappop(self._wakeups)
            if number == carrier.wakeup:  # and was not replaced when the link changed
                carrier.wakeup = 0
                carrier.release(now_ns)
                self._arm(carrier)
        self._not_before_ns = now_ns + RELEASE_INTERVAL_NS

    def close(self) -> None:
        """Removes all devices."""
        for tunnel in self._tunnels.values():
            for device in tunnel.devices:
                self._poller.remove(device)
            tunnel.close()
        self._tunnels.clear()

    def _receive(self, tunnel: Tunnel, side: int) -> None:
        device, carrier, exit = tunnel.devices[side], tunnel.carriers[side], tunnel.exits[side]
        for _ in range(READS_PER_WAKE):
            space = self._pool.space()
            try:
                num_bytes = os.readv(device, [_SPILL if space is None else space])
            except OSError:  # nothing more to read, or the device has no carrier
                break
            if space is None:
                carrier.drop(num_bytes, num_bytes, "memory")
                continue
            chunk = self._pool.take(num_bytes)
            packet = space[:num_bytes]
            carrier.offer(time.monotonic_ns(), packet, num_bytes, _traffic_class(packet), exit, chunk)
            self._pool.release(chunk)
        if not carrier.wakeup:
            self._arm(carrier)

    def _arm(self, carrier: Carrier) -> None:
        due_ns = carrier.next_due_ns
        if due_ns is not None:
            self._sequence += 1
            carrier.wakeup = self._sequence
            heapq.heappush(self._wakeups, (due_ns, self._sequence, carrier))


def _traffic_class(packet: memoryview) -> int:
    """Returns the traffic class of an IPv6 packet; 0, which is never marked, for others."""
    if len(packet) < 2 or packet[0] >> 4 != _IPV6:
        return 0
    return (packet[0] & 0x0F) << 4 | packet[1] >> 4
