"""What needs no session: the planner asked again about the facts that the sessions reported."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kafila_planner.advice import Without, without_each
from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet, parse_fleet
from kafila_planner.head import best_per_head
from kafila_planner.order import cheapest_cycle
from kafila_planner.placement import directions
from kafila_planner.planner import plan_ring
from kafila_planner.problem import pose
from kafila_planner.ring import Refusal, RingPlan, plan_from_json
from tests.planner.brute_force import World

_MOST_USERS = 1024


def orders_not_optimal(records: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """Of how many sessions' rings the cost was held against every cycle's, and how many cost more than the cheapest."""
    checked = dearer = 0
    for record in records:
        if record["formed"]:
            world = World(record["facts"])
            costs = [world.ring_cost(cycle)[0] for cycle in world.cycles(world.seated)]
            checked += 1
            dearer += world.ring_cost(tuple(record["plan"]["ring"]))[0] > min(costs)
    return checked, dearer


def users_admitted(facts: dict[str, Any], division: str) -> int:
    """The greatest concurrency at which a division fits."""
    fleet = parse_fleet(facts)
    users = range(1, _MOST_USERS)
    return bisect_left(users, True, key=lambda n: _refused(replace(fleet, concurrency=n), division))


def _refused(fleet: Fleet, division: str) -> bool:
    return isinstance(plan_ring(fleet, division=division), Refusal)


def head_pinned_fits(facts: dict[str, Any]) -> bool:
    """Whether the session could be held with its head where it was opened."""
    problem = pose(parse_fleet(facts))
    anchor = problem.seating.anchor
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    divider = problem.divider(DivisionRule.PLANNER)
    return anchor in best_per_head(divider, directions(problem, cycle.order), anchor)


def advice_of(record: dict[str, Any], expected_tokens: int) -> list[Without]:
    """What the plan says of the session without each member, for sequences as long as the laboratory's."""
    fleet = parse_fleet(record["facts"])
    fleet = replace(fleet, model=replace(fleet.model, expected_tokens=expected_tokens))
    plan = plan_from_json(record["plan"])
    assert isinstance(plan, RingPlan)
    return without_each(fleet, plan)
