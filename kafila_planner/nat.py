"""Which path to expect between two members, from what each measured alone (RFC 4787, RFC 5780).

A punch works when one side's packet to the other's advertised address gets in; the answer, sent to the
source that was seen, returns through the session that packet opened. No packets here: O(m^2) arithmetic.
"""

from __future__ import annotations

from kafila_planner.facts import Behaviour, MemberFacts
from kafila_planner.ring import Path


def maps_alike(member: MemberFacts) -> bool:
    """Its mapping is endpoint-independent: the address it advertises is the one every peer sees."""
    return member.mapping is Behaviour.ENDPOINT_INDEPENDENT


def is_open(member: MemberFacts) -> bool:
    """A packet from any member gets in to the address it advertises, if it has sent one there before.

    Filtering endpoint-independent; or by address only, with a mapping that stays the same.
    """
    if member.filtering is Behaviour.ENDPOINT_INDEPENDENT:
        return True
    return maps_alike(member) and member.filtering is Behaviour.ADDRESS_DEPENDENT


def judge_path(a: MemberFacts, b: MemberFacts) -> tuple[Path, str]:
    """The path to expect, symmetric in its arguments, and why. Unknown behaviours count as the strictest.

    One site: direct. Both with IPv6: direct, since firewalls can be punched and nothing else is in the way. One
    outermost NAT but two sites: only if that NAT hairpins. Without UDP, against a member's own wish, or with no
    version of IP in common: relayed.
    """
    for member in (a, b):
        if not member.udp:
            return Path.RELAYED, f"{member.name} has no UDP"
        if member.relay_only:
            return Path.RELAYED, f"{member.name} is told to use the relay only"
    if a.site is not None and a.site == b.site:
        return Path.DIRECT, "they share a site"
    if a.ipv6 and b.ipv6:
        return Path.DIRECT, "both have IPv6"
    if not (a.ipv4 and b.ipv4):
        return Path.RELAYED, "they have no version of IP in common"
    if a.nat is not None and a.nat == b.nat:
        for member in (a, b):
            if member.hairpin_open:
                return Path.DIRECT, f"{member.name} lets in what their NAT sends back inside"
        if not (a.hairpin and b.hairpin):
            return Path.RELAYED, "they are behind one NAT that is not known to hairpin"
    for member in (a, b):
        if is_open(member):
            return Path.DIRECT, f"{member.name} lets the other's packets in"
    if maps_alike(a) and maps_alike(b):
        return Path.DIRECT, "both map every destination to one address, so they can punch"
    return Path.RELAYED, _why_no_punch(a, b)


def _why_no_punch(a: MemberFacts, b: MemberFacts) -> str:
    """Neither is open, and not both map alike."""
    shifting = [member for member in (a, b) if not maps_alike(member)]
    names = " and ".join(m.name if m.mapping else f"{m.name} (unmeasured)" for m in shifting)
    if len(shifting) == 2:
        return f"{names} show each peer another address, so neither can aim at the other"
    other = a if shifting[0] is b else b
    closed = other.name if other.filtering else f"{other.name} (unmeasured)"
    return f"{names} shows each peer another address, and {closed} lets in only addresses and ports it has sent to"


def expected_path(a: MemberFacts, b: MemberFacts) -> Path:
    """DIRECT or RELAYED, symmetric in its arguments."""
    return judge_path(a, b)[0]


_MAPS = {
    Behaviour.ENDPOINT_INDEPENDENT: "shows every destination the same address",
    Behaviour.ADDRESS_DEPENDENT: "shows each host another address",
    Behaviour.ADDRESS_AND_PORT_DEPENDENT: "shows each host and port another address",
    None: "was not told apart (mapping unknown)",
}
_LETS_IN = {
    Behaviour.ENDPOINT_INDEPENDENT: "lets anyone in at it",
    Behaviour.ADDRESS_DEPENDENT: "lets in hosts that were spoken to",
    Behaviour.ADDRESS_AND_PORT_DEPENDENT: "lets in only the host and port that were spoken to",
    None: "was not seen letting strangers in (filtering unknown)",
}


def describe_nat(member: MemberFacts) -> str:
    """What stands in front of a member, as a sentence without its name."""
    if not member.udp:
        return "No UDP passes."
    more = " Over IPv6 it is seen at its own address." if member.ipv6 else ""
    if member.relay_only:
        more += " It is told to use the relay only."
    if not member.ipv4:
        return f"Reached over IPv6 alone.{more}"
    what = "The NAT" if member.nat is not None else "No NAT: the network"
    return f"{what} {_MAPS[member.mapping]} and {_LETS_IN[member.filtering]}.{more}"


def advise_path(a: MemberFacts, b: MemberFacts) -> str | None:
    """What would make a path direct that is expected to be relayed; None if it is expected to be direct."""
    if expected_path(a, b) is Path.DIRECT:
        return None
    for member in (a, b):
        if not member.udp:
            return f"let UDP through on {member.name}'s network"
        if member.relay_only:
            return f"start {member.name}'s agent without --relay-only"
    if not (a.ipv4 and b.ipv4):
        lacking = a if not a.ipv6 else b
        return f"get IPv6 for {lacking.name}"
    if a.nat is not None and a.nat == b.nat:
        return "put both on one LAN, or get IPv6 for both"
    strict = [member.name for member in (a, b) if not maps_alike(member)]
    routers = " or ".join(dict.fromkeys((*strict, a.name, b.name)))
    return f"turn on UPnP on the router of {routers}, or get IPv6 for both"
