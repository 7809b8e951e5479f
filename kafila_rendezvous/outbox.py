"""What is said to one agent, over one stream after the other: bounded, because an agent may stop reading."""

from __future__ import annotations

import asyncio

from kafila_proto.association import Association
from kafila_proto.rendezvous_pb2 import FromAgent, ToAgent, Welcome


class Outbox:
    """The rendezvous's half of an association, and its streams: at most one at a time."""

    def __init__(self) -> None:
        self._association = Association(ToAgent)
        self._stream = 0  # the number of the present stream
        self._is_ending = False
        self._news = asyncio.Event()

    def begin(self, heard: int) -> tuple[int, Welcome]:
        """A stream takes the place of the one before, if there is one: its number, and what to say first on it.

        Raises AssociationError if the agent cannot have heard so many messages.
        """
        self._association.go_on(heard)
        self._stream += 1
        self._is_ending = False
        self._changed()
        return self._stream, Welcome(goes_on=self._stream > 1, heard=self._association.heard)

    def is_present(self, stream: int) -> bool:
        """Whether no other stream has taken the place of ``stream``."""
        return stream == self._stream

    def put(self, message: ToAgent) -> None:
        """Say ``message`` behind what was said before. Raises AssociationError where too much was not heard."""
        self._association.say(message)
        self._changed()

    def hear(self, message: FromAgent) -> bool:
        """As Association's."""
        is_to_act_on = self._association.hear(message)
        self._changed()
        return is_to_act_on

    def finish(self) -> None:
        """End the present stream once all is said."""
        self._is_ending = True
        self._changed()

    def drop(self) -> None:
        """End the stream and say nothing more."""
        self._stream += 1
        self._changed()

    async def next(self, stream: int) -> ToAgent | None:
        """What is to be said next on ``stream``; None at its end."""
        while self.is_present(stream):
            if (message := self._association.next()) is not None:
                return message
            if self._is_ending:
                break
            await self._news.wait()
        return None

    def _changed(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
