"""The endpoint: ports, registered memory and connections of one process."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import secrets
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from farstep import _native
from farstep.engine import region as region_module
from farstep.engine.completion import CompletionDispatcher
from farstep.engine.connection import Connection
from farstep.engine.descriptor import ConnectionDescriptor, PortDescriptor
from farstep.engine.errors import EndpointClosed, EngineError, RegionError, SecurityError
from farstep.engine.interface import mtu_for_address
from farstep.engine.key_agreement import EphemeralKey, check_identity, offer_of
from farstep.engine.path_mode import choose_path_mode
from farstep.engine.profile import (
    DATAGRAM_OVERHEAD_MAX_BYTES,
    EndpointProfile,
    PortConfig,
    split_address,
)
from farstep.engine.region import Region
from farstep.engine.stats import EndpointStats, EvState, PathEvent
from farstep.mrc.errors import InvalidFieldError

__all__ = ["Endpoint"]

_EVERY_PEER = 2**32 - 1  # as the compiled core has it
_KEYS = 0x5EED  # tells the seed of region keys from that of paths
_open_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


class Endpoint:
    """Carries connections over one or more local ports.

    One compiled thread per endpoint does the work, without the GIL. All methods are safe to call from any thread.
    A child made by `fork` cannot use its parent's endpoint; it gets :class:`EndpointClosed`.

    Args:
        ports: local ports; a string is short for ``PortConfig(bind=...)`` with planes counted up.
        profile: settings of the transport.
        name: for error messages.
        site: where this endpoint is; peers at another site use its public addresses.

    Raises:
        InvalidFieldError: a setting or an address is not valid.
        EngineError: a port cannot be opened.
    """

    def __init__(
        self,
        ports: Sequence[PortConfig | str] = (PortConfig(),),
        *,
        profile: EndpointProfile | None = None,
        name: str = "",
        site: str = "",
    ) -> None:
        if isinstance(ports, str):
            raise InvalidFieldError("ports", ports, f"a list of ports, such as [{ports!r}]")
        self.profile = profile or EndpointProfile()
        self.name = name
        self.site = site
        if not 1 <= len(ports) <= _native.MAX_PORTS:
            raise InvalidFieldError("ports", f"{len(ports)} ports", f"1 to {_native.MAX_PORTS} ports")
        self._port_configs = [
            PortConfig(p, plane=i) if isinstance(p, str) else p for i, p in enumerate(ports)
        ]
        if self.profile.security.identity is not None:
            check_identity(self.profile.security.identity)
        self._pid = os.getpid()
        seed = self.profile.seed if self.profile.seed is not None else secrets.randbits(64)
        self._random = random.Random(seed)
        # Whoever has a key learns nothing of the others from it, unless a seed says that runs must be the same.
        self._key_source: random.Random = (
            secrets.SystemRandom() if self.profile.seed is None else random.Random(seed ^ _KEYS)
        )
        self._peer_id = secrets.randbits(64)
        self.path_mode = choose_path_mode(self.profile.path_mode, self._port_configs)
        is_srv6 = self.path_mode == "srv6"
        ev = self.profile.ev
        self._sources_per_port = 1 if is_srv6 else ev.active_per_plane + ev.backup_per_plane
        bound = [self._address_to_bind(p) for p in self._port_configs]
        self._mtu_bytes = self.profile.mtu_bytes or min(mtu_for_address(host) for host, _ in bound)
        try:
            self._native = _native.NativeEndpoint(
                bound,
                self._sources_per_port,
                self.profile.receive_buffer_bytes,
                self.profile.send_buffer_bytes,
                self.profile.icrc,
                seed & (2**64 - 1),
                self.profile.max_connections,
                self.profile.max_regions,
                [(p.rate_mbps or 0.0) * 125_000 for p in self._port_configs],
                is_srv6,
                self._mtu_bytes + DATAGRAM_OVERHEAD_MAX_BYTES if is_srv6 else 0,
            )
        except RuntimeError as error:
            wanted = ", ".join(p.bind for p in self._port_configs)
            raise EngineError(f"cannot open the ports {wanted} ({error})") from None
        numbers = self._native.port_numbers()
        self.ports = tuple((host, number) for (host, _), number in zip(bound, numbers, strict=True))
        self._public: list[dict[str, tuple[str, int]]] = [{} for _ in self.ports]
        self._dispatcher = CompletionDispatcher(self._native)
        self._connections: dict[int, Connection] = {}
        self._names: dict[int, str] = {}
        self._sites: dict[int, str] = {}
        self._lingering: dict[int, Any] = {}
        self._is_closed = False
        self._closing = threading.RLock()
        _open_endpoints.add(self)

    # ---- addresses -------------------------------------------------------------------------------------------------

    def _address_to_bind(self, port: PortConfig) -> tuple[str, int]:
        host, number = split_address(port.bind)
        if self.path_mode == "srv6" and port.attachment is not None:
            host = str(port.attachment.arrival(port.plane))
        return host, number

    def set_public_addresses(self, port_index: int, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Says how peers at other sites reach a port, for connections created from now on.

        Args:
            port_index: which port.
            addresses: by the site of the peer, or "*" for every other site: (host, port).
        """
        if not 0 <= port_index < len(self.ports):
            raise InvalidFieldError("port_index", port_index, f"0 to {len(self.ports) - 1}")
        self._public[port_index] = {
            scope: (split_address(host if ":" not in host else f"[{host}]")[0], port)
            for scope, (host, port) in addresses.items()
        }

    def set_port_up(self, port_index: int, *, is_up: bool) -> None:
        """Takes a local port out of use, or back into it; every peer is told (MRC, section 5.4)."""
        if not 0 <= port_index < len(self.ports):
            raise InvalidFieldError("port_index", port_index, f"0 to {len(self.ports) - 1}")
        self._check_open()
        self._native.set_local_port(port_index, is_up)

    # ---- memory ----------------------------------------------------------------------------------------------------

    def register(self, buffer: Any, *, only_for: Connection | None = None) -> Region:
        """Registers memory in place, without copying it.

        Args:
            buffer: NumPy array, torch CPU tensor, or any contiguous object with the buffer protocol. Peers may write
                to it if it is writable.
            only_for: the connection of this endpoint whose peer alone may write, for as long as that connection is
                there; None: every peer that knows the key. Memory may be registered once for each of several peers.

        Raises:
            RegionError: the object has no contiguous memory on this host, or the connection is another endpoint's
                or closed.
            EngineError: `max_regions` are registered already.
            EndpointClosed: the endpoint is closed.
        """
        self._check_open()
        self._sweep_lingering()
        keeper, address, length_bytes, writable = region_module.locate(buffer)
        if only_for is not None and (only_for._endpoint is not self or only_for._is_closed):
            raise RegionError(
                f"{only_for!r} is closed or belongs to another endpoint; valid is one of this one"
            )
        index = _EVERY_PEER if only_for is None else only_for._index
        secret = self._key_source.getrandbits(64)
        rkey = self._native.add_region(address, length_bytes, writable, secret, index)
        if rkey == 0:
            raise EngineError(
                f"all {self.profile.max_regions} regions are in use; raise max_regions in the profile"
            )
        return Region(self, buffer, keeper, rkey, length_bytes)

    def _release_region(self, rkey: int, buffer: Any) -> None:
        if self._is_closed or not self._owns_process():
            return
        if not self._native.remove_region(rkey):
            self._lingering[rkey] = buffer  # a send still reads from it
        self._sweep_lingering()

    def _sweep_lingering(self) -> None:
        for rkey in list(self._lingering):
            if not self._native.is_region_busy(rkey):
                self._lingering.pop(rkey, None)

    # ---- connections -----------------------------------------------------------------------------------------------

    def create_connection(self, *, peer_name: str = "", peer_identity: str | None = None) -> Connection:
        """Reserves a connection; it carries data once both ends have called `connect`.

        Args:
            peer_name: for messages and errors.
            peer_identity: the name that the peer's certificate must have, or begin like if it ends with `*`; None:
                any that our authority has issued. Only where this endpoint has an identity.

        Raises:
            EngineError: `max_connections` are in use already.
            EndpointClosed: the endpoint is closed.
        """
        self._check_open()
        security = self.profile.security
        if peer_identity is not None and security.identity is None:
            raise SecurityError(
                f"the peer shall be {peer_identity!r}; an endpoint without an identity of its own cannot check that"
            )
        key = EphemeralKey() if security.identity is not None else None
        offer = offer_of(security, key)
        index, qpn, start_psn = self._native.reserve_connection()
        if index == 2**32 - 1:
            most = self.profile.max_connections
            raise EngineError(f"all {most} connections are in use; raise max_connections in the profile")
        buffers = self._native.receive_buffer_bytes()
        descriptor = ConnectionDescriptor(
            peer_id=self._peer_id,
            site=self.site,
            qpn=qpn,
            start_psn=start_psn,
            mtu_bytes=self._mtu_bytes,
            is_mtu_fixed=self.profile.mtu_bytes is not None,
            mpr=self.profile.mpr,
            wimm=self.profile.wimm,
            icrc=self.profile.icrc,
            security=offer,
            ports=tuple(
                PortDescriptor(
                    host,
                    port,
                    config.plane,
                    config.rate_mbps,
                    buffer,
                    public,
                    config.attachment if self.path_mode == "srv6" else None,
                )
                for (host, port), config, buffer, public in zip(
                    self.ports, self._port_configs, buffers, self._public, strict=True
                )
            ),
        )
        connection = Connection(
            self, peer_name or f"connection {index}", index, descriptor, key, peer_identity
        )
        self._connections[index] = connection
        self._names[index] = connection.peer_name
        return connection

    @property
    def has_identity(self) -> bool:
        """Whether this endpoint shows a certificate, and wants one of every peer."""
        return self.profile.security.identity is not None

    @property
    def connections(self) -> tuple[Connection, ...]:
        """The connections that have not been closed."""
        return tuple(self._connections.values())

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection._index, None)

    def abort(self, reason: str) -> None:
        """Gives up every connection: all writes and waiters fail at once with ConnectionAborted."""
        for connection in list(self._connections.values()):
            connection.abort(reason)

    # ---- facts -----------------------------------------------------------------------------------------------------

    def stats(self) -> EndpointStats:
        """Returns counters of the endpoint."""
        self._check_open()
        return EndpointStats.from_native(self._native.stats())

    def take_path_events(self) -> list[PathEvent]:
        """Returns and forgets the state changes of entropy values since the last call; at most 4096 are kept."""
        self._check_open()
        return [
            PathEvent(
                self._names.get(index, ""),
                at_ns,
                ev,
                plane,
                EvState(state),
                drops,
                self._sites.get(index, ""),
            )
            for index, at_ns, ev, plane, state, drops in self._native.take_path_events()
        ]

    # ---- life ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Tells the peers, ends the thread and frees the ports. Waiters get EndpointClosed. Safe to call twice."""
        if not self._owns_process():
            return
        with self._closing:  # whoever comes second, at the end of the process say, waits for the first
            if self._is_closed:
                return
            self._is_closed = True
            self._native.close()
            self._lingering.clear()
            _open_endpoints.discard(self)

    def _is_usable(self) -> bool:
        return self._owns_process() and not self._is_closed

    def _owns_process(self) -> bool:
        return os.getpid() == self._pid

    def _check_open(self) -> None:
        if not self._owns_process():
            raise EndpointClosed("the endpoint belongs to the parent process; make one after fork")
        if self._is_closed:
            raise EndpointClosed("the endpoint is closed")

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_names"):
            with contextlib.suppress(Exception):
                self.close()

    def _abandon(self) -> None:
        self._native.abandon()

    def __repr__(self) -> str:
        ports = ", ".join(f"{host}:{port}" for host, port in self.ports)
        return f"<Endpoint {self.name or 'unnamed'} on {ports}>"


@atexit.register
def _close_all() -> None:
    # The compiled thread must end while the interpreter still stands.
    for endpoint in list(_open_endpoints):
        endpoint.close()


def _abandon_all() -> None:
    # A forked child would otherwise keep the parent's ports bound for as long as it lives.
    for endpoint in list(_open_endpoints):
        endpoint._abandon()


os.register_at_fork(after_in_child=_abandon_all)
