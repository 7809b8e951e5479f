"""What waits to be written to one agent: bounded, because an agent may stop reading and others may go on talking."""

from __future__ import annotations

import asyncio

from kafila_proto.rendezvous_pb2 import ToAgent

MAX_MESSAGES = 4096
MAX_BYTES = 2 << 20  # what lets more than that pile up is not reading


class Outbox:
    """Messages in order, and the end of the stream behind them."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[ToAgent | None] = asyncio.Queue()
        self._bytes = 0

    def put(self, message: ToAgent) -> bool:
        """Say ``message`` behind what was said before; False where too much is waiting already."""
        if self._waiting.qsize() >= MAX_MESSAGES or self._bytes >= MAX_BYTES:
            return False
        self._bytes += message.ByteSize()
        self._waiting.put_nowait(message)
        return True

    def finish(self) -> None:
        """End the stream once all is said."""
        self._waiting.put_nowait(None)

    def drop(self) -> None:
        """End the stream and say nothing more."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self.finish()

    async def next(self) -> ToAgent | None:
        """What is to be said next; None at the end."""
        message = await self._waiting.get()
        if message is not None:
            self._bytes -= message.ByteSize()
        return message
