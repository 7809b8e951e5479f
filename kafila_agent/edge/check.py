"""Connectivity checks: small datagrams that open NATs and prove a path before anything else uses it.

     0        1        2        3
    +--------+--------+--------+--------+
    |  0x9b  |  'k'   |  'c'   |  kind  |   REQUEST, ANSWER
    +--------+--------+--------+--------+
    |              pair id              |   names the key: one for each two members and epoch
    |             (64 bits)             |
    +-----------------------------------+
    |            transaction            |   made by who asks, returned by who answers
    |             (64 bits)             |
    +-----------------+--------+--------+
    |     length      | dialer |   0    |   of the whole datagram; whether the sender is the one who dials
    +-----------------+--------+--------+
    |           MAC (128 bits)          |   over all that stands before it
    +-----------------------------------+
    |  zeros up to length: a check as large as a QUIC datagram proves that the path carries those         |
    +-----------------------------------------------------------------------------------------------------+

An answer is as long as its request, so it amplifies nothing. The key comes from the session's id, which
strangers do not know; it keeps strangers and stale epochs out and is no identity: that is the QUIC
handshake's part.
"""

from __future__ import annotations

import enum
import hmac
import struct
from dataclasses import dataclass

MAGIC = b"\x9bkc"
CHECK_BYTES = 40
TRANSACTION_BYTES = 8

_BODY = struct.Struct("!3sB8s8sHBx")
_MAC_BYTES = 16
_MAX_BYTES = 65535


class CheckKind(enum.IntEnum):
    """What a check is."""

    REQUEST = 1
    ANSWER = 2


@dataclass(frozen=True, slots=True)
class Check:
    """A parsed check; ``parse_check`` has looked at its length, ``PairKey`` at its MAC."""

    kind: CheckKind
    pair_id: bytes
    transaction: bytes
    size: int
    from_dialer: bool


@dataclass(frozen=True, slots=True)
class PairKey:
    """What two members of one epoch share: the key of their checks and its name."""

    key: bytes
    pair_id: bytes

    @classmethod
    def derive(cls, session_id: bytes, epoch: int, one: bytes, other: bytes) -> PairKey:
        """The key of two fingerprints, in either order."""
        low, high = sorted((one, other))
        key = hmac.digest(session_id, b"kafila checks 1" + struct.pack("!I", epoch) + low + high, "sha256")
        return cls(key, hmac.digest(key, b"pair id", "sha256")[:8])

    def encode(
        self, kind: CheckKind, transaction: bytes, *, from_dialer: bool, size: int = CHECK_BYTES
    ) -> bytes:
        """A check of ``size`` bytes, at least CHECK_BYTES."""
        body = _BODY.pack(MAGIC, kind, self.pair_id, transaction, size, from_dialer)
        return (body + self._mac(body)).ljust(size, b"\0")

    def parse(self, data: bytes) -> Check | None:
        """The check in ``data`` if this key made it, else None."""
        check = parse_check(data)
        if check is None or not hmac.compare_digest(
            self._mac(data[: _BODY.size]), data[_BODY.size : CHECK_BYTES]
        ):
            return None
        return check

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self.key, body, "sha256")[:_MAC_BYTES]


def is_check(data: bytes) -> bool:
    """Whether a datagram is a check; nothing else in it has been looked at."""
    return data.startswith(MAGIC)


def parse_check(data: bytes) -> Check | None:
    """The check in ``data``, its MAC not yet looked at; None if it is not one."""
    if not CHECK_BYTES <= len(data) <= _MAX_BYTES or not data.startswith(MAGIC):
        return None
    _, kind, pair_id, transaction, size, from_dialer = _BODY.unpack_from(data)
    if kind not in (CheckKind.REQUEST, CheckKind.ANSWER) or size != len(data) or from_dialer > 1:
        return None
    return Check(CheckKind(kind), pair_id, transaction, size, bool(from_dialer))
