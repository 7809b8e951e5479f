"""Who gets a seat, and whom a division would exhaust: decided before ordering and after dividing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafila_planner.cost import tier_of
from kafila_planner.edge_cost import by_rtt_and_name
from kafila_planner.facts import Fleet, MemberFacts
from kafila_planner.memory import Chain
from kafila_planner.ring import Tier, Unseated


@dataclass(frozen=True)
class Seating:
    """Seated members in canonical order, the tier their measurements allow, and who has no seat."""

    members: tuple[MemberFacts, ...]
    tier: Tier
    unseated: tuple[Unseated, ...]
    anchor: int


_SLOWNESS: dict[Tier, tuple[str, Callable[[MemberFacts], float]]] = {
    Tier.COST_MODEL: ("memory bandwidth", lambda member: member.bandwidth_bytes_per_s or 0.0),
    Tier.THROUGHPUT: ("arithmetic throughput", lambda member: member.flops_per_s or 0.0),
    Tier.WORKING_SET: ("room", lambda member: member.room_bytes),
}


def seat_members(fleet: Fleet, chain: Chain) -> Seating:
    """No seat, but never for the anchor: first who has no room for the smallest block with its KV cache,
    then, while members outnumber blocks, the slowest as far as the tier can tell.
    """
    smallest = min(chain.held_bytes)
    seated, unseated = [], []
    for member in by_rtt_and_name(fleet.members):
        if member.name == fleet.anchor or member.room_bytes >= smallest:
            seated.append(member)
        elif member.memory_bytes is None:
            unseated.append(Unseated(member.name, "its room is unknown"))
        else:
            reason = f"its room ({member.room_bytes} bytes) holds no block ({smallest} bytes with KV cache)"
            unseated.append(Unseated(member.name, reason))
    while len(seated) > chain.seats:
        measure, speed = _SLOWNESS[tier_of(seated)]
        others = [member for member in seated if member.name != fleet.anchor]
        slowest = min(others, key=lambda m: (speed(m), -(m.overhead_s or 0), m.room_bytes, m.name))
        seated.remove(slowest)
        unseated.append(
            Unseated(slowest.name, f"{chain.seats} stages at most, and it has the least {measure}")
        )
    anchor = next(index for index, member in enumerate(seated) if member.name == fleet.anchor)
    return Seating(tuple(seated), tier_of(seated), tuple(unseated), anchor)
