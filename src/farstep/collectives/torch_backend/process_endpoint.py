"""The one endpoint all process groups of a process share, and where its ports come from."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from farstep.collectives.selection import CommunicatorSettings
from farstep.engine import Endpoint, EndpointProfile, PortConfig

PORTS_VARIABLE = "FARSTEP_PORTS"
SITE_VARIABLE = "FARSTEP_SITE"


@dataclass(frozen=True, slots=True, kw_only=True)
class MrcOptions:
    """Options of ``init_process_group("mrc", pg_options=...)`` and ``new_group``.

    The endpoint options count only for the first group of a process, which makes the endpoint.

    Attributes:
        ports: local addresses, one per plane, as ``host:port`` or PortConfig; port 0 takes a free one. By
            default those of the environment variable FARSTEP_PORTS, separated by commas, else one on the
            address by which the master is reached.
        site: name of the site this process runs at, by default that of FARSTEP_SITE. Ranks of one site keep
            their bytes within it as far as a collective allows.
        profile: settings of the transport.
        settings: settings of the communicator; the same on all ranks.
    """

    ports: Sequence[PortConfig | str] | None = None
    site: str | None = None
    profile: EndpointProfile | None = None
    settings: CommunicatorSettings | None = None


class _Shared:
    """The endpoint of this process and how many groups use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.endpoint: Endpoint | None = None
        self.is_ours = False
        self.process = 0
        self.num_groups = 0

    def set(self, endpoint: Endpoint | None, *, is_ours: bool) -> None:
        self.endpoint, self.is_ours, self.process, self.num_groups = endpoint, is_ours, os.getpid(), 0

    def is_usable(self) -> bool:
        """Whether there is one, and not only in the process this one was forked from."""
        return self.endpoint is not None and self.process == os.getpid()


_shared = _Shared()


def use_endpoint(endpoint: Endpoint | None) -> None:
    """Makes process groups use an endpoint of the caller's, who also closes it; None forgets it again.

    Raises:
        RuntimeError: a process group has made one already.
    """
    with _shared.lock:
        if _shared.is_usable() and _shared.is_ours:
            raise RuntimeError("a process group has made an endpoint already; call use_endpoint before it")
        _shared.set(endpoint, is_ours=False)


def acquire_endpoint(options: MrcOptions, rank: int) -> Endpoint:
    """Returns the endpoint of this process for one more group, making it if there is none."""
    with _shared.lock:
        if not _shared.is_usable():
            site = options.site if options.site is not None else os.environ.get(SITE_VARIABLE, "")
            made = Endpoint(_ports(options), profile=options.profile, name=f"rank{rank}", site=site)
            _shared.set(made, is_ours=True)
        assert _shared.endpoint is not None, "made above"
        _shared.num_groups += 1
        return _shared.endpoint


def release_endpoint() -> None:
    """Says that a group needs the endpoint no more; the last one closes it if a group made it."""
    with _shared.lock:
        _shared.num_groups -= 1
        is_last = _shared.num_groups <= 0
    if is_last:
        close_endpoint()


def close_endpoint() -> None:
    """Closes the endpoint if a process group made it; the next group makes another."""
    with _shared.lock:
        endpoint = _shared.endpoint if _shared.is_usable() and _shared.is_ours else None
        if endpoint is not None:
            _shared.set(None, is_ours=False)
    if endpoint is not None:
        endpoint.close()


def _ports(options: MrcOptions) -> Sequence[PortConfig | str]:
    if options.ports is not None:
        return options.ports
    listed = [part.strip() for part in os.environ.get(PORTS_VARIABLE, "").split(",") if part.strip()]
    return listed or [f"{_address_toward_master()}:0"]


def _address_toward_master() -> str:
    """The local address from which MASTER_ADDR is reached; loopback if there is none or it is unknown."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing: asks the kernel for a route
            host = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
