"""An edge as its owner sees it: frames in, frames out, in order, until it is closed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.stream import EdgeStreams

Payload = bytes | bytearray | memoryview


class Edge:
    """A connection to one member. All of it belongs to the event loop's thread.

    ``on_frame`` gets each frame as a view of memory of its own, to keep; frames that come before it is set
    wait for it. ``on_closed`` is called once, with the reason in words, when the edge is lost, or at once if it was
    lost before; not after our own close. ``streams``: the exchanges beside the frames.
    """

    def __init__(
        self, peer: str, fingerprint: bytes, path: str, send: Callable[[Payload], None], streams: EdgeStreams
    ):
        self.peer = peer
        self.fingerprint = fingerprint
        self.path = path
        self.streams = streams
        self.rtt_s: float | None = None
        self.close_reason: str | None = None
        self.frames_sent = self.frames_received = 0
        self.bytes_sent = self.bytes_received = 0
        self.packets_lost = 0
        self._lost_reason: str | None = None
        self._on_closed: Callable[[str], None] | None = None
        self._on_frame: Callable[[memoryview], None] | None = None
        self._early: deque[memoryview] = deque()
        self._send = send

    def __repr__(self) -> str:
        return f"<Edge to {self.peer}, {self.close_reason or self.path}>"

    @property
    def on_frame(self) -> Callable[[memoryview], None] | None:
        """Who gets the frames."""
        return self._on_frame

    @on_frame.setter
    def on_frame(self, receiver: Callable[[memoryview], None] | None) -> None:
        self._on_frame = receiver
        while self._on_frame is not None and self._early:
            self._on_frame(self._early.popleft())

    @property
    def on_closed(self) -> Callable[[str], None] | None:
        """Who is told that the edge is lost."""
        return self._on_closed

    @on_closed.setter
    def on_closed(self, tell: Callable[[str], None] | None) -> None:
        self._on_closed = tell
        if tell is not None and self._lost_reason is not None:
            tell(self._lost_reason)

    @property
    def closed(self) -> bool:
        """Whether the edge is no more."""
        return self.close_reason is not None

    def send(self, frame: Payload) -> None:
        """Send one frame behind those sent before. Raises EdgeError if the edge is closed."""
        if self.close_reason is not None:
            raise EdgeError(f"the edge to {self.peer} is closed: {self.close_reason}")
        self.frames_sent += 1
        self.bytes_sent += len(frame)
        self._send(frame)

    def deliver(self, frame: memoryview) -> None:
        """Hand a received frame on (the endpoint's part)."""
        self.frames_received += 1
        self.bytes_received += len(frame)
        if self._on_frame is None or self._early:
            self._early.append(frame)
        else:
            self._on_frame(frame)

    def end(self, reason: str, *, lost: bool) -> None:
        """The edge is no more (the endpoint's part)."""
        if self.close_reason is None:
            self.close_reason = reason
            self.streams.close(reason)
            if lost:
                self._lost_reason = reason
                if self._on_closed is not None:
                    self._on_closed(reason)


async def first_round_trips(edges: Iterable[Edge], patience_s: float) -> None:
    """Until each edge has measured its first round trip, or ``patience_s`` have passed: nothing hangs on the figure."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while any(edge.rtt_s is None for edge in edges) and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(patience_s / 50)
