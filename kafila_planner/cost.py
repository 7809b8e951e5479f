"""What a member's stage costs (paper, equation 2, with a fixed cost per block), and who can be priced.

    c_i = o_i + n_i * d_i + (bytes read of its blocks + [i is head] * head bytes read) / b_i

At batch size one a stage reads every weight once per token, so memory bandwidth sets the pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafila_planner.facts import MemberFacts
from kafila_planner.memory import Chain
from kafila_planner.ring import Tier


@dataclass(frozen=True)
class Price:
    """A member's cost as an affine function of what it holds. In tier `throughput` the unit is no second."""

    overhead_s: float
    block_overhead_s: float
    bytes_per_s: float
    head_read_bytes: float

    def stage_s(self, blocks: int, read_bytes: float, is_head: bool) -> float:
        """Cost per token of a stage with so many blocks, reading so many bytes of them."""
        head = self.head_read_bytes if is_head else 0
        return self.overhead_s + blocks * self.block_overhead_s + (read_bytes + head) / self.bytes_per_s

    def block_s(self, read_bytes: float) -> float:
        """What one more block of that size adds."""
        return self.block_overhead_s + read_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Seat:
    """A seated member as the division sees it."""

    name: str
    room_bytes: int
    price: Price


def tier_of(members: Sequence[MemberFacts]) -> Tier:
    """The best tier that these members' measurements allow."""
    if all(m.bandwidth_bytes_per_s is not None and m.overhead_s is not None for m in members):
        return Tier.COST_MODEL
    if all(m.flops_per_s is not None for m in members):
        return Tier.THROUGHPUT
    return Tier.WORKING_SET


def price_of(member: MemberFacts, tier: Tier, chain: Chain) -> Price:
    """The member's price in that tier; with nothing measured, the same price for everyone."""
    if tier is Tier.COST_MODEL:
        assert member.overhead_s is not None
        assert member.bandwidth_bytes_per_s is not None
        return Price(
            member.overhead_s, member.block_overhead_s, member.bandwidth_bytes_per_s, chain.head_read_bytes
        )
    if tier is Tier.THROUGHPUT:
        assert member.flops_per_s is not None
        # Arithmetic throughput does not price the head's extra read: no head term.
        return Price(0.0, 0.0, member.flops_per_s, 0)
    return Price(0.0, 0.0, 1.0, 0)


def seats_of(members: Sequence[MemberFacts], tier: Tier, chain: Chain) -> tuple[Seat, ...]:
    """The members in the same order, priced."""
    return tuple(Seat(m.name, m.room_bytes, price_of(m, tier, chain)) for m in members)
