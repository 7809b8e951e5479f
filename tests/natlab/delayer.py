"""Holds packets of the router it runs on until they are due: `python delayer.py`, in the router's namespace.

Standard input: a line of JSON for each change, {interface: [half of its round trip in s, jitter in s]}; it ends with
its input. Packets come through NFQUEUE 0, their first bytes alone, and get their verdict when due: half the round trip
of the site they come from plus half that of the site they go to. Order is kept, as on a line.
"""

from __future__ import annotations

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
_ACCEPT = struct.pack("=IHHIIIHH", 32, _QUEUE_VERDICT, 1, 0, 0, 0, 12, 2) + b"\0\0\0\1"


def open_queue() -> socket.socket:
    """A netlink socket that packets come from."""
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    queue.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
    queue.setsockopt(_SOL_NETLINK, _NO_ENOBUFS, 1)
    for kind, data in _CONFIG:
        body = struct.pack("=IHH", 0, 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)
        queue.send(struct.pack("=IHHII", 16 + len(body), _QUEUE_CONFIG, 1, 0, 0) + body)
    queue.setblocking(False)
    return queue


class Delayer:
    """Packets by when they are due."""

    def __init__(self, queue: socket.socket) -> None:
        self._queue = queue
        self._delays: dict[int, tuple[float, float]] = {}
        self._due: list[tuple[float, int]] = []
        self._last: dict[tuple[int, int], float] = {}

    def set_delays(self, line: str) -> None:
        """Take a line of standard input."""
        changes = json.loads(line)
        self._delays.update({socket.if_nametoindex(name): tuple(delay) for name, delay in changes.items()})

    def wait_s(self) -> float | None:
        """How long nothing is due."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    def take(self) -> None:
        """Take the packets that wait, at most 64 so that those due do not wait for long."""
        now = time.monotonic()
        for _ in range(64):
            try:
                message = self._queue.recv(512)
            except BlockingIOError:
                return
            if int.from_bytes(message[4:6], sys.byteorder) != _QUEUE_PACKET:
                continue
            packet, came, goes = _METADATA.unpack_from(message, 24)
            delays = [self._delays.get(interface, (0.0, 0.0)) for interface in (came, goes)]
            due = now + sum(half + random.random() * jitter for half, jitter in delays)
            due = self._last[came, goes] = max(due, self._last.get((came, goes), 0.0))
            heapq.heappush(self._due, (due, packet))

    def release(self) -> None:
        """Let go of what is due."""
        now, verdicts = time.monotonic(), []
        while self._due and self._due[0][0] <= now and len(verdicts) < 256:
            verdicts.append(_ACCEPT + struct.pack(">I", heapq.heappop(self._due)[1]))
        if verdicts:
            self._queue.send(b"".join(verdicts))


def main() -> None:
    queue = open_queue()
    delayer = Delayer(queue)
    delayer.set_delays(sys.stdin.readline())
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([queue, sys.stdin], [], [], delayer.wait_s())
        if sys.stdin in readable:
            line = sys.stdin.readline()
            if not line:
                return
            delayer.set_delays(line)
        delayer.take()
        delayer.release()


if __name__ == "__main__":
    main()
