"""Who may ask what of a coordinator.

With certificates the role decides, and it stands in the certificate (:mod:`farstep.coordinator.certificates`).
Without, the coordinator listens on loopback alone, and what a browser sends on behalf of another page is refused:
a page on the internet must not be able to stop a run on the machine of whoever looks at it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from farstep.coordinator.certificates import PeerRole, role_of
from farstep.coordinator.journal import Journal

__all__ = [
    "BodyLimit",
    "CertifiedProtocol",
    "Refusals",
    "allows_member",
    "certified_name",
    "peer_name",
    "require_operator",
    "require_reader",
]

PEER = "peer"
"""Key under which role and name of the peer are in the state of a request."""

BODY_BYTES_MAX = 64 << 10
"""Longest body of a request; the longest that is needed names 1,024 members."""

REFUSALS_S = 10.0
"""Time between two notes of handshakes that failed for the same reason."""

REASONS_MAX, REASON_CHARACTERS_MAX = 32, 200
"""Reasons that are told apart, and how much of each is kept: whoever connects has a say in them."""

LOCAL_NAME = "localhost"
"""The one name that nobody else can make point here; otherwise loopback addresses are asked for."""


class CertifiedProtocol(H11Protocol):
    """Hands what the peer's certificate says to the requests of its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Reads the certificate that the handshake has verified."""
        tls = transport.get_extra_info("ssl_object")
        certificate: dict[str, Any] = (tls.getpeercert() or {}) if tls is not None else {}
        self.app_state = {**self.app_state, PEER: role_of(certificate.get("subject"))}
        super().connection_made(transport)


class Refusals:
    """Notes handshakes that failed, so that an operator sees why a member does not come in.

    Members try ten times a second: each reason is noted at once, and then once in a while with its number.

    Args:
        journal: where they are noted.
        now_s: clock.
    """

    def __init__(self, journal: Journal, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._journal, self._now_s = journal, now_s
        self._seen: dict[str, tuple[float, int]] = {}

    def note(self, reason: str) -> None:
        """Takes note of one."""
        reason = reason[:REASON_CHARACTERS_MAX]
        if reason not in self._seen and len(self._seen) >= REASONS_MAX:
            reason = "other reasons"
        until_s, more = self._seen.get(reason, (0.0, 0))
        now_s = self._now_s()
        if now_s < until_s:
            self._seen[reason] = (until_s, more + 1)
            return
        self._seen[reason] = (now_s + REFUSALS_S, 0)
        self._journal.add("handshake_refused", {"reason": reason, "times": more + 1})


class BodyLimit:
    """Refuses long bodies before anybody keeps them in memory.

    Args:
        app: application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, counting what comes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        is_more = True
        while is_more and len(body) <= BODY_BYTES_MAX:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
        if len(body) > BODY_BYTES_MAX:
            text = f"the body is longer than {BODY_BYTES_MAX:,} bytes"
            await JSONResponse({"detail": text}, 413, {"Connection": "close"})(scope, receive, send)
            return
        whole: Message = {"type": "http.request", "body": bytes(body), "more_body": False}
        pending = [whole]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)


def peer_name(request: Request) -> str:
    """Returns who asks, for the event log."""
    peer = getattr(request.state, PEER, None)
    return peer[1] if peer is not None else (request.client.host if request.client else "unknown")


def require_reader(request: Request) -> None:
    """Lets in whoever has a certificate, or anybody on loopback where there are none."""
    _refuse_foreign_pages(request)
    if _has_tls(request) and getattr(request.state, PEER, None) is None:
        raise HTTPException(403, "this certificate names no role; `farstep certificates` makes ones that do")


def require_operator(request: Request) -> None:
    """Lets in operators, or anybody on loopback where there are no certificates."""
    require_reader(request)
    peer: tuple[PeerRole, str] | None = getattr(request.state, PEER, None)
    if peer is not None and peer[0] is not PeerRole.OPERATOR:
        raise HTTPException(403, f"{peer[1]} is a {peer[0]}; only operators may do this")


def allows_member(websocket: WebSocket) -> bool:
    """Whether this connection may take part in a run."""
    if websocket.headers.get("origin") is not None:
        return False  # members are no browsers
    peer = getattr(websocket.state, PEER, None)
    return websocket.url.scheme == "ws" or (peer is not None and peer[0] is PeerRole.MEMBER)


def certified_name(websocket: WebSocket) -> str | None:
    """Returns the name in the certificate of who connects; None without certificates."""
    peer: tuple[PeerRole, str] | None = getattr(websocket.state, PEER, None)
    return peer[1] if peer is not None else None


def _has_tls(request: Request) -> bool:
    return request.url.scheme == "https"


def _refuse_foreign_pages(request: Request) -> None:
    host = request.headers.get("host", "")
    if not _has_tls(request) and not _is_local(host):
        # A name that resolves to loopback would let a foreign page read answers.
        raise HTTPException(
            421, f"Host is {host!r}; valid without certificates: {LOCAL_NAME} and loopback addresses"
        )
    origin = request.headers.get("origin")
    if origin is not None and origin.lower() != f"{request.url.scheme}://{host}".lower():
        raise HTTPException(403, f"a page of {origin} may not ask this coordinator")


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == LOCAL_NAME or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
