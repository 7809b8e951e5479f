"""The API's port, had before what serves it is: importing that takes seconds, and a taken port is told at once."""

from __future__ import annotations

import errno
import socket


class ApiServerError(RuntimeError):
    """The server cannot start; the message names the address and the option that changes it."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host:port`` (0: any). Raises ApiServerError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ApiServerError(
                f"port {port} on {host} is in use: choose another with --api-port"
            ) from error
        raise ApiServerError(
            f"cannot listen on {host}:{port} ({error.strerror}): choose another address with --api-host, or port with"
            " --api-port"
        ) from error
    # What is accepted inherits it. asyncio sets it only on sockets naming a protocol, as this one does not; without
    # it the second packet of an answer, or of what is streamed, waits for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
