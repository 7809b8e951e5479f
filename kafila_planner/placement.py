"""Where the members of a problem go: the cheapest ring, its head and division, or the next ring that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet
from kafila_planner.head import Placement, choose_head, rotations_from
from kafila_planner.order import ALL_ORDERS_MEMBERS, cheapest_cycle, cycles_by_cost, nearby_cycles
from kafila_planner.problem import Problem, pose


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
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    divider = problem.divider(rule)
    notes = () if cycle.proven else ("more members than the exact search takes: the order is not proven",)
    if chosen := choose_head(divider, directions(problem, cycle.order), anchor, tier):
        return Placed(chosen, cycle.proven, notes)
    if problem.chain.equal or len(cycle.order) <= 3 or rule is not DivisionRule.PLANNER:
        return None
    every = len(cycle.order) <= ALL_ORDERS_MEMBERS
    others = cycles_by_cost(problem.costs) if every else nearby_cycles(problem.costs, cycle.order)
    fits = fitting_orders(problem) if problem.searches(rule) else None
    for other in others:
        both = directions(problem, other)
        if fits and not any(fits(order) for way in both for order in rotations_from(way, anchor)):
            continue
        if chosen := choose_head(divider, both, anchor, tier):
            return Placed(
                chosen, every, (*notes, "the cheapest ring does not fit: this is the next cheapest that does")
            )
    return None


def fitting_orders(problem: Problem) -> Callable[[Sequence[int]], bool]:
    """A test of whether some division over an order fits its rooms: sets of reachable block borders, as
    bits of an integer. Steps are remembered, since orders share their beginnings.
    """
    chain, nearest = problem.chain, problem.chain.nearest()
    windows: dict[tuple[int, bool], list[int]] = {}
    steps: dict[tuple[int, bool, int], int] = {}

    def window(seat: int, is_head: bool) -> list[int]:
        """For each start, the ends that are legal and fit: a set as bits."""
        if (seat, is_head) not in windows:
            furthest = chain.furthest(problem.seats[seat].room_bytes, is_head)
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
        return bool(reached >> chain.blocks & 1)

    return fits


def fits(fleet: Fleet, rule: DivisionRule) -> bool:
    """Whether a plan exists (on the cheapest ring, where blocks are unequal): quick enough to bisect with."""
    problem = pose(fleet)
    anchor = problem.seating.anchor
    members = range(len(problem.seats))
    if problem.searches(rule) and problem.chain.equal:
        limits = [
            min(seat.room_bytes // problem.chain.held_bytes[0], problem.chain.blocks)
            for seat in problem.seats
        ]
        head_limits = [
            (seat.room_bytes - problem.chain.head_held_bytes) // problem.chain.held_bytes[0]
            for seat in problem.seats
        ]
        total = sum(limits)
        return any(
            head_limits[head] >= 1
            and all(limits[other] >= 1 for other in members if other != head)
            and total - limits[head] + head_limits[head] >= problem.chain.blocks
            for head in members
        )
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    ways = directions(problem, cycle.order)
    if problem.searches(rule):
        test = fitting_orders(problem)
        return any(test(order) for way in ways for order in rotations_from(way, anchor))
    return choose_head(problem.divider(rule), ways, anchor, problem.tier) is not None
