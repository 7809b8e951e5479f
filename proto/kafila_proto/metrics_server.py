"""Prometheus metrics over HTTP, in threads of their own: read by whoever scrapes them, and by no web page."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from kafila_proto.local_http import called_name, is_cross_origin, names_of

_POLL_S = 0.05  # how soon the server notices that it is to stop
_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer:
    """Serves ``registry`` at ``host`` and ``port`` (0: any) until closed. Raises OSError if the port cannot be had."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._server = (_ServerV6 if ":" in host else _Server)((host, port), _QuietHandler)
        self._server.set_app(guarded(make_wsgi_app(registry), names_of(host)))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening. Takes up to a scrape's time: not on an event loop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def guarded(app: _Wsgi, names: frozenset[str] | None) -> _Wsgi:
    """``app`` for those who call it by one of ``names`` (None: any) and are no page of another origin."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "")
        is_named = names is None or called_name(host) in names
        if is_named and not is_cross_origin(
            host, environ.get("HTTP_ORIGIN"), environ.get("HTTP_SEC_FETCH_SITE")
        ):
            return app(environ, start_response)
        start_response("403 Forbidden", [("content-type", "text/plain; charset=utf-8")])
        return [b"metrics are not for web pages; call this machine localhost\n"]

    return answer


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind without asking the DNS for this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds that a client may take to say what it wants

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""
