"""What every request passes before it reaches a route: whose name it called us by, its key, and its id.

A page in a browser can make requests to this machine under a name that its own server resolves to 127.0.0.1
(DNS rebinding); the Host header gives it away. What a page of another origin sends under a right name says so in
Origin or Sec-Fetch-Site, and is refused before it is read. There are no CORS headers either.
"""

from __future__ import annotations

import hmac
import re
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kafila_agent.api.errors import ApiError

MAX_BODY_BYTES = 32 << 20
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_PORT = re.compile(r":\d*$")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_OPEN_PATHS = ("/health", "/version")


class Guard:
    """ASGI, so that streams pass through it untouched. ``hosts`` are taken beside the local names; None: any."""

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] | None = (), api_key: str | None = None) -> None:
        self._app = app
        self._hosts = None if hosts is None else LOCAL_NAMES | {host.lower() for host in hosts}
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; the answer carries the request's id either way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        refusal = self._refusal(scope["path"], headers)
        await (refusal.response() if refusal else self._app)(scope, receive, send_with_id)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        host = _PORT.sub("", headers.get("host", "")).lower().removesuffix(".")
        if self._hosts is not None and host not in self._hosts:
            return ApiError(
                403, f"host '{host}' is not served here; call it localhost", code="host_not_allowed"
            )
        if _is_cross_origin(headers):
            return ApiError(403, "pages of another origin are not served here", code="origin_not_allowed")
        if self._api_key is not None and path not in _OPEN_PATHS and not self._knows_key(headers):
            return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            return ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        expected = (self._api_key or "").encode()
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), expected)


def _is_cross_origin(headers: Headers) -> bool:
    """Whether a browser says that a page from elsewhere makes this request. Programs send neither header."""
    origin = headers.get("origin")
    elsewhere = origin is not None and origin.lower() not in (
        f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")
    )
    return elsewhere or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
