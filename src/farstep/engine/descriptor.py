"""What two endpoints tell each other before the first packet, as bytes for any channel."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass
from typing import Any

from farstep.engine.errors import EngineError
from farstep.engine.path_mode import PLANES_MAX, PathMode
from farstep.engine.security import NO_OFFER, SecurityOffer
from farstep.mrc.addressing import Attachment

__all__ = ["ConnectionDescriptor", "PortDescriptor", "split_signature"]

_MAGIC = "farstep-mrc"
_PLAIN_VERSION = 1
_VERSION = 2  # says something of security; what says nothing stays as older ends read it
_MAX_BYTES = 65_536  # 32 ports with a few dozen scopes each fit many times over


@dataclass(frozen=True, slots=True)
class PortDescriptor:
    """A port as its peers see it. `public` maps the scope of a peer ("*" or its site) to another address.

    With an attachment, packets come along paths (mode `srv6`), and the host is where those arrive.
    """

    host: str
    port: int
    plane: int
    rate_mbps: float | None
    receive_buffer_bytes: int
    public: dict[str, tuple[str, int]]
    attachment: Attachment | None = None

    def address_for(self, site: str, peer_site: str) -> tuple[str, int]:
        """The address by which an endpoint at `site` reaches this port of an endpoint at `peer_site`."""
        if site == peer_site:
            return self.host, self.port
        return self.public.get(site) or self.public.get("*") or (self.host, self.port)


@dataclass(frozen=True, slots=True)
class ConnectionDescriptor:
    """One end of a connection: where it listens, its numbers, its limits."""

    peer_id: int
    site: str
    qpn: int
    start_psn: int
    mtu_bytes: int
    is_mtu_fixed: bool  # set by the user; otherwise found out, and smaller toward another site
    mpr: int
    wimm: int
    icrc: bool
    ports: tuple[PortDescriptor, ...]
    security: SecurityOffer = NO_OFFER

    def encode(self) -> bytes:
        """Serialises; the inverse of :meth:`decode`. A signature goes behind it, after a newline."""
        fields = asdict(self)
        for port in fields["ports"]:
            if port["attachment"] is None:
                del port["attachment"]
        version = _VERSION
        if self.security == NO_OFFER:
            del fields["security"]
            version = _PLAIN_VERSION
        return json.dumps({"protocol": _MAGIC, "version": version, **fields}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ConnectionDescriptor:
        """Parses what a peer sent.

        Raises:
            EngineError: these are not the bytes of a descriptor of this version.
        """
        body, _ = split_signature(data)
        try:
            fields: dict[str, Any] = json.loads(body)
            if fields.pop("protocol") != _MAGIC:
                raise EngineError("the peer descriptor is of another protocol")
            version = fields.pop("version")
            if version not in (_PLAIN_VERSION, _VERSION):
                raise EngineError(
                    f"the peer speaks version {version} of the descriptor, we speak {_PLAIN_VERSION} and {_VERSION}"
                )
            if version == _VERSION:
                fields["security"] = SecurityOffer(**fields["security"])
            elif "security" in fields:
                raise ValueError("security does not belong into version 1")
            ports = tuple(_port(port) for port in fields.pop("ports"))
            descriptor = cls(ports=ports, **fields)
            descriptor.check()
        except EngineError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise EngineError(f"the peer descriptor cannot be read ({_in_words(error)})") from None
        return descriptor

    @property
    def path_mode(self) -> PathMode:
        """How packets to this end find their way."""
        return "srv6" if self.ports[0].attachment else "udp"

    def check(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        _check("number of ports", len(self.ports), 1, 32)
        if len({port.attachment is None for port in self.ports}) > 1:
            raise ValueError("some ports have an attachment, others have none")
        _check("peer_id", self.peer_id, 0, 2**64 - 1)
        _check("qpn", self.qpn, 0, 2**24 - 1)
        _check("start_psn", self.start_psn, 0, 2**24 - 1)
        _check("mtu_bytes", self.mtu_bytes, 64, 60_000)
        _check("mpr", self.mpr, 1, 255)
        _check("wimm", self.wimm, 1, 32_768)
        if not isinstance(self.site, str):
            raise ValueError("site is not a text")
        if not isinstance(self.icrc, bool):
            raise ValueError("icrc is neither true nor false")
        if not isinstance(self.is_mtu_fixed, bool):
            raise ValueError("is_mtu_fixed is neither true nor false")
        self.security.check()


def split_signature(data: bytes) -> tuple[bytes, bytes]:
    """Returns what was signed of a descriptor, and the signature; that is empty where there is none.

    Raises:
        EngineError: these are no bytes, or too many.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise EngineError(f"a peer descriptor is bytes, not {type(data).__name__}")
    if len(data) > _MAX_BYTES:
        raise EngineError(f"a peer descriptor of {len(data)} bytes is longer than {_MAX_BYTES}")
    body, _, signature = bytes(data).partition(b"\n")
    return body, signature


def _port(fields: dict[str, Any]) -> PortDescriptor:
    public = {scope: _address("public address", *address) for scope, address in fields.pop("public").items()}
    attachment = fields.pop("attachment", None)
    if attachment is not None:
        attachment = Attachment(**attachment)
    port = PortDescriptor(public=public, attachment=attachment, **fields)
    _address("port", port.host, port.port)
    _check("plane", port.plane, 0, 31 if attachment is None else PLANES_MAX - 1)
    _check("receive_buffer_bytes", port.receive_buffer_bytes, 0, 2**40)
    rate = port.rate_mbps
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9
    ):
        raise ValueError(f"rate_mbps = {rate!r} is out of range")
    return port


def _address(name: str, host: Any, port: Any) -> tuple[str, int]:
    _check(name, port, 1, 65_535)
    if not isinstance(host, str):
        raise ValueError(f"the host of a {name} is not a text")
    try:
        if "%" in host:  # the scope of an IPv6 address names a device of the peer, not of this host
            raise ValueError
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"the host {host!r} of a {name} is no IP address") from None
    return host, port


def _check(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} = {value!r} is not in {low} to {high}")


def _in_words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"field {error} is missing"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    return str(error)
