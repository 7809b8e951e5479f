from __future__ import annotations

import pytest

from kafila_proto.local_http import called_name, is_cross_origin, is_loopback, names_of


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost:7480", "localhost"),
        ("LOCALHOST", "localhost"),
        ("localhost.", "localhost"),
        ("[::1]:9470", "[::1]"),
        ("127.0.0.1:", "127.0.0.1"),
        ("evil.example:80", "evil.example"),
        ("localhost:80@evil.example", "localhost:80@evil.example"),
        ("", ""),
    ],
)
def test_what_a_host_header_calls_us(header, name):
    assert called_name(header) == name


@pytest.mark.parametrize(
    ("host", "extra"),
    [("127.0.0.1", set()), ("127.0.0.2", {"127.0.0.2"}), ("::1", set()), ("localhost", set())],
)
def test_a_server_of_this_machine_has_local_names_alone(host, extra):
    assert names_of(host) == {"localhost", "127.0.0.1", "[::1]"} | extra


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "desk.example", ""])
def test_a_server_that_others_reach_has_any_name(host):
    assert not is_loopback(host)
    assert names_of(host) is None


@pytest.mark.parametrize(
    ("origin", "site", "crosses"),
    [
        (None, None, False),
        ("http://localhost:7480", "same-origin", False),
        ("https://LOCALHOST:7480", None, False),
        (None, "none", False),
        ("http://localhost:3000", None, True),
        ("null", None, True),
        ("", None, True),
        (None, "cross-site", True),
        (None, "same-site", True),
    ],
)
def test_a_page_from_elsewhere_is_told_by_what_browsers_say(origin, site, crosses):
    assert is_cross_origin("localhost:7480", origin, site) is crosses
