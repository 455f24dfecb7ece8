"""What two endpoints tell each other before the first packet, as bytes for any channel."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from farstep.engine.errors import EngineError

__all__ = ["ConnectionDescriptor", "PortDescriptor"]

_MAGIC = "farstep-mrc"
_VERSION = 1
_MAX_BYTES = 65_536  # 32 ports with a few dozen scopes each fit many times over


@dataclass(frozen=True, slots=True)
class PortDescriptor:
    """A port as its peers see it. `public` maps the scope of a peer ("*" or its site) to another address."""

    host: str
    port: int
    plane: int
    rate_mbps: float | None
    receive_buffer_bytes: int
    public: dict[str, tuple[str, int]]

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

    def encode(self) -> bytes:
        """Serialises; the inverse of :meth:`decode`."""
        return json.dumps({"protocol": _MAGIC, "version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ConnectionDescriptor:
        """Parses what a peer sent.

        Raises:
            EngineError: these are not the bytes of a descriptor of this version.
        """
        if len(data) > _MAX_BYTES:
            raise EngineError(f"a peer descriptor of {len(data)} bytes is longer than {_MAX_BYTES}")
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields.pop("protocol") != _MAGIC:
                raise EngineError("the peer descriptor is of another protocol")
            version = fields.pop("version")
            if version != _VERSION:
                raise EngineError(f"the peer speaks version {version} of the descriptor, we speak {_VERSION}")
            ports = tuple(_port(port) for port in fields.pop("ports"))
            descriptor = cls(ports=ports, **fields)
            descriptor.check()
        except EngineError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EngineError(f"the peer descriptor cannot be read ({error})") from None
        return descriptor

    def check(self) -> None:
        """Raises ValueError naming the first field that is out of range."""
        limits = {
            "peer_id": (self.peer_id, 2**64),
            "qpn": (self.qpn, 2**24),
            "start_psn": (self.start_psn, 2**24),
            "mtu_bytes": (self.mtu_bytes - 64, 60_000),
            "mpr": (self.mpr - 1, 255),
            "wimm": (self.wimm - 1, 32_768),
            "number of ports": (len(self.ports) - 1, 32),
        }
        for name, (value, end) in limits.items():
            if not isinstance(value, int) or not 0 <= value < end:
                raise ValueError(f"{name} is out of range")


def _port(fields: dict[str, Any]) -> PortDescriptor:
    public = {str(scope): (str(host), int(port)) for scope, (host, port) in fields.pop("public").items()}
    port = PortDescriptor(public=public, **fields)
    if not 0 < int(port.port) < 65_536 or not 0 <= int(port.plane) < 32:
        raise ValueError("port or plane is out of range")
    return port
