"""A planning problem: a fleet with its seats taken, its blocks weighed, its members and edges priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kafila_planner.admission import Seating, seat_members
from kafila_planner.cost import Seat, seats_of
from kafila_planner.division import (
    Divider,
    DivisionRule,
    EqualDivider,
    ProportionalDivider,
    UnequalDivider,
    UniformDivider,
)
from kafila_planner.edge_cost import Costs, edge_costs
from kafila_planner.facts import Fleet
from kafila_planner.memory import Chain, chain_of
from kafila_planner.ring import Tier


@dataclass(frozen=True)
class Problem:
    """Members, seats and edge matrices share one index: the canonical order of `seating.members`."""

    fleet: Fleet
    chain: Chain
    seating: Seating
    seats: tuple[Seat, ...]

    @cached_property
    def costs(self) -> Costs:
        """The price of every possible edge."""
        return edge_costs(self.seating.members)

    @property
    def tier(self) -> Tier:
        """What the measurements allow."""
        return self.seating.tier

    @property
    def lacks_room(self) -> bool:
        """All rooms together hold less than the model: no order or division can change that."""
        needs = self.chain.needs_bytes(0, self.chain.blocks, True)
        return needs > sum(seat.room_bytes for seat in self.seats)

    def divider(self, rule: DivisionRule, seats: Sequence[Seat] | None = None) -> Divider:
        """The rule's divider over these seats (the problem's own, unless others are given)."""
        chosen = self.seats if seats is None else seats
        rooms = [seat.room_bytes for seat in self.seats]
        if rule is DivisionRule.UNIFORM:
            return UniformDivider(self.chain, chosen)
        if rule is DivisionRule.MEMORY:
            return ProportionalDivider(self.chain, chosen, rooms, less_head=False)
        if self.tier is Tier.WORKING_SET:
            return ProportionalDivider(self.chain, chosen, rooms, less_head=True)
        return EqualDivider(self.chain, chosen) if self.chain.equal else UnequalDivider(self.chain, chosen)

    def searches(self, rule: DivisionRule) -> bool:
        """The division is searched for, rather than a fixed share that fits or does not."""
        return rule is DivisionRule.PLANNER and self.tier is not Tier.WORKING_SET


def pose(fleet: Fleet) -> Problem:
    """The planning problem of a fleet."""
    chain = chain_of(fleet)
    seating = seat_members(fleet, chain)
    return Problem(fleet, chain, seating, seats_of(seating.members, seating.tier, chain))
