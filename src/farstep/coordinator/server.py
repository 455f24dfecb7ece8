"""The coordinator as a server: one process, one event loop, one port."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, WebSocket

from farstep import __version__
from farstep.coordinator.api import make_router
from farstep.coordinator.body import Coordinator
from farstep.coordinator.dashboard import make_pages
from farstep.coordinator.guard import BodyLimit, CertifiedProtocol, Refusals, allows_member, certified_name
from farstep.coordinator.journal import Journal
from farstep.coordinator.metrics import Metrics
from farstep.coordinator.status import progress_fields
from farstep.membership.addresses import MEMBER_PATH
from farstep.membership.messages import MESSAGE_BYTES_MAX
from farstep.membership.records import MembershipConfig
from farstep.membership.tls import TlsFiles

__all__ = ["ServerSettings", "create_app", "open_listener", "run_coordinator", "serve_coordinator"]

SAMPLE_S = (0.5, 10.0)
"""Shortest and longest time between two samples of the progress in the event log."""

SAMPLES_PER_DOUBLING = 600
"""Samples get rarer as the run gets older: 3 MB a day in the end."""

BACKLOG = 2048
"""Connections the kernel keeps while the process is busy: a whole run comes back at once."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how a coordinator listens.

    Attributes:
        host: address to listen on.
        port: TCP port; 0 has the kernel choose one.
        tls: certificates; without them anybody who can connect may take part.
        announce: file into which the coordinator's URLs are written once it listens (`file:` address of members).
        log: file of the event log, continued if it exists.
    """

    host: str = "127.0.0.1"
    port: int = 7077
    tls: TlsFiles | None = None
    announce: Path | None = None
    log: Path | None = None


def create_app(coordinator: Coordinator, journal: Journal | None = None) -> FastAPI:
    """Makes the application; the coordinator is `app.state.coordinator`.

    Args:
        coordinator: whom it serves.
        journal: where events are written; in memory alone if None.
    """
    journal = journal if journal is not None else Journal()
    metrics = Metrics()
    coordinator.listeners += [journal.note, metrics.note]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        coordinator.start()
        sampler = asyncio.create_task(_sample(coordinator, journal))
        try:
            yield
        finally:
            sampler.cancel()
            coordinator.stop()
            journal.close()

    app = FastAPI(title="farstep coordinator", version=__version__, lifespan=lifespan, openapi_url=None)
    app.add_middleware(BodyLimit)
    app.state.coordinator = coordinator
    app.state.journal = journal
    app.include_router(make_router(coordinator, journal, metrics))
    app.include_router(make_pages())

    @app.websocket(MEMBER_PATH)
    async def member(websocket: WebSocket) -> None:
        if allows_member(websocket):
            await coordinator.serve(websocket, certified_name(websocket))
        else:
            await websocket.close(1008, "this certificate is no member's")

    return app


async def _sample(coordinator: Coordinator, journal: Journal) -> None:
    """Writes down now and then how far the run is, so that a report can show what failures cost."""
    began_s = time.monotonic()
    last: dict[str, Any] = {}
    while True:
        age_s = time.monotonic() - began_s
        await asyncio.sleep(min(max(age_s / SAMPLES_PER_DOUBLING, SAMPLE_S[0]), SAMPLE_S[1]))
        fields = progress_fields(coordinator.proposer)
        if fields and fields != last:
            journal.sample("progress", fields)
            last = fields


async def serve_coordinator(
    app: FastAPI, settings: ServerSettings, *, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serves until SIGINT or SIGTERM; a run goes on without its coordinator."""
    config = uvicorn_config(app, settings, Refusals(app.state.journal).note)
    config.load()  # certificates that cannot be used are told before anybody is told where to come
    with open_listener(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        scheme = "wss" if settings.tls else "ws"
        urls = [f"{scheme}://{shown}:{port}" for shown in reachable_hosts(host)]
        if settings.announce is not None:
            write_addresses(settings.announce, urls)
        if on_listening is not None:
            on_listening(urls[0])
        await _Server(config).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Sends followers of the event log home before it waits for requests to end."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        if isinstance(app, FastAPI):
            app.state.journal.dismiss()
        await super().shutdown(sockets)


def open_listener(host: str, port: int) -> socket.socket:
    """Listens for connections that send what they are given at once.

    asyncio sees to that only for sockets it makes itself. Otherwise the second of two small messages waits until the
    first is acknowledged, which takes up to 40 ms when the other side has nothing to say.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.create_server(
        address[:2],
        family=family,
        backlog=BACKLOG,
        dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
    )
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    return listener


def reachable_hosts(host: str) -> list[str]:
    """Returns under which hosts others reach a listener that is bound to `host`, as they stand in URLs."""
    if host not in ("0.0.0.0", "::"):
        return [f"[{host}]" if ":" in host else host]
    hosts = []
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        if family is socket.AF_INET6 and host != "::":
            continue
        try:  # connecting a datagram socket sends nothing; it asks for the route
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                own = probe.getsockname()[0]
                hosts.append(f"[{own}]" if ":" in own else own)
        except OSError:
            continue
    return [*(hosts or ["127.0.0.1"]), socket.gethostname()]


def uvicorn_config(
    app: FastAPI, settings: ServerSettings, on_refused: Callable[[str], None] | None = None
) -> uvicorn.Config:
    """Returns how uvicorn runs the application.

    Args:
        app: the application.
        settings: where to listen.
        on_refused: called with the reason when a TLS handshake fails.
    """
    tls = settings.tls
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=CertifiedProtocol,
        lifespan="on",
        ws="websockets-sansio",
        ws_max_size=MESSAGE_BYTES_MAX,
        ws_ping_interval=None,  # members have heartbeats of their own
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
        ssl_context_factory=(lambda _config, _default: tls.server_context(on_refused))
        if tls is not None
        else None,
    )


def write_addresses(path: Path, urls: Sequence[str]) -> None:
    """Writes URLs, one a line, so that readers see the old ones or the new ones, never a part."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def run_coordinator(
    config: MembershipConfig,
    settings: ServerSettings | None = None,
    *,
    on_listening: Callable[[str], None] | None = None,
    journal: Journal | None = None,
) -> None:
    """Runs a coordinator in this process until SIGINT or SIGTERM.

    Args:
        config: how generations are formed and changed.
        settings: where to listen.
        on_listening: called with the URL (`ws://host:port`) once connections are accepted.
        journal: where events go, instead of to `settings.log`.
    """
    settings = settings or ServerSettings()
    app = create_app(Coordinator(config), journal if journal is not None else Journal(settings.log))
    asyncio.run(serve_coordinator(app, settings, on_listening=on_listening))
