"""Metrics as a scraper gets them, and as a web page does not; over real sockets."""

from __future__ import annotations

import http.client
import socket
import time

import pytest
from prometheus_client import CollectorRegistry, Gauge

from kafila_proto.metrics_server import MetricsServer


@pytest.fixture
def serve():
    """``serve(host)`` is a server with one metric; all are closed after the test."""
    opened = []
    registry = CollectorRegistry()
    Gauge("kafila_secret_of_the_house", "One.", registry=registry).set(7)

    def start(host: str) -> MetricsServer:
        opened.append(MetricsServer(registry, host, 0))
        return opened[-1]

    yield start
    for server in opened:
        server.close()


def get(server: MetricsServer, host: str | None = "localhost", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("GET", "/metrics", skip_host=True)
    for name, value in ({} if host is None else {"host": host} | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_whoever_scrapes_this_machine_is_answered(serve):
    server = serve("127.0.0.1")
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]"):
        status, text = get(server, host)
        assert status == 200
        assert "kafila_secret_of_the_house 7.0" in text


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("evil.example", {}),  # its server says that it is at 127.0.0.1
        ("127.0.0.1.evil.example:80", {}),
        (None, {}),
        ("", {}),
        ("localhost", {"origin": "https://evil.example"}),
        ("localhost", {"origin": "null"}),
        ("127.0.0.1", {"sec-fetch-site": "cross-site"}),
    ],
)
def test_a_web_page_is_not(serve, host, headers):
    status, text = get(serve("127.0.0.1"), host, **headers)
    assert status == 403
    assert "secret" not in text


def test_where_other_machines_scrape_any_name_will_do_but_no_page(serve):
    server = serve("0.0.0.0")
    assert get(server, "rendezvous.example:7472")[0] == 200
    assert get(server, "rendezvous.example:7472", origin="https://evil.example")[0] == 403


def test_one_that_says_nothing_holds_up_nobody_and_not_the_end(serve):
    server = serve("127.0.0.1")
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server)[0] == 200
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 5
