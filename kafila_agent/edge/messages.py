"""What an edge's one stream carries: proofs first, then frames and pings, each with a kind and a length.

     0        1        2        3        4
    +--------+--------+--------+--------+--------+
    |  kind  |           length (32 bits)        |  then length bytes
    +--------+-----------------------------------+

A message is copied once, from QUIC's pieces into memory of its own: whoever gets it may keep it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("!BI")
HEADER_BYTES = _HEADER.size


class MessageError(ValueError):
    """Bytes that no member of this version sends."""


class MessageKind(enum.IntEnum):
    """What a message is. The first three come once each and before the others."""

    NONCE = 1  # who was dialled -> who dialled: 32 random bytes
    CREDENTIAL = 2  # the answer: see credential.py
    ACCEPTED = 3  # the edge stands; empty
    FRAME = 4  # see frame.py
    PING = 5  # 8 bytes that mean something to the sender alone
    PONG = 6  # the same 8 bytes
    ADDRESSES = 7  # where the sender can be reached now: see candidate.py


def message_header(kind: MessageKind, length: int) -> bytes:
    """The bytes before a message of ``length`` bytes."""
    return _HEADER.pack(kind, length)


class MessageReader:
    """Cuts a stream into messages; refuses any longer than ``limit`` before it makes room for it."""

    def __init__(self, limit: int):
        self.limit = limit
        self._header = b""
        self._kind = MessageKind.NONCE
        self._body: bytearray | None = None  # None: in the header
        self._filled = 0

    @property
    def is_amid_message(self) -> bool:
        """Whether what has been fed ends within one."""
        return self._body is not None or bool(self._header)

    def feed(self, data: bytes) -> Iterator[tuple[MessageKind, memoryview]]:
        """The messages that ``data`` completes, one at a time: a change of ``limit`` holds from the next
        one on.

        Raises MessageError on an unknown kind or a message over the limit.
        """
        view = memoryview(data)
        while view:
            if self._body is None:
                view = self._take_header(view)
            if self._body is not None:
                view = self._take_body(view, self._body)
                if self._filled == len(self._body):
                    body, self._body = self._body, None
                    yield self._kind, memoryview(body)

    def _take_header(self, view: memoryview) -> memoryview:
        missing = HEADER_BYTES - len(self._header)
        self._header += view[:missing]
        if len(self._header) == HEADER_BYTES:
            kind, length = _HEADER.unpack(self._header)
            if kind not in MessageKind.__members__.values():
                raise MessageError(f"unknown message kind {kind}")
            if length > self.limit:
                raise MessageError(f"message of {length} bytes where {self.limit} are allowed")
            self._kind, self._body, self._filled, self._header = MessageKind(kind), bytearray(length), 0, b""
        return view[missing:]

    def _take_body(self, view: memoryview, body: bytearray) -> memoryview:
        count = min(len(body) - self._filled, len(view))
        body[self._filled : self._filled + count] = view[:count]
        self._filled += count
        return view[count:]
