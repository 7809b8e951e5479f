"""The page: its files, and the session as it shows it. Every agent serves it to browsers on its own machine.

The files hold nothing but the page, and are given without a key; what they then ask for passes the guard as any
client's requests do. The page loads nothing from anywhere else and runs no script but its own: whatever a model
writes is text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FILES = Path(__file__).parent / "page"
PAGE, BELOW = "/", "/page"

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",  # asked for anew each time, and answered by its ETag: an agent may be a newer one
}

GetSession = Callable[[], dict[str, Any]]


class _Files(StaticFiles):
    """With the headers that keep the page to itself."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file, or 304 for whoever has it."""
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def add_page(app: FastAPI, get_session: GetSession) -> None:
    """The page at ``/``, its files below ``/page``, the session at ``/session``."""
    files = _Files(directory=FILES)
    router = APIRouter()

    @router.get(PAGE, include_in_schema=False)
    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @router.get("/session")
    async def session() -> JSONResponse:
        return JSONResponse(get_session(), headers={"cache-control": "no-store"})

    app.include_router(router)
    app.mount(BELOW, files)
