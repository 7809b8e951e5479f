"""Why a session cannot be: every undersized member, what it needs and has, and what would help."""

from __future__ import annotations

from dataclasses import replace

from kafila_planner.division import DivisionRule, undersized_places
from kafila_planner.head import Placement, best_per_head
from kafila_planner.order import cheapest_cycle
from kafila_planner.placement import directions, fits
from kafila_planner.problem import Problem
from kafila_planner.remedy import remedies
from kafila_planner.ring import Refusal, Undersized


def refuse(problem: Problem, rule: DivisionRule) -> Refusal:
    """The refusal of a problem that no placement fits."""
    placement = _placement_ignoring_room(problem, rule)
    if placement is None:
        return Refusal(
            f"{problem.fleet.model.name} is a hybrid: every stage needs a full-attention block, and no "
            f"such division over {len(problem.seats)} members was found",
            unseated=problem.seating.unseated,
        )
    undersized = _undersized(problem, placement)
    names = [one.member for one in undersized]
    found = remedies(problem.fleet, [seat.name for seat in problem.seats], lambda fleet: fits(fleet, rule))
    shown = ", ".join(f"{one.member} (needs {one.needs_bytes}, has {one.room_bytes})" for one in undersized)
    reason = (
        f"no division of {problem.fleet.model.name} fits the members' room at context "
        f"{problem.fleet.context_tokens} x concurrency {problem.fleet.concurrency}; "
        f"undersized, in bytes: {shown}"
        if problem.searches(rule)
        else f"this division exceeds the room of {', '.join(names)}; in bytes: {shown}"
    )
    return Refusal(reason, undersized, found, problem.seating.unseated)


def _placement_ignoring_room(problem: Problem, rule: DivisionRule) -> Placement | None:
    """The placement there would be if every member had room for everything, the anchor as head."""
    everything = problem.chain.needs_bytes(0, problem.chain.blocks, True)
    roomy = [replace(seat, room_bytes=everything) for seat in problem.seats]
    anchor = problem.seating.anchor
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    heads = best_per_head(problem.divider(rule, roomy), directions(problem, cycle.order), anchor)
    return heads.get(anchor)


def _undersized(problem: Problem, placement: Placement) -> tuple[Undersized, ...]:
    ranges = placement.division.ranges
    places = undersized_places(problem.chain, problem.seats, placement.order, placement.division)
    return tuple(
        Undersized(
            problem.seats[placement.order[place]].name,
            problem.chain.needs_bytes(*ranges[place], place == 0),
            problem.seats[placement.order[place]].room_bytes,
        )
        for place in places
    )
