"""The STUN reflector: tells a member the address it is seen from, at two ports of one host.

Two vantage points are enough to tell an endpoint-independent mapping from any other, and an answer from the
port that was not asked tells whether filtering looks at ports (RFC 5780 sections 4.3 and 4.4). The host has
one address, so an answer from another address is refused, not left out: silence would look like filtering.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafila_proto import stun


@dataclass(frozen=True, slots=True)
class Reflection:
    """One answer; ``from_other_port`` says which of the two sockets is to send it."""

    data: bytes
    from_other_port: bool = False


def reflect(data: bytes, source: stun.Address, local: stun.Address, other: stun.Address) -> Reflection | None:
    """The answer to a binding request from ``source`` that came in at ``local``; None for anything else.

    ``other`` is the same host's second port. A plain request is answered with the mapped address alone, so
    that the reflector is of little use to whoever forges a source; RFC 5780's attributes go to those who
    ask for them.
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
    if change & stun.CHANGE_ADDRESS:
        return Reflection(stun.encode_unknown_attribute(request))
    changed = bool(change & stun.CHANGE_PORT)
    origin = other if changed else local
    return Reflection(stun.encode_response(request, source, origin=origin, other=other), changed)
