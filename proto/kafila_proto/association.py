"""The association of an agent and the rendezvous, which outlives its streams. A core, alike on both sides.

A TCP stream breaks when an address changes or a NAT forgets it, and nobody knows what of the last words has arrived.
So each side keeps what it has said until the other has heard it. Messages are counted, not numbered, for a stream keeps
their order: ``Heard`` says now and then how many have come, and Hello and Welcome say it when the next stream begins,
which goes on from there. Nothing is lost, nothing comes twice, and a broken stream is no more than a delay.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from kafila_proto.rendezvous_pb2 import FromAgent, Heard, ToAgent

ID_BYTES = 16
MAX_MESSAGES = 4096
MAX_BYTES = 2 << 20  # whoever lets more than that pile up does not read
_TELL_MESSAGES = 16
_TELL_BYTES = 64 << 10

Said = TypeVar("Said", FromAgent, ToAgent)


class AssociationError(ValueError):
    """The other side cannot have heard what it says it has, or is not told any more: the association is over."""


class Association(Generic[Said]):
    """One side's half: it says messages of type ``kind``, and hears those of the other type."""

    def __init__(self, kind: type[Said]) -> None:
        self.heard = 0  # messages of the other side's, since the beginning
        self._kind: type[Said] = kind
        self._kept: deque[Said] = deque()  # said, and not known to be heard
        self._forgotten = 0  # how many were said before those
        self._written = 0  # how many of those kept have gone down the present stream
        self._bytes = 0
        self._told = 0  # how many the other side knows to be heard
        self._untold_bytes = 0

    @property
    def is_written(self) -> bool:
        """Whether all that was said has gone down the present stream."""
        return self._written == len(self._kept)

    @property
    def kept(self) -> int:
        """How many messages are kept for the next stream."""
        return len(self._kept)

    def say(self, message: Said) -> None:
        """Say ``message`` behind what was said before. Raises AssociationError where too much is kept already."""
        if len(self._kept) >= MAX_MESSAGES or self._bytes >= MAX_BYTES:
            raise AssociationError(f"{len(self._kept)} messages were said and not heard")
        self._kept.append(message)
        self._bytes += message.ByteSize()

    def next(self) -> Said | None:
        """What is to be written next, if anything; it counts as written from then on."""
        if self.heard - self._told >= _TELL_MESSAGES or self._untold_bytes >= _TELL_BYTES:
            self._tell()
            return self._kind(heard=Heard(count=self.heard))
        if self.is_written:
            return None
        self._written += 1
        return self._kept[self._written - 1]

    def hear(self, message: FromAgent | ToAgent) -> bool:
        """Take a message of the other side's; whether there is something in it to be acted on.

        Raises AssociationError if it has heard what was never written.
        """
        if message.WhichOneof("message") == "heard":
            self._forget(message.heard.count, self._forgotten + self._written)
            return False
        self.heard += 1
        self._untold_bytes += message.ByteSize()
        return True

    def go_on(self, heard: int) -> None:
        """A new stream begins; the other side has ``heard`` so many, and was told how many were heard here.

        Raises AssociationError if it cannot have heard so many, or had heard more before.
        """
        self._forget(heard, self._forgotten + len(self._kept))
        self._written = 0
        self._tell()

    def _tell(self) -> None:
        self._told, self._untold_bytes = self.heard, 0

    def _forget(self, heard: int, said: int) -> None:
        if not self._forgotten <= heard <= said:
            raise AssociationError(f"{heard} messages heard of {said}, where {self._forgotten} were before")
        for _ in range(heard - self._forgotten):
            self._bytes -= self._kept.popleft().ByteSize()
        self._written -= min(self._written, heard - self._forgotten)
        self._forgotten = heard
