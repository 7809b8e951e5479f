"""The datagrams of a circuit: what a member and the rendezvous say over UDP when an edge cannot be direct.

     0        1        2        3
    +--------+--------+--------+--------+
    |  0x9b  |  'k'   |  'r'   |  kind  |   10xxxxxx begins neither STUN (00) nor QUIC (x1)
    +--------+--------+--------+--------+
    |            circuit id             |
    |             (64 bits)             |
    +-----------------------------------+
    |  DATA: the members' own datagram, forwarded as it came, header included, and never read             |
    |  BIND, CHALLENGE, HALF_BOUND, BOUND: counter (64 bits), token (64 bits), MAC (128 bits)             |
    +-----------------------------------------------------------------------------------------------------+

A member BINDs the address it is seen from to its side of the circuit, and again from time to time, so that
the circuit follows it to a new address. At an address that is new the rendezvous wants to see a token first,
which it sends there in a CHALLENGE: whoever forges the source of a BIND does not get it, so that nothing is
forwarded to where nobody asked for it. Then it answers HALF_BOUND until the other side has bound too, then
BOUND. The MAC is HMAC-SHA256, cut to 16 bytes, under the key that only this side and the rendezvous know; it
covers everything before it. A counter that is not above the last one accepted is an old datagram played again.
"""

from __future__ import annotations

import enum
import hmac
import struct
from dataclasses import dataclass

MAGIC = b"\x9bkr"
CIRCUIT_ID_BYTES = 8
KEY_BYTES = 32
HEADER_BYTES = 12
MAC_BYTES = 16
TOKEN_BYTES = 8
NO_TOKEN = bytes(TOKEN_BYTES)

_BINDING = struct.Struct("!3sB8sQ8s")
_BINDING_BYTES = _BINDING.size + MAC_BYTES


class RelayKind(enum.IntEnum):
    """What a circuit's datagram is."""

    BIND = 1
    HALF_BOUND = 2
    BOUND = 3
    DATA = 4
    CHALLENGE = 5


_BINDING_KINDS = (RelayKind.BIND, RelayKind.HALF_BOUND, RelayKind.BOUND, RelayKind.CHALLENGE)


@dataclass(frozen=True, slots=True)
class Binding:
    """A BIND, CHALLENGE, HALF_BOUND or BOUND whose MAC has not been looked at yet."""

    kind: RelayKind
    circuit_id: bytes
    counter: int
    token: bytes
    datagram: bytes

    def is_authentic(self, key: bytes) -> bool:
        """Whether ``key`` made this datagram's MAC."""
        return hmac.compare_digest(_mac(key, self.datagram[: _BINDING.size]), self.datagram[_BINDING.size :])


def is_relay(data: bytes) -> bool:
    """Whether a datagram belongs to a circuit; nothing else in it has been looked at."""
    return data.startswith(MAGIC) and len(data) >= HEADER_BYTES


def data_header(circuit_id: bytes) -> bytes:
    """The bytes to put before each datagram sent through ``circuit_id``."""
    return MAGIC + bytes([RelayKind.DATA]) + circuit_id


def encode_binding(
    kind: RelayKind, circuit_id: bytes, counter: int, key: bytes, token: bytes = NO_TOKEN
) -> bytes:
    """A BIND, CHALLENGE, HALF_BOUND or BOUND datagram under this side's key."""
    body = _BINDING.pack(MAGIC, kind, circuit_id, counter, token)
    return body + _mac(key, body)


def parse_binding(data: bytes) -> Binding | None:
    """The binding in ``data``, or None if it is not one. The MAC is still to be checked."""
    if len(data) != _BINDING_BYTES or not data.startswith(MAGIC):
        return None
    _, kind, circuit_id, counter, token = _BINDING.unpack_from(data)
    if kind not in _BINDING_KINDS:
        return None
    return Binding(RelayKind(kind), circuit_id, counter, token, bytes(data))


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, b"kafila circuit 1" + body, "sha256")[:MAC_BYTES]
