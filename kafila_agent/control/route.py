"""Which of this machine's addresses packets leave from: it changes with a Wi-Fi, a lease, a cable, a VPN."""

from __future__ import annotations

import socket

_ANY_PORT = 9  # nothing is sent


def source_address(host: str) -> str | None:
    """The address from which packets to the literal address ``host`` leave now; None where there is no way there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, _ANY_PORT))
        except OSError:
            return None
        return str(probe.getsockname()[0])
