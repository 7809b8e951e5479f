"""Which member is the head: one division per rotation of the ring (paper, section V-C).

A rotation leaves every edge where it was, so the order and the head are separate questions. Small
differences are noise: the anchor stays head unless another is better by more than MARGIN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafila_planner.division import Divider, Division
from kafila_planner.ring import Tier

MARGIN = 0.05
"""The paper's mu: chosen against the noise of measured overheads, not for any gain."""


@dataclass(frozen=True)
class Placement:
    """A directed order from the head, and its division."""

    order: tuple[int, ...]
    division: Division

    @property
    def head(self) -> int:
        """Seat index of the head."""
        return self.order[0]


def rotations_from(cycle: Sequence[int], first: int) -> list[tuple[int, ...]]:
    """All rotations of the cycle, beginning with the one that starts at `first`."""
    place = cycle.index(first)
    turns = [(place + turn) % len(cycle) for turn in range(len(cycle))]
    return [(*cycle[turn:], *cycle[:turn]) for turn in turns]


def best_per_head(divider: Divider, cycles: Sequence[Sequence[int]], anchor: int) -> dict[int, Placement]:
    """For every head that fits, its best placement by (bottleneck, sum) over the directions given.

    Heads come in ring order from the anchor.
    """
    best: dict[int, Placement] = {}
    for cycle in cycles:
        for order in rotations_from(cycle, anchor):
            division = divider.divide(order)
            if division is None:
                continue
            placement = Placement(order, division)
            if order[0] not in best or _merit(placement) < _merit(best[order[0]]):
                best[order[0]] = placement
    return best


def choose_head(
    divider: Divider, cycles: Sequence[Sequence[int]], anchor: int, tier: Tier
) -> Placement | None:
    """The placement to serve with; None if none fits.

    Below the cost model nothing prices the head, so it stays with the anchor, else with the first after
    it that fits.
    """
    heads = best_per_head(divider, cycles, anchor)
    if not heads:
        return None
    if tier is not Tier.COST_MODEL:
        ring = rotations_from(cycles[0], anchor)[0]
        return next(heads[head] for head in ring if head in heads)
    best = min(heads.values(), key=_merit)
    if anchor in heads and not improves(best.division.bottleneck_s, heads[anchor].division.bottleneck_s):
        return heads[anchor]
    return best


def improves(value: float, anchors_value: float) -> bool:
    """Better than the anchor's by more than the margin."""
    return value < anchors_value * (1 - MARGIN)


def _merit(placement: Placement) -> tuple[float, float]:
    return placement.division.bottleneck_s, placement.division.sum_s
