"""Where the members of a problem go: the cheapest ring, its head and division, or the next ring that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet
from kafila_planner.head import Placement, choose_head, rotations_from
from kafila_planner.order import (
    ALL_ORDERS_MEMBERS,
    EXACT_MEMBERS,
    cheapest_cycle,
    cycles_by_cost,
    nearby_cycles,
    smaller_direction,
)
from kafila_planner.problem import Problem, pose
from kafila_planner.reach import ReachTable


@dataclass(frozen=True)
class Placed:
    """A placement, whether its order is proven the best, and what the plan should say about it."""

    placement: Placement
    proven: bool
    notes: tuple[str, ...] = ()
    bound: float | None = None
    gap: float | None = None


def directions(problem: Problem, cycle: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Where blocks are alike one direction stands for both; else both must be tried."""
    if problem.chain.equal or len(cycle) <= 2:
        return [cycle]
    return [cycle, (cycle[0], *cycle[:0:-1])]


def place(problem: Problem, rule: DivisionRule) -> Placed | None:
    """The placement on the cheapest ring, else (unequal blocks) on the next cheapest that fits."""
    anchor, tier = problem.seating.anchor, problem.tier
    if problem.lacks_room:
        return None
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    notes = () if cycle.proven else ("more members than the exact search takes: the order is not proven",)
    if chosen := choose_head(problem.divider(rule), directions(problem, cycle.order), anchor, tier):
        return Placed(chosen, cycle.proven, notes)
    if problem.chain.equal or len(cycle.order) <= 3 or rule is not DivisionRule.PLANNER:
        return None
    return _place_elsewhere(problem, rule, cycle.order, notes)


def _place_elsewhere(
    problem: Problem, rule: DivisionRule, cheapest: tuple[int, ...], notes: tuple[str, ...]
) -> Placed | None:
    """The placement on the next cheapest ring that fits, where all can be listed; else on one nearby, else
    on any that fits.
    """
    anchor, divider, exists = problem.seating.anchor, problem.divider(rule), None
    fits = fitting_orders(problem) if problem.searches(rule) else None
    if fits and len(cheapest) <= EXACT_MEMBERS:
        exists = ReachTable(problem).fitting_order()
        if exists is None:
            return None
    every = len(cheapest) <= ALL_ORDERS_MEMBERS
    others = cycles_by_cost(problem.costs) if every else nearby_cycles(problem.costs, cheapest)
    last = [] if exists is None else [smaller_direction(exists)]
    which = "the next cheapest that does" if every else "one that does, not proven the cheapest that does"
    for other in chain(others, last):
        both = directions(problem, other)
        if fits and not any(fits(order) for way in both for order in rotations_from(way, anchor)):
            continue
        if chosen := choose_head(divider, both, anchor, problem.tier):
            return Placed(chosen, every, (*notes, f"the cheapest ring does not fit: this is {which}"))
    return None


def proves_refusal(problem: Problem, rule: DivisionRule) -> bool:
    """Whether `place` finding nothing means that there is nothing to find, whatever the order."""
    size = len(problem.seats)
    if problem.lacks_room or problem.chain.equal or size <= 3:
        return True
    return size <= (EXACT_MEMBERS if problem.searches(rule) else ALL_ORDERS_MEMBERS)


def fitting_orders(problem: Problem) -> Callable[[Sequence[int]], bool]:
    """A test of whether some division over an order fits its rooms: sets of reachable block borders, as
    bits of an integer. Steps are remembered, since orders share their beginnings.
    """
    blocks, nearest = problem.chain.blocks, problem.chain.nearest()
    windows: dict[tuple[int, bool], list[int]] = {}
    steps: dict[tuple[int, bool, int], int] = {}

    def window(seat: int, is_head: bool) -> list[int]:
        """For each start, the ends that are legal and fit: a set as bits."""
        if (seat, is_head) not in windows:
            furthest = problem.chain.furthest(problem.seats[seat].room_bytes, is_head)
            ends = zip(nearest, furthest, strict=True)
            windows[seat, is_head] = [
                *((1 << far + 1) - (1 << near) if far >= near else 0 for near, far in ends),
                0,  # from the very end there is nothing to hold
            ]
        return windows[seat, is_head]

    def step(seat: int, is_head: bool, reached: int) -> int:
        key = (seat, is_head, reached)
        if key not in steps:
            ends, left, ends_from = 0, reached, window(seat, is_head)
            while left:
                start = left.bit_length() - 1
                ends |= ends_from[start]
                left ^= 1 << start
            steps[key] = ends
        return steps[key]

    def fits(order: Sequence[int]) -> bool:
        reached = 1
        for place, seat in enumerate(order):
            reached = step(seat, place == 0, reached)
            if not reached:
                return False
        return bool(reached >> blocks & 1)

    return fits


def fits(fleet: Fleet, rule: DivisionRule) -> bool:
    """Whether a plan exists, quickly enough to bisect with: of a fixed share, or where blocks are unequal and
    members more than EXACT_MEMBERS, a plan on the cheapest ring.
    """
    problem = pose(fleet)
    if problem.lacks_room:
        return False
    if problem.searches(rule) and problem.chain.equal:
        return _equal_blocks_fit(problem)
    anchor = problem.seating.anchor
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    ways = directions(problem, cycle.order)
    if not problem.searches(rule):
        return choose_head(problem.divider(rule), ways, anchor, problem.tier) is not None
    test = fitting_orders(problem)
    if any(test(order) for way in ways for order in rotations_from(way, anchor)):
        return True
    return 3 < len(problem.seats) <= EXACT_MEMBERS and ReachTable(problem).fitting_order() is not None


def _equal_blocks_fit(problem: Problem) -> bool:
    """Whether some head leaves everyone a block and all together room for all: no order matters."""
    block, head_bytes = problem.chain.held_bytes[0], problem.chain.head_held_bytes
    limits = [min(seat.room_bytes // block, problem.chain.blocks) for seat in problem.seats]
    head_limits = [(seat.room_bytes - head_bytes) // block for seat in problem.seats]
    total, members = sum(limits), range(len(problem.seats))
    return any(
        head_limits[head] >= 1
        and all(limits[other] >= 1 for other in members if other != head)
        and total - limits[head] + head_limits[head] >= problem.chain.blocks
        for head in members
    )
