"""Exchanges beside an edge's frames, each a QUIC stream of its own: a long prompt holds no token up.

Whoever opens one sends first. Each end sends bytes until it has sent its end; either may break the exchange off, and
both learn of that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.events import StreamBroken, StreamReceived

MAX_STREAMS = 64  # that the peer has open at once
MAX_HELD_BYTES = 80 << 20  # of all of them together, until they are read
_DRAINED_BYTES = 256 << 10


class StreamCarrier(Protocol):
    """What exchanges need of a connection."""

    def open_stream(self) -> int: ...  # noqa: D102
    def send_stream(self, stream_id: int, data: bytes, *, end: bool) -> None: ...  # noqa: D102
    def break_stream(self, stream_id: int) -> None: ...  # noqa: D102
    def unacknowledged_stream_bytes(self, stream_id: int) -> int: ...  # noqa: D102


class EdgeStream:
    """One exchange as one of its ends sees it."""

    def __init__(self, stream_id: int, streams: EdgeStreams):
        self._id = stream_id
        self._streams = streams
        self._received: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._drained = asyncio.Event()
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._peer_ended = False
        self._is_whole = False  # what the peer had to send
        self._we_ended = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to say or to hear."""
        return self._broken.done() or (self._peer_ended and self._we_ended)

    @property
    def is_silent(self) -> bool:
        """Whether it is over and no late bytes of it can come."""
        return self._peer_ended and self.is_over

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Send behind what was sent before; nothing once the exchange is broken off."""
        if not self._broken.done():
            self._we_ended = end
            self._streams.send(self._id, data, end=end)

    async def drained(self) -> None:
        """Until the peer has taken in most of what was sent, or will not."""
        while not self.is_over and self._streams.unacknowledged_bytes(self._id) > _DRAINED_BYTES:
            self._drained.clear()
            await self._drained.wait()

    async def receive(self) -> bytes | None:
        """The next bytes; None at their end. Raises EdgeError if the exchange was broken off before."""
        while not self._received:
            if self._is_whole:
                return None
            if self._broken.done():
                raise EdgeError(self._broken.result())
            self._news.clear()
            await self._news.wait()
        data = self._received.popleft()
        self._streams.held_bytes -= len(data)
        return data

    async def broken(self) -> str:
        """Until the exchange is broken off; the reason."""
        return await asyncio.shield(self._broken)

    def break_off(self, reason: str = "broken off") -> None:
        """Have no more of it, either way; what has come and is unread is let go."""
        self._streams.held_bytes -= sum(map(len, self._received))
        self._received.clear()
        if not self.is_over:
            self.end(reason)
            self._streams.break_off(self._id)

    # The edge's part

    def take(self, data: bytes, *, ended: bool) -> None:
        """Some bytes have come."""
        if data:
            self._received.append(data)
        self._peer_ended = self._peer_ended or ended
        self._is_whole = self._is_whole or (ended and not self._broken.done())
        self._news.set()

    def pumped(self) -> None:
        """Something may have been acknowledged."""
        self._drained.set()

    def end(self, reason: str) -> None:
        """The exchange is broken off, here or by the peer."""
        if not self._broken.done():
            self._broken.set_result(reason)
        self._news.set()
        self._drained.set()


class EdgeStreams:
    """All exchanges of one edge. ``pump`` puts on the socket what the connection has to send.

    ``answer`` gets those that the peer opens.
    """

    def __init__(
        self, carrier: StreamCarrier, pump: Callable[[], None], answer: Callable[[EdgeStream], None]
    ):
        self.held_bytes = 0
        self._carrier = carrier
        self._pump = pump
        self._answer = answer
        self._streams: dict[int, EdgeStream] = {}
        self._closed_reason: str | None = None

    def open(self) -> EdgeStream:
        """Begin an exchange. Raises EdgeError if the edge is closed."""
        if self._closed_reason is not None:
            raise EdgeError(self._closed_reason)
        stream_id = self._carrier.open_stream()
        stream = self._streams[stream_id] = EdgeStream(stream_id, self)
        return stream

    def take_event(self, event: StreamReceived | StreamBroken) -> None:
        """What the connection says of a stream."""
        stream = self._streams.get(event.stream_id)
        if isinstance(event, StreamBroken):
            if stream is not None:
                stream.end("the other end broke it off")
                stream.take(b"", ended=event.ended)
                self.break_off(event.stream_id)
            return
        if stream is None:
            stream = self._accept(event.stream_id)
        if stream.is_over:
            stream.take(b"", ended=event.ended)
        elif self.held_bytes + len(event.data) > MAX_HELD_BYTES:
            stream.break_off("more than can be held")
        else:
            self.held_bytes += len(event.data)
            stream.take(event.data, ended=event.ended)
        self._forget_the_silent()

    def _accept(self, stream_id: int) -> EdgeStream:
        stream = self._streams[stream_id] = EdgeStream(stream_id, self)
        if len(self._streams) > MAX_STREAMS:
            stream.break_off("too many at once")
        else:
            self._answer(stream)
        return stream

    def send(self, stream_id: int, data: bytes, *, end: bool) -> None:
        """For a stream of ours."""
        if self._closed_reason is None:
            self._carrier.send_stream(stream_id, data, end=end)
            self._forget_the_silent()
            self._pump()

    def break_off(self, stream_id: int) -> None:
        """For a stream of ours."""
        if self._closed_reason is None:
            self._carrier.break_stream(stream_id)
            self._forget_the_silent()
            self._pump()

    def unacknowledged_bytes(self, stream_id: int) -> int:
        """What was sent on a stream and not been acknowledged."""
        return self._carrier.unacknowledged_stream_bytes(stream_id)

    def pumped(self) -> None:
        """The connection has heard from the peer, or sent."""
        for stream in self._streams.values():
            stream.pumped()

    def close(self, reason: str) -> None:
        """The edge is no more."""
        self._closed_reason = reason
        for stream in self._streams.values():
            stream.end(reason)
        self._streams.clear()

    def _forget_the_silent(self) -> None:
        self._streams = {number: each for number, each in self._streams.items() if not each.is_silent}
