"""The planner: facts in, a ring plan or a refusal out.

Seats, then the order, then the head with its division: three decisions, each exact, from one cost model.
"""

from __future__ import annotations

from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet
from kafila_planner.head import Placement
from kafila_planner.objective import parse_objective
from kafila_planner.placement import Placed, place
from kafila_planner.predict import predict_session
from kafila_planner.problem import Problem, pose
from kafila_planner.refusal import refuse
from kafila_planner.ring import Edge, Path, Refusal, RingPlan, Stage, Tier, Unseated


def plan_ring(
    fleet: Fleet, *, division: str = "planner", objective: str = "throughput"
) -> RingPlan | Refusal:
    """The plan of a session: who sits where, who is head, which blocks each holds, and what to expect.

    `division`: planner, uniform or memory. `objective`: throughput (the paper's rule), latency or mixed:L.
    ValueError for other words.
    """
    rule, goal = DivisionRule(division), parse_objective(objective)
    problem = pose(fleet)
    if goal.weight is None:
        placed = place(problem, rule)
        return refuse(problem, rule) if placed is None else ring_plan(problem, placed, division, objective)
    from kafila_planner.joint_plan import place_jointly, why_not  # a start that needs none is quicker

    if reason := why_not(problem, rule):
        return Refusal(reason, unseated=problem.seating.unseated)
    found = place_jointly(problem, goal)
    return refuse(problem, rule) if found is None else ring_plan(*found, division, objective)


def ring_plan(problem: Problem, placed: Placed, division: str, objective: str) -> RingPlan:
    """The plan that a placement amounts to, with its prices and predictions."""
    placement, costs = placed.placement, problem.costs
    priced = problem.tier is Tier.COST_MODEL
    stages, edges = stages_of(problem, placement), edges_of(problem, placement)
    cost, separation = costs.of_ring(placement.order)
    timed = costs.timed or not edges
    sum_s = placement.division.sum_s if priced else None
    rtts_s = [edge.cost_s or 0.0 for edge in edges] if timed else None
    return RingPlan(
        tier=problem.tier,
        objective=objective,
        division=division,
        proven=placed.proven,
        bottleneck_s=placement.division.bottleneck_s if priced else None,
        sum_s=sum_s,
        circuit_s=sum_s + cost / 2e9 if sum_s is not None and timed else None,
        stages=stages,
        edges=edges,
        ring_cost_s=cost / 1e9 if timed else None,
        ring_separation_s=separation / 1e9 if timed else None,
        relayed_edges=sum(edge.path is Path.RELAYED for edge in edges),
        predicted=predict_session(problem.fleet, problem.tier, stages, rtts_s),
        unseated=(*problem.seating.unseated, *left_out(problem, placement)),
        bound=placed.bound,
        gap=placed.gap,
        notes=placed.notes,
    )


def left_out(problem: Problem, placement: Placement) -> tuple[Unseated, ...]:
    """Members that could sit, but without whom the joint objective is better."""
    return tuple(
        Unseated(seat.name, "the objective is better without it")
        for index, seat in enumerate(problem.seats)
        if index not in placement.order
    )


def stages_of(problem: Problem, placement: Placement) -> tuple[Stage, ...]:
    """The placement's stages from the head, each with its price (tier `cost-model`) and its memory."""
    priced = problem.tier is Tier.COST_MODEL
    rows = zip(placement.order, placement.division.ranges, placement.division.costs_s, strict=True)
    return tuple(
        Stage(
            member=problem.seats[seat].name,
            start=start,
            end=end,
            predicted_s=cost if priced else None,
            needs_bytes=problem.chain.needs_bytes(start, end, position == 0),
            room_bytes=problem.seats[seat].room_bytes,
        )
        for position, (seat, (start, end), cost) in enumerate(rows)
    )


def edges_of(problem: Problem, placement: Placement) -> tuple[Edge, ...]:
    """The ring's edges from the head; none for a single member, two for two."""
    order, costs = placement.order, problem.costs
    if len(order) == 1:
        return ()
    return tuple(
        Edge(
            source=problem.seats[a].name,
            target=problem.seats[b].name,
            path=costs.paths[a][b],
            cost_s=costs.cost[a][b] / 1e9 if costs.timed else None,
        )
        for a, b in zip(order, [*order[1:], order[0]], strict=True)
    )
