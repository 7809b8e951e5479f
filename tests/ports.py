"""Ports that a test has to name before they are bound."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that Linux gives to whoever asks for any (ip_local_port_range); a hundred for each worker of the suite.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_ports = itertools.cycle(range(21000 + 100 * _WORKER, 21100 + 100 * _WORKER))


def free_port(beside: int = 0) -> int:
    """A port of 127.0.0.1 that is free, and stays so until it is named; ``beside``: so many after it, too."""
    return next(port for port in _ports if all(map(_is_free, range(port, port + 1 + beside))))


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
