"""The one endpoint all process groups of a process share, and where its ports come from."""

from __future__ import annotations

import atexit
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


_lock = threading.Lock()
_endpoint: Endpoint | None = None
_is_ours = False
_process = 0


def use_endpoint(endpoint: Endpoint) -> None:
    """Makes process groups use an endpoint of the caller's, who also closes it.

    Raises:
        RuntimeError: a process group has made one already.
    """
    global _endpoint, _is_ours, _process
    with _lock:
        if _endpoint is not None and _is_ours and _process == os.getpid():
            raise RuntimeError("a process group has made an endpoint already; call use_endpoint before it")
        _endpoint, _is_ours, _process = endpoint, False, os.getpid()


def process_endpoint(options: MrcOptions, rank: int) -> Endpoint:
    """Returns the endpoint of this process, making it if there is none."""
    global _endpoint, _is_ours, _process
    with _lock:
        if _endpoint is None or _process != os.getpid():
            site = options.site if options.site is not None else os.environ.get(SITE_VARIABLE, "")
            _endpoint = Endpoint(_ports(options), profile=options.profile, name=f"rank{rank}", site=site)
            _is_ours, _process = True, os.getpid()
            atexit.register(close_endpoint)
        return _endpoint


def close_endpoint() -> None:
    """Closes the endpoint if a process group made it; the next group makes another."""
    global _endpoint
    with _lock:
        endpoint, _endpoint = _endpoint, None
        if endpoint is not None and _is_ours and _process == os.getpid():
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
