"""The placement under a joint objective: searched per head, the anchor kept unless clearly beaten."""

from __future__ import annotations

from dataclasses import replace

from kafila_planner.admission import Seating
from kafila_planner.division import DivisionRule
from kafila_planner.head import improves
from kafila_planner.joint import EqualSearch, Found
from kafila_planner.joint_unequal import UnequalSearch
from kafila_planner.objective import Objective
from kafila_planner.order import EXACT_MEMBERS
from kafila_planner.placement import Placed, place
from kafila_planner.problem import Problem
from kafila_planner.ring import Tier, Unseated

_ALMOST_ONE = 1 - 1e-12
"""Weight 1 would leave the circuit to chance; this leaves it the last word."""


def why_not(problem: Problem, rule: DivisionRule) -> str | None:
    """Why no joint objective can be planned for; None if it can."""
    if rule is not DivisionRule.PLANNER:
        return f"a joint objective decides the division itself: it does not go with --division {rule}"
    if problem.tier is not Tier.COST_MODEL:
        return "a joint objective weighs seconds: every member must measure its bandwidth and overhead"
    if len(problem.seats) > 1 and not problem.costs.timed:
        unknown = [m.name for m in problem.seating.members if m.rendezvous_rtt_s is None]
        return f"a joint objective needs every member's RTT to the rendezvous; unknown: {', '.join(unknown)}"
    return None


def place_jointly(problem: Problem, goal: Objective) -> tuple[Problem, Placed] | None:
    """The joint placement, over the problem's members or a shortlist of them; None if none was found."""
    assert goal.weight is not None
    goal = Objective(min(goal.weight, _ALMOST_ONE))
    if len(problem.seats) <= EXACT_MEMBERS:
        placed = _best_placed(problem, goal)
        return None if placed is None else (problem, placed)
    short = _shortlist(problem)
    note = f"chosen among the {EXACT_MEMBERS} quickest members only: not proven the best"
    if placed := _best_placed(short, goal):
        return short, replace(placed, proven=False, bound=None, gap=None, notes=(note,))
    note = f"it takes more members than the {EXACT_MEMBERS} of a joint search: planned by the default rule"
    if everyone := place(problem, DivisionRule.PLANNER):
        return problem, replace(everyone, proven=False, notes=(note,))
    return None


def _best_placed(problem: Problem, goal: Objective) -> Placed | None:
    """The anchor's best plan, or one that is better by more than the margin; with a bound on every plan."""
    anchor = problem.seating.anchor
    others = [head for head in range(len(problem.seats)) if head != anchor]
    search = EqualSearch(problem, goal) if problem.chain.equal else UnequalSearch(problem, goal)
    kept, bound = search.best([anchor], float("inf"))
    rival, others_bound = search.best(others, kept.value if kept else float("inf"))
    if isinstance(search, UnequalSearch) and (settled := place(problem, DivisionRule.PLANNER)):
        everyone, _ = search.on_order(settled.placement.order)
        if settled.placement.head == anchor:
            kept = _better(kept, everyone)
        else:
            rival = _better(rival, everyone)
    found = rival if rival and (kept is None or improves(rival.value, kept.value)) else kept
    if found is None and isinstance(search, UnequalSearch):
        found = search.wherever_it_fits()
    if found is None:
        return None
    bound = min(bound, others_bound)
    proven = problem.chain.equal or found.value <= bound
    return Placed(found.placement, proven, bound=bound, gap=found.value - bound)


def _better(one: Found | None, other: Found | None) -> Found | None:
    return min((found for found in (one, other) if found), key=lambda found: found.value, default=None)


def _shortlist(problem: Problem) -> Problem:
    """The same problem over the anchor and the quickest others, as many as the exact search takes."""
    mean_bytes = problem.chain.read_before[-1] / problem.chain.blocks
    anchor = problem.seating.members[problem.seating.anchor]
    quickest = sorted(
        (index for index in range(len(problem.seats)) if index != problem.seating.anchor),
        key=lambda index: problem.seats[index].price.block_s(mean_bytes),
    )
    chosen = sorted([problem.seating.anchor, *quickest[: EXACT_MEMBERS - 1]])
    left = [index for index in range(len(problem.seats)) if index not in chosen]
    members = tuple(problem.seating.members[index] for index in chosen)
    unseated = (
        Unseated(problem.seats[index].name, "slower than the members that the joint search takes")
        for index in left
    )
    seating = Seating(members, problem.tier, (*problem.seating.unseated, *unseated), members.index(anchor))
    return replace(problem, seating=seating, seats=tuple(problem.seats[index] for index in chosen))
