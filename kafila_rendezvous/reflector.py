"""The STUN reflector: tells a member the address it is seen from, at two ports of one or two addresses.

RFC 8489, and RFC 5780 where there is a second address: then answers can be had from the other address, from the other
port, or from both, and mapping and filtering are told apart in full. With one address two ports tell an
endpoint-independent mapping from most others, and whether filtering looks at ports; an answer from another address is
refused aloud, because silence would look like filtering.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafila_proto import stun

BOTH = stun.CHANGE_ADDRESS | stun.CHANGE_PORT


@dataclass(frozen=True, slots=True)
class Reflection:
    """One answer; ``change`` says from which socket: flags of CHANGE-REQUEST, as seen from the one that was asked."""

    data: bytes
    change: int = 0


def reflect(data: bytes, source: stun.Address, places: Mapping[int, stun.Address]) -> Reflection | None:
    """The answer to a binding request from ``source``; None for anything else.

    ``places``: where answers can come from, by the change they are from the socket that was asked (which is 0). A
    plain request is answered with the mapped address alone, so that the reflector is of little use to whoever forges
    a source; RFC 5780's attributes go to those who ask for them.
    """
    try:
        request = stun.parse_stun(data)
    except stun.StunError:
        return None
    if not stun.is_request(request):
        return None
    change = stun.requested_change(request)
    if change is None:
        return Reflection(stun.encode_response(request, source))
    change &= BOTH
    if change not in places:
        return Reflection(stun.encode_unknown_attribute(request))
    other = places.get(BOTH, places[stun.CHANGE_PORT])
    return Reflection(stun.encode_response(request, source, origin=places[change], other=other), change)
