"""What could be otherwise: the session without a member, with another anchor, order or objective.

Each piece of advice is a plan of a changed fleet, so it is as exact as the plan it is about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet
from kafila_planner.head import choose_head
from kafila_planner.joint import EqualSearch
from kafila_planner.joint_plan import why_not
from kafila_planner.objective import Objective
from kafila_planner.order import ALL_ORDERS_MEMBERS, EXACT_MEMBERS, nearby_cycles
from kafila_planner.placement import directions
from kafila_planner.planner import plan_ring
from kafila_planner.problem import pose
from kafila_planner.ring import Refusal, RingPlan


@dataclass(frozen=True)
class Without:
    """The session without one member; None where it would not fit, or nothing was priced."""

    member: str
    fits: bool
    tokens_per_s_one_user: float | None = None
    tokens_per_s_all_users: float | None = None


@dataclass(frozen=True)
class Outlook:
    """What a plan under one objective comes to."""

    objective: str
    ring: tuple[str, ...]
    bottleneck_s: float
    circuit_s: float
    tokens_per_s_one_user: float | None
    tokens_per_s_all_users: float | None


@dataclass(frozen=True)
class Gain:
    """A change that would shorten the slowest stage: by this share of it (0.03 is three per cent)."""

    change: str
    share: float


def without_each(fleet: Fleet, plan: RingPlan) -> list[Without]:
    """For each seated member, in ring order, the session without it; its neighbour opens it for the anchor."""
    return [] if len(plan.ring) == 1 else [_without(fleet, plan, name) for name in plan.ring]


def _without(fleet: Fleet, plan: RingPlan, name: str) -> Without:
    after = plan.ring[(plan.ring.index(name) + 1) % len(plan.ring)]
    smaller = replace(
        fleet,
        members=tuple(member for member in fleet.members if member.name != name),
        anchor=after if name == fleet.anchor else fleet.anchor,
    )
    other = plan_ring(smaller, division=plan.division, objective=plan.objective)
    if isinstance(other, Refusal):
        return Without(name, fits=False)
    predicted = other.predicted
    return Without(name, True, predicted.tokens_per_s_one_user, predicted.tokens_per_s_all_users)


def outlooks(fleet: Fleet, plan: RingPlan) -> list[Outlook]:
    """The paper's rule and the quickest circuit side by side, whichever was asked for; none where a
    joint plan cannot be made.
    """
    problem = pose(fleet)
    if why_not(problem, DivisionRule(plan.division)) or len(problem.seats) > EXACT_MEMBERS:
        return []
    found = []
    for objective in ("throughput", "latency"):
        other = plan if plan.objective == objective else plan_ring(fleet, objective=objective)
        if isinstance(other, RingPlan) and other.bottleneck_s is not None and other.circuit_s is not None:
            rates = (other.predicted.tokens_per_s_one_user, other.predicted.tokens_per_s_all_users)
            found.append(Outlook(objective, other.ring, other.bottleneck_s, other.circuit_s, *rates))
    return found


def front(fleet: Fleet) -> list[tuple[float, float]]:
    """The Pareto front of (circuit_s, bottleneck_s) over all teams, orders, heads and divisions, by rising
    circuit; empty where it cannot be had exactly (unequal blocks, seconds unknown, too many members).
    """
    problem = pose(fleet)
    if (
        why_not(problem, DivisionRule.PLANNER)
        or len(problem.seats) > EXACT_MEMBERS
        or not problem.chain.equal
    ):
        return []
    points = EqualSearch(problem, Objective(0.0)).front()
    return [(point.value, point.placement.division.bottleneck_s) for point in points]


def gains(fleet: Fleet, plan: RingPlan) -> list[Gain]:
    """Other anchors and (unequal blocks) neighbouring orders with a shorter slowest stage, best first."""
    if plan.bottleneck_s is None or not weighs_changes(plan):
        return []
    found = [*_other_anchors(fleet, plan, plan.bottleneck_s), *_other_orders(fleet, plan, plan.bottleneck_s)]
    return sorted((gain for gain in found if gain.share > 0), key=lambda gain: -gain.share)


def weighs_changes(plan: RingPlan) -> bool:
    """Whether other anchors and orders are looked into: for the paper's rule with its own cost model."""
    by_the_rule = plan.objective == "throughput" and plan.division == DivisionRule.PLANNER
    return by_the_rule and plan.bottleneck_s is not None


def _other_anchors(fleet: Fleet, plan: RingPlan, bottleneck_s: float) -> list[Gain]:
    found = []
    for name in plan.ring:
        if name != fleet.anchor:
            other = plan_ring(replace(fleet, anchor=name))
            if isinstance(other, RingPlan) and other.bottleneck_s is not None:
                found.append(Gain(f"{name} as anchor", 1 - other.bottleneck_s / bottleneck_s))
    return found


def _other_orders(fleet: Fleet, plan: RingPlan, bottleneck_s: float) -> list[Gain]:
    problem = pose(fleet)
    if problem.chain.equal or not 3 < len(problem.seats) <= ALL_ORDERS_MEMBERS:
        return []
    index = {seat.name: number for number, seat in enumerate(problem.seats)}
    divider, found = problem.divider(DivisionRule.PLANNER), []
    for cycle in nearby_cycles(problem.costs, [index[name] for name in plan.ring]):
        chosen = choose_head(divider, directions(problem, cycle), problem.seating.anchor, problem.tier)
        if chosen:
            names = " - ".join(problem.seats[seat].name for seat in chosen.order)
            found.append(Gain(f"the order {names}", 1 - chosen.division.bottleneck_s / bottleneck_s))
    return sorted(found, key=lambda gain: -gain.share)[:1]
