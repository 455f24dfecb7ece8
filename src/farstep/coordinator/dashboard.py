"""The page that shows a run live, and the one that describes the interface. They only read.

There is nothing on them that could stop a run, and nothing that comes from elsewhere.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from farstep.coordinator.guard import require_reader

__all__ = ["make_pages"]

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_HEADERS = {
    # All there is comes from here, and nothing that a member calls itself can become a script.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def make_pages() -> APIRouter:
    """Makes the routes of the pages and of what belongs to them."""
    router = APIRouter(dependencies=[Depends(require_reader)], include_in_schema=False)

    def serve(name: str) -> Response:
        text = files("farstep.coordinator").joinpath("pages", name).read_text(encoding="utf-8")
        return Response(text, media_type=f"{_TYPES[Path(name).suffix]}; charset=utf-8", headers=_HEADERS)

    @router.get("/")
    async def page() -> Response:
        return serve("dashboard.html")

    @router.get("/dashboard.css")
    async def style() -> Response:
        return serve("dashboard.css")

    @router.get("/dashboard.js")
    async def script() -> Response:
        return serve("dashboard.js")

    @router.get("/docs")
    async def interface() -> Response:
        return serve("docs.html")

    @router.get("/docs.js")
    async def interface_script() -> Response:
        return serve("docs.js")

    @router.get("/openapi.json")
    async def openapi(request: Request) -> JSONResponse:
        return JSONResponse(request.app.openapi())

    return router
