"""The coordinator as a server: one process, one event loop, one port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI, WebSocket

from farstep.coordinator.api import make_router
from farstep.coordinator.body import Coordinator
from farstep.coordinator.dashboard import make_dashboard
from farstep.coordinator.guard import CertifiedProtocol, allows_member
from farstep.coordinator.journal import Journal
from farstep.coordinator.metrics import Metrics
from farstep.membership.addresses import MEMBER_PATH
from farstep.membership.messages import MESSAGE_BYTES_MAX
from farstep.membership.records import MembershipConfig
from farstep.membership.tls import TlsFiles

__all__ = ["ServerSettings", "create_app", "run_coordinator", "serve_coordinator"]

BACKLOG = 2048
"""Connections the kernel keeps while the process is busy: a whole run comes back at once."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and how a coordinator listens.

    Attributes:
        host: address to listen on.
        port: TCP port; 0 has the kernel choose one.
        tls: certificates; without them anybody who can connect may take part.
        announce: file into which the coordinator's URL is written once it listens (`file:` address of members).
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
        try:
            yield
        finally:
            coordinator.stop()
            journal.close()

    app = FastAPI(title="farstep coordinator", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.coordinator = coordinator
    app.include_router(make_router(coordinator, journal, metrics))
    app.include_router(make_dashboard())

    @app.websocket(MEMBER_PATH)
    async def member(websocket: WebSocket) -> None:
        if allows_member(websocket):
            await coordinator.serve(websocket)
        else:
            await websocket.close(1008, "this certificate is no member's")

    return app


async def serve_coordinator(
    app: FastAPI, settings: ServerSettings, *, on_listening: Callable[[str], None] | None = None
) -> None:
    """Serves until SIGINT or SIGTERM; a run goes on without its coordinator."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"{'wss' if settings.tls else 'ws'}://{shown}:{port}"
    server = uvicorn.Server(uvicorn_config(app, settings))
    if settings.announce is not None:
        write_address(settings.announce, url)
    if on_listening is not None:
        on_listening(url)
    with listener:
        await server.serve(sockets=[listener])


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """Returns how uvicorn runs the application."""
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
        ssl_context_factory=(lambda _config, _default: tls.server_context()) if tls is not None else None,
    )


def write_address(path: Path, url: str) -> None:
    """Writes the coordinator's URL so that readers see the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{id(path)}")
    draft.write_text(f"{url}\n", encoding="utf-8")
    draft.replace(path)


def run_coordinator(
    config: MembershipConfig,
    settings: ServerSettings | None = None,
    *,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Runs a coordinator in this process until SIGINT or SIGTERM.

    Args:
        config: how generations are formed and changed.
        settings: where to listen.
        on_listening: called with the URL (`ws://host:port`) once connections are accepted.
    """
    settings = settings or ServerSettings()
    app = create_app(Coordinator(config), Journal(settings.log))
    asyncio.run(serve_coordinator(app, settings, on_listening=on_listening))
