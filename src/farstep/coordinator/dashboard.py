"""The page that shows a run live. It only reads: there is nothing on it that could stop a run."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from farstep.coordinator.guard import require_reader

__all__ = ["make_dashboard"]

_TYPES = {"dashboard.html": "text/html", "dashboard.css": "text/css", "dashboard.js": "text/javascript"}

_HEADERS = {
    # All there is comes from here, and nothing that a member calls itself can become a script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def make_dashboard() -> APIRouter:
    """Makes the routes of the page and of what belongs to it."""
    router = APIRouter(dependencies=[Depends(require_reader)], include_in_schema=False)

    def serve(name: str) -> Response:
        text = files("farstep.coordinator").joinpath("pages", name).read_text(encoding="utf-8")
        return Response(text, media_type=f"{_TYPES[name]}; charset=utf-8", headers=_HEADERS)

    @router.get("/")
    async def page() -> Response:
        return serve("dashboard.html")

    @router.get("/dashboard.css")
    async def style() -> Response:
        return serve("dashboard.css")

    @router.get("/dashboard.js")
    async def script() -> Response:
        return serve("dashboard.js")

    return router
