"""Holds packets of the router it runs on until they are due: `python delayer.py`, in the router's namespace.

Standard input: a line of JSON for each change, {interface: [half of its round trip in s, jitter in s, share of packets
that come late, share that comes twice]}; it ends with its input. Packets come through NFQUEUE 0 and get their verdict
when due: half the round trip of the site they come from plus half that of the site they go to. Order is kept, as on a
line, except for those that come late. Copies are of IPv4 alone.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time

_NETLINK_NETFILTER, _SOL_NETLINK, _NO_ENOBUFS, _SO_RCVBUFFORCE = 12, 270, 5, 33
_QUEUE_PACKET, _QUEUE_VERDICT, _QUEUE_CONFIG = 0x300, 0x301, 0x302
# Bind to queue 0; copy metadata only; hold so many packets; take large ones whole.
_CONFIG = (
    (1, b"\1\0\0\0"),
    (2, b"\0\0\0\0\1"),
    (3, struct.pack(">I", 200_000)),
    (4, b"\0\0\0\4"),
    (5, b"\0\0\0\4"),
)
_METADATA = struct.Struct(">I8xI4xI")  # packet id, interface in, interface out
_ATTRIBUTE, _PAYLOAD = struct.Struct("=HH"), 10
_WHOLE_PACKETS = (2, b"\0\0\x40\0\2")
_LATE_S = 0.03
_ACCEPT = struct.pack("=IHHIIIHH", 32, _QUEUE_VERDICT, 1, 0, 0, 0, 12, 2) + b"\0\0\0\1"


def open_queue() -> socket.socket:
    """A netlink socket that packets come from."""
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    queue.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    queue.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
    for kind, data in _CONFIG:
        _configure(queue, kind, data)
    queue.setblocking(False)
    return queue


def _configure(queue: socket.socket, kind: int, data: bytes) -> None:
    body = struct.pack("=IHH", 0, 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)
    queue.send(struct.pack("=IHHII", 16 + len(body), _QUEUE_CONFIG, 1, 0, 0) + body)


def payload_of(message: bytes) -> bytes:
    """The packet that a message of the queue carries; empty if it carries none."""
    at = 20
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _PAYLOAD:
            return message[at + _ATTRIBUTE.size : at + length]
        at += max(length, _ATTRIBUTE.size) + -length % 4
    return b""


class Delayer:
    """Packets by when they are due."""

    def __init__(self, queue: socket.socket) -> None:
        self._queue = queue
        self._delays: dict[int, tuple[float, float, float, float]] = {}
        self._raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._due: list[tuple[float, int]] = []
        self._last: dict[tuple[int, int], float] = {}

    def set_delays(self, line: str) -> None:
        """Take a line of standard input."""
        changes = json.loads(line)
        self._delays.update({socket.if_nametoindex(name): tuple(delay) for name, delay in changes.items()})
        if any(copied for _, _, _, copied in self._delays.values()):
            _configure(self._queue, *_WHOLE_PACKETS)

    def wait_s(self) -> float | None:
        """How long nothing is due."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def take(self) -> None:
        """Take the packets that wait, at most 64 so that those due do not wait for long."""
        now = time.monotonic()
        for _ in range(64):
            try:
                message = self._queue.recv(16384)
            except BlockingIOError:
                return
            if int.from_bytes(message[4:6], sys.byteorder) != _QUEUE_PACKET:
                continue
            packet, came, goes = _METADATA.unpack_from(message, 24)
            ways = [self._delays.get(interface, (0.0,) * 4) for interface in (came, goes)]
            due = now + sum(half + random.random() * jitter for half, jitter, _, _ in ways)
            if any(random.random() < late for _, _, late, _ in ways):
                due += random.random() * _LATE_S
            else:
                due = self._last[came, goes] = max(due, self._last.get((came, goes), 0.0))
            heapq.heappush(self._due, (due, packet))
            if any(random.random() < copied for _, _, _, copied in ways):
                self._send_copy(payload_of(message))

    def _send_copy(self, packet: bytes) -> None:
        if packet[:1] and packet[0] >> 4 == 4:
            self._raw.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))

    def release(self) -> None:
        """Let go of what is due."""
        now, verdicts = time.monotonic(), []
        while self._due and self._due[0][0] <= now and len(verdicts) < 256:
            verdicts.append(_ACCEPT + struct.pack(">I", heapq.heappop(self._due)[1]))
        if verdicts:
            self._queue.send(b"".join(verdicts))


class Orders:
    """Lines of standard input. None is left behind in a buffer, where ``select`` would not see it."""

    def __init__(self) -> None:
        self._rest = b""

    def fileno(self) -> int:
        """For ``select``."""
        return sys.stdin.fileno()

    def take(self) -> list[str]:
        """All that have come, at least one. Raises EOFError at the end."""
        lines: list[bytes] = []
        while not lines:
            data = os.read(self.fileno(), 1 << 16)
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


def main() -> None:
    queue, orders = open_queue(), Orders()
    delayer = Delayer(queue)
    for line in orders.take():
        delayer.set_delays(line)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("ready", flush=True)
    with contextlib.suppress(EOFError):
        while True:
            readable, _, _ = select.select([queue, orders], [], [], delayer.wait_s())
            if orders in readable:
                for line in orders.take():
                    delayer.set_delays(line)
            delayer.take()
            delayer.release()


if __name__ == "__main__":
    main()
