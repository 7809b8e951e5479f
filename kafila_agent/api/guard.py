"""What every request passes before it reaches a route: whose name it called us by, its key, and its id.

A web page's request is refused before it is read (kafila_proto/local_http.py); there are no CORS headers either.
"""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Set

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafila_agent.api.carry import MAX_BODY_BYTES
from kafila_agent.api.errors import ApiError
from kafila_agent.api.page_routes import BELOW, PAGE
from kafila_proto.local_http import called_name, is_cross_origin

log = structlog.get_logger()

_LENGTH = re.compile(r"[0-9]{1,15}")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_OPEN_PATHS = ("/health", "/version", PAGE)


class Guard:
    """ASGI, so that streams pass through it untouched. ``names``: what we may be called; None: anything."""

    def __init__(self, app: ASGIApp, *, names: Set[str] | None, api_key: str | None = None) -> None:
        self._app = app
        self._names = names
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; the answer carries the request's id either way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"

        status, began = 0, time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope["path"], headers)
        with structlog.contextvars.bound_contextvars(request=request_id):
            try:
                await (refusal.response() if refusal else self._app)(scope, receive, send_with_id)
            finally:
                took_s = round(time.monotonic() - began, 3)
                log.debug("request", path=scope["path"], status=status, took_s=took_s)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = headers.get("host", "")
        if self._names is not None and (name := called_name(host)) not in self._names:
            return ApiError(
                403, f"host '{name}' is not served here; call it localhost", code="host_not_allowed"
            )
        if is_cross_origin(host, headers.get("origin"), headers.get("sec-fetch-site")) and not (
            path == PAGE and _is_visit(headers)
        ):
            return ApiError(403, "pages of another origin are not served here", code="origin_not_allowed")
        if self._api_key is not None and not _is_open(path) and not self._knows_key(headers):
            return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if not _LENGTH.fullmatch(length) or int(length) > MAX_BODY_BYTES:
            return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        expected = (self._api_key or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), expected)


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(f"{BELOW}/")


def _is_visit(headers: Headers) -> bool:
    """Whether somebody follows a link to us in a window of its own: where it led from can see nothing of it."""
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
