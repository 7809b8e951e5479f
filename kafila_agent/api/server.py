"""The HTTP server, inside the agent's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from importlib import metadata

import structlog
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kafila_agent.api.carry import CARRIED, MAX_BODY_BYTES, answer, carry
from kafila_agent.api.errors import add_error_handlers
from kafila_agent.api.guard import Guard
from kafila_agent.api.listening import ApiServerError, listen
from kafila_agent.api.openai_routes import SERVING, GetService, openai_router
from kafila_agent.api.page_routes import GetSession, add_page
from kafila_agent.api_key import ApiKeyError, require_api_key
from kafila_agent.config import url_here
from kafila_agent.edge.stream import EdgeStream
from kafila_proto.local_http import is_loopback, names_of

log = structlog.get_logger()

# How long answers under way may go on once the server is told to stop.
GRACE_S = 2


def create_app(get_service: GetService, get_session: GetSession = dict) -> FastAPI:
    """The application, unguarded."""
    app = FastAPI(
        title="Kafila",
        version=metadata.version("kafila"),
        docs_url=None,
        redoc_url=None,
        max_body_size=MAX_BODY_BYTES,
    )
    app.include_router(openai_router(get_service))
    add_page(app, get_session)
    add_error_handlers(app)

    @app.get("/health")
    async def health() -> JSONResponse:
        service = get_service()
        body = {"status": service.state, "model": service.model, "message": service.message}
        if service.state == SERVING:
            return JSONResponse(body)
        return JSONResponse(body, 503, {"retry-after": str(service.retry_after_s)})

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": app.version}

    return app


class Carried:
    """ASGI: on a member that is not the head what its clients ask goes there, and on the head to ``app``."""

    def __init__(self, app: ASGIApp, get_service: GetService) -> None:
        self._app = app
        self._get_service = get_service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        reach_head = self._get_service().reach_head
        if reach_head is not None and scope["type"] == "http" and scope["path"].startswith(CARRIED):
            await carry(reach_head, scope, receive, send)
        else:
            await self._app(scope, receive, send)


class ApiServer:
    """OpenAI's API and the page on ``host:port`` (0: any). ``get_session`` is what the page shows of the session
    (``view/document.py``).

    On an address that other machines reach an ``api_key`` is required; it then stands for the Host header,
    which could be any name there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        get_service: GetService,
        *,
        get_session: GetSession = dict,
        api_key: str | None = None,
    ) -> None:
        try:
            require_api_key(host, api_key)
        except ApiKeyError as error:
            raise ApiServerError(str(error)) from error
        self._host = host
        self._port = port
        self._own = create_app(get_service, get_session)
        self.app = Guard(Carried(self._own, get_service), names=names_of(host), api_key=api_key)
        self._answering: set[asyncio.Task[None]] = set()
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The base URL to give to clients on this machine."""
        return f"{url_here(self._host, self._port)}/v1"

    async def start(self, listening: socket.socket | None = None) -> None:
        """Serve, on ``listening`` if that is there already. Raises ApiServerError if the address cannot be had."""
        if listening is None:
            listening = listen(self._host, self._port)
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            self.app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]), name="api")
        await self._server.listening.wait()
        if not is_loopback(self._host):
            log.warning(
                "the API is open to other machines, unencrypted, to whoever has its key", url=self.url
            )

    def answer(self, member: str, stream: EdgeStream) -> None:
        """Answer what another member's client has asked there; it has passed that member's guard."""
        task = asyncio.create_task(answer(self._own, member, stream))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """Stop listening, let answers under way finish for GRACE_S at most, and end."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None


class _Server(uvicorn.Server):
    """uvicorn as a guest: the agent owns the signals, and hears when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening.set()
