"""A stranger on the line between two endpoints of different sites: sees all datagrams, and may send others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from farstep.coordinator.certificates import make_certificates
from farstep.engine import Connection, Endpoint, EndpointProfile, Identity, Protection, SecurityProfile
from farstep.membership.tls import file_stem
from tests.integration.engine_pair import Pair

SMALL = EndpointProfile(mtu_bytes=1024, burst_segments=1)
"""Every packet is a datagram of its own, also for who listens."""


def identities(folder: Path, *names: str) -> dict[str, Identity]:
    """Makes certificates of one authority and returns who has them."""
    make_certificates(folder, list(names))
    return {name: Identity.in_directory(folder, file_stem(name)) for name in names}


def secured(
    profile: EndpointProfile, identity: Identity, protection: Protection | str, *, key_bits: int = 128
) -> EndpointProfile:
    """The same profile with an identity that wants this protection between sites."""
    wish = SecurityProfile(identity=identity, between_sites=Protection(protection), key_bits=key_bits)
    return replace(profile, security=wish)


@dataclass
class Tap:
    """Passes the datagrams for one port on, if `lets_pass` agrees, and keeps a copy of each."""

    target: tuple[str, int]
    lets_pass: Callable[[bytes], bool] = lambda _: True
    seen: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.05)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            try:
                datagram = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            self.seen.append(datagram)
            if self.lets_pass(datagram):
                self._socket.sendto(datagram, self.target)

    def send(self, datagram: bytes) -> None:
        """Sends a datagram of our own to the target."""
        self._socket.sendto(datagram, self.target)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def tapped_pair(profile_a: EndpointProfile, profile_b: EndpointProfile) -> Iterator[tuple[Pair, Tap, Tap]]:
    """Endpoints of two sites, with a tap on the way to `b` and one on the way to `a`."""
    with (
        Endpoint(["127.0.0.1"], profile=profile_a, name="a", site="here") as a,
        Endpoint(["127.0.0.1"], profile=profile_b, name="b", site="there") as b,
    ):
        to_b, to_a = Tap(b.ports[0]), Tap(a.ports[0])
        b.set_public_addresses(0, {"*": to_b.address})
        a.set_public_addresses(0, {"*": to_a.address})
        try:
            yield Pair(a, b, *joined(a, b)), to_b, to_a
        finally:
            to_b.close()
            to_a.close()


def joined(a: Endpoint, b: Endpoint) -> tuple[Connection, Connection]:
    """Joins two endpoints by one more connection."""
    to_b, to_a = a.create_connection(peer_name="b"), b.create_connection(peer_name="a")
    to_b.connect(to_a.descriptor)
    to_a.connect(to_b.descriptor)
    return to_b, to_a
