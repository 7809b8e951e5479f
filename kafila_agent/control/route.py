"""Which of this machine's addresses packets leave from, and whether it still has one: a lease ends, a Wi-Fi changes."""

from __future__ import annotations

import socket

_ANY_PORT = 9  # nothing is sent


def has_address(address: str) -> bool:
    """Whether the literal ``address`` is one of this machine's."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def source_address(host: str) -> str | None:
    """The address from which packets to the literal address ``host`` leave now; None where there is no way there."""
    with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, _ANY_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
