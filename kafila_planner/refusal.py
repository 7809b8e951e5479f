"""Why a session cannot be: every undersized member, what it needs and has, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kafila_planner.division import DivisionRule, undersized_places
from kafila_planner.head import Placement, best_per_head
from kafila_planner.order import EXACT_MEMBERS, cheapest_cycle
from kafila_planner.placement import directions, fits, proves_refusal
from kafila_planner.problem import Problem
from kafila_planner.reach import ReachTable
from kafila_planner.remedy import least_room, remedies
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
    found = remedies(problem.fleet, lambda fleet: fits(fleet, rule), _least_rooms(problem, rule))
    return Refusal(_reason(problem, rule, undersized), undersized, found, problem.seating.unseated)


def _reason(problem: Problem, rule: DivisionRule, undersized: Sequence[Undersized]) -> str:
    """What does not fit, and whether that is certain for every order of the ring."""
    model, fleet, members = problem.fleet.model.name, problem.fleet, len(problem.seats)
    session = f"at context {fleet.context_tokens} x concurrency {fleet.concurrency}"
    shown = ", ".join(f"{one.member} (needs {one.needs_bytes}, has {one.room_bytes})" for one in undersized)
    if problem.searches(rule) and proves_refusal(problem, rule):
        what = f"no division of {model} fits the members' room {session}"
    elif problem.searches(rule):
        what = (
            f"no division of {model} that fits the members' room {session} was found; of the orders of "
            f"{members} members only the cheapest and those near it were tried, so there may be one"
        )
    else:
        share = (
            f"the {rule} division" if rule is not DivisionRule.PLANNER else "a division in proportion to room"
        )
        what = f"{share} of {model} does not fit the members' room {session}"
    return f"{what}; undersized, in bytes: {shown}"


def _least_rooms(problem: Problem, rule: DivisionRule) -> dict[str, int | None]:
    """For each member, the least room that would do alone: in any order, as far as orders can be judged."""
    names = [seat.name for seat in problem.seats]
    if not problem.searches(rule) or problem.chain.equal:
        return {name: least_room(problem.fleet, name, lambda fleet: fits(fleet, rule)) for name in names}
    if len(names) > EXACT_MEMBERS:
        return {}
    return dict(zip(names, ReachTable(problem).least_rooms(), strict=True))


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
