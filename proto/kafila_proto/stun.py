"""STUN binding as both programs use it (RFC 8489, and RFC 5780 for the change of port), over aioice's codec.

The codec raises four kinds of error on hostile bytes; here there is one, and only what we use is let through.
"""

from __future__ import annotations

import functools
import ipaddress
import struct

from aioice import stun

Address = tuple[str, int]

_COOKIE = b"\x21\x12\xa4\x42"
_HEADER_BYTES = 20
_MAX_BYTES = 548  # RFC 8489 section 6.1: what crosses any IPv4 path unfragmented

CHANGE_PORT = 0x2
CHANGE_ADDRESS = 0x4

Message = stun.Message


class StunError(ValueError):
    """Bytes that look like STUN and are not a message we understand."""


def is_stun(data: bytes) -> bool:
    """Whether a datagram is STUN: two zero bits and the magic cookie (RFC 8489 section 5)."""
    return len(data) >= _HEADER_BYTES and data[0] < 0x40 and data[4:8] == _COOKIE


def parse_stun(data: bytes) -> stun.Message:
    """The message in ``data``. Raises StunError on anything else."""
    if not is_stun(data) or len(data) > _MAX_BYTES:
        raise StunError("not a STUN message")
    try:
        return stun.parse_message(data)
    except (ValueError, struct.error, IndexError, KeyError) as error:
        raise StunError(f"malformed STUN message: {error}") from None


def encode_request(change: int | None = None) -> tuple[bytes, bytes]:
    """A binding request and its transaction id.

    ``change``: flags of CHANGE-REQUEST (RFC 5780 7.2); 0 changes nothing and asks for the reflector's other address.
    """
    request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    if change is not None:
        request.attributes["CHANGE-REQUEST"] = change
    return bytes(request), request.transaction_id


def is_request(message: stun.Message) -> bool:
    """Whether ``message`` is a binding request."""
    return message.message_method == stun.Method.BINDING and message.message_class == stun.Class.REQUEST


def requested_change(message: stun.Message) -> int | None:
    """The flags of CHANGE-REQUEST, or None where the request has none."""
    return message.attributes.get("CHANGE-REQUEST")


def encode_response(
    request: stun.Message, mapped: Address, *, origin: Address | None = None, other: Address | None = None
) -> bytes:
    """The answer to a binding request: where it was seen from; for RFC 5780, where the reflector is."""
    response = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE, request.transaction_id)
    response.attributes["XOR-MAPPED-ADDRESS"] = plain_address(mapped)
    if origin is not None:
        response.attributes["RESPONSE-ORIGIN"] = origin
    if other is not None:
        response.attributes["OTHER-ADDRESS"] = other
    return bytes(response)


def encode_unknown_attribute(request: stun.Message) -> bytes:
    """The refusal of an attribute this reflector cannot honour (RFC 8489 section 14.8, code 420)."""
    response = stun.Message(stun.Method.BINDING, stun.Class.ERROR, request.transaction_id)
    response.attributes["ERROR-CODE"] = (420, "Unknown Attribute")
    return bytes(response)


def mapped_address(message: stun.Message) -> Address | None:
    """Where the reflector saw us, from a success response; None from any other message."""
    if message.message_method != stun.Method.BINDING or message.message_class != stun.Class.RESPONSE:
        return None
    return message.attributes.get("XOR-MAPPED-ADDRESS")


def other_address(message: stun.Message) -> Address | None:
    """Where else the reflector answers (RFC 5780 7.4), if it says."""
    return message.attributes.get("OTHER-ADDRESS")


def is_refusal(message: stun.Message) -> bool:
    """Whether ``message`` refuses a binding request."""
    return message.message_method == stun.Method.BINDING and message.message_class == stun.Class.ERROR


@functools.lru_cache(maxsize=1024)
def plain_address(address: Address) -> Address:
    """``address`` with an IPv4-mapped IPv6 host written as the IPv4 address it is, and without a scope."""
    host = address[0].partition("%")[0]
    if host.startswith("::ffff:"):
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
        host = host if mapped is None else str(mapped)
    return host, address[1]
