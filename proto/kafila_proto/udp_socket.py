"""The UDP socket that both programs open: non-blocking, large buffers, never fragmented, drained in one go.

One event-loop callback per datagram costs more than the datagram; a readable socket is read until it is
empty.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from typing import Any

import structlog

log = structlog.get_logger()

BUFFER_BYTES = 4 << 20
# Memory of this size is taken for every datagram: more than the largest that anyone here sends is waste.
_MAX_DATAGRAM_BYTES = 9216

# Linux numbers that the socket module does not name (linux/in.h, linux/in6.h). PROBE sends with "do not
# fragment" and ignores ICMP, as RFC 8899 section 4.6.3 asks of a transport that probes its own path.
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 23, 3

_warned_of_buffer = False


def open_udp_socket(host: str, port: int, *, ipv4_too: bool = False) -> socket.socket:
    """A bound, non-blocking UDP socket.

    ``host`` is a literal address; ``ipv4_too`` lets "::" take both families. Raises OSError naming the
    address that cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM)
    try:
        udp.setblocking(False)
        if family == socket.AF_INET6:
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not ipv4_too))
        _forbid_fragments(udp)
        _enlarge_buffers(udp)
        udp.bind((host, port))
    except OSError as error:
        udp.close()
        raise OSError(error.errno, f"cannot bind UDP {host} port {port}: {error.strerror}") from error
    return udp


def drain(udp: socket.socket, at_most: int) -> Iterator[tuple[bytes, Any]]:
    """The datagrams that wait in ``udp``, with the addresses they came from; the rest at the next turn."""
    for _ in range(at_most):
        try:
            yield udp.recvfrom(_MAX_DATAGRAM_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionError:  # an ICMP answer to something sent earlier: not about this socket's health
            continue


def send(udp: socket.socket, data: bytes, address: tuple[Any, ...]) -> bool:
    """Send one datagram; False if the system would not take it (full, too large, no route)."""
    try:
        udp.sendto(data, address)
    except (BlockingIOError, InterruptedError, ConnectionError):
        return False
    except OSError as error:
        if error.errno == errno.EBADF:
            raise
        return False
    return True


def _forbid_fragments(udp: socket.socket) -> None:
    if sys.platform != "linux":
        return
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
    # A socket for both families has both options.
    if udp.family == socket.AF_INET or not udp.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
        udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)


def _enlarge_buffers(udp: socket.socket) -> None:
    global _warned_of_buffer
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        udp.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    granted = udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    if sys.platform == "linux":
        granted //= 2  # the kernel counts its bookkeeping twice over (socket(7))
    if granted < BUFFER_BYTES and not _warned_of_buffer:
        _warned_of_buffer = True
        log.warning(
            "the system limits the UDP receive buffer: large prompts may lose datagrams and wait",
            granted_bytes=granted,
            wanted_bytes=BUFFER_BYTES,
            remedy=f"sysctl -w net.core.rmem_max={BUFFER_BYTES}",
        )
