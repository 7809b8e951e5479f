"""What an HTTP server for this machine alone asks of a request, be it an API's or that of metrics.

A page in a browser can make requests to this machine under a name that its own server resolves to 127.0.0.1
(DNS rebinding); the Host header gives it away. What a page of another origin sends under a right name says so
in Origin or Sec-Fetch-Site. Programs send neither.
"""

from __future__ import annotations

import ipaddress
import re

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_PORT = re.compile(r":\d*$")


def is_loopback(host: str) -> bool:
    """Whether a server that listens at ``host`` is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str) -> frozenset[str] | None:
    """What a server that listens at ``host`` may be called; None where other machines reach it, by any name."""
    if not is_loopback(host):
        return None
    return LOCAL_NAMES | {f"[{host}]" if ":" in host else host}


def called_name(host_header: str) -> str:
    """The name in a Host header, without its port."""
    return _PORT.sub("", host_header).lower().removesuffix(".")


def is_cross_origin(host_header: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether a browser says that a page from elsewhere makes this request."""
    own = (f"http://{host_header.lower()}", f"https://{host_header.lower()}")
    return (origin is not None and origin.lower() not in own) or fetch_site not in (
        None,
        "none",
        "same-origin",
    )
