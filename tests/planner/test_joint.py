"""Joint plans against brute force: every team with the anchor, every order, head and division."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_planner.facts import parse_fleet
from kafila_planner.joint import EqualSearch
from kafila_planner.objective import Objective, parse_objective
from kafila_planner.planner import plan_ring
from kafila_planner.problem import pose
from kafila_planner.ring import Refusal, RingPlan, plan_to_json
from tests.planner.brute_force import World, check_legal, kept_head
from tests.planner.fleets import fleet, member, proof, small_fleets

WEIGHTS = {"latency": 0.0, "mixed:0": 0.0, "mixed:0.25": 0.25, "mixed:0.75": 0.75, "mixed:1": 1.0}
WORDS = st.sampled_from(list(WEIGHTS))


def value_of(plan: RingPlan, weight: float) -> float:
    assert plan.circuit_s is not None
    assert plan.bottleneck_s is not None
    return (1 - weight) * plan.circuit_s + weight * plan.bottleneck_s


@proof(150)
@given(small_fleets(max_members=5, max_blocks=8, unequal=False, full=True), WORDS)
def test_equal_blocks_are_planned_exactly(document: dict[str, Any], words: str) -> None:
    world, weight = World(document), WEIGHTS[words]
    plan = plan_ring(parse_fleet(document), objective=words)
    best = world.joint_values(weight)
    if isinstance(plan, Refusal):
        assert not best
        assert plan.refused
        return
    check_legal(world, plan_to_json(plan))
    assert plan.proven
    assert value_of(plan, weight) == pytest.approx(best[plan.head], rel=1e-9)
    assert plan.bound == pytest.approx(min(best.values()), rel=1e-9)
    if kept_head(best, world.anchor):
        assert plan.head == world.anchor
    else:
        assert best[plan.head] == pytest.approx(min(best.values()), rel=1e-9)


@proof(100)
@given(small_fleets(max_members=4, max_blocks=7, unequal=True, full=True), WORDS)
def test_unequal_blocks_come_with_a_true_bound(document: dict[str, Any], words: str) -> None:
    world, weight = World(document), WEIGHTS[words]
    plan = plan_ring(parse_fleet(document), objective=words)
    best = world.joint_values(weight)
    if isinstance(plan, Refusal):
        return
    check_legal(world, plan_to_json(plan))
    assert plan.bound is not None
    assert plan.bound <= min(best.values()) * (1 + 1e-9) + 1e-12
    assert plan.gap == pytest.approx(value_of(plan, weight) - plan.bound, abs=1e-9)
    if plan.proven:
        assert value_of(plan, weight) == pytest.approx(min(best.values()), rel=1e-9)


@proof(40)
@given(small_fleets(max_members=4, max_blocks=6, unequal=False, full=True))
def test_front_is_complete(document: dict[str, Any]) -> None:
    """Every pair that brute force finds is beaten or met by a point of the front, and the front is tight."""
    problem, world = pose(parse_fleet(document)), World(document)
    front = [
        (point.value, point.placement.division.bottleneck_s)
        for point in EqualSearch(problem, Objective(0.0)).front()
    ]
    for weight in (0.0, 0.25, 0.5, 0.75, 0.875, 1.0):
        best = world.joint_values(weight)
        assert bool(best) == bool(front)
        if best:
            values = [(1 - weight) * circuit + weight * bottleneck for circuit, bottleneck in front]
            assert min(values) == pytest.approx(min(best.values()), rel=1e-9)
    assert front == sorted(front)
    assert [bottleneck for _, bottleneck in front] == sorted((b for _, b in front), reverse=True)


def test_a_far_member_is_left_out_for_one_user_and_needed_for_a_full_ring() -> None:
    members = [member("a"), member("b", bandwidth_bytes_per_s=16.0, rendezvous_rtt_s=30.0)]
    document = parse_fleet(fleet(members))
    alone, both = (plan_ring(document, objective=words) for words in ("latency", "mixed:1"))
    assert isinstance(alone, RingPlan)
    assert isinstance(both, RingPlan)
    assert alone.ring == ("a",)
    assert [one.member for one in alone.unseated] == ["b"]
    assert sorted(both.ring) == ["a", "b"]


def test_more_than_sixteen_members_are_shortlisted_and_not_proven() -> None:
    members = [
        member(f"m{n:02}", bandwidth_bytes_per_s=float(8 + n), rendezvous_rtt_s=n / 256) for n in range(20)
    ]
    plan = plan_ring(parse_fleet(fleet(members, {"blocks": 40})), objective="mixed:0.5")
    assert isinstance(plan, RingPlan)
    assert "m00" in plan.ring
    assert not plan.proven
    assert (plan.bound, plan.gap) == (None, None)
    check_legal(World(fleet(members, {"blocks": 40})), plan_to_json(plan))


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"bandwidth_bytes_per_s": None}, {}, "measure"),
        ({"rendezvous_rtt_s": None}, {}, "unknown: b"),
        ({}, {"division": "uniform"}, "--division uniform"),
    ],
)
def test_refused_where_seconds_are_unknown(
    changes: dict[str, Any], options: dict[str, str], words: str
) -> None:
    plan = plan_ring(
        parse_fleet(fleet([member("a"), member("b", **changes)])), objective="latency", **options
    )
    assert isinstance(plan, Refusal)
    assert words in plan.reason


@pytest.mark.parametrize(
    "words", ["", "fast", "mixed", "mixed:", "mixed:2", "mixed:nan", "mixed:-0.1", "latency:1"]
)
def test_other_words_are_no_objective(words: str) -> None:
    with pytest.raises(ValueError, match="objective: must be"):
        parse_objective(words)


def test_members_beyond_the_joint_search_are_taken_where_they_are_needed() -> None:
    """20 members with room for 4 of 80 blocks each: no 16 of them could do."""
    members = [member(f"m{n:02}", memory_bytes=16 * 4 + (32 if n == 0 else 0)) for n in range(20)]
    sizes = {"blocks": 80, "kv_bytes_per_token_per_block": 0}
    plan = plan_ring(parse_fleet(fleet(members, sizes)), objective="latency")
    assert isinstance(plan, RingPlan)
    assert len(plan.ring) == 20
    assert not plan.proven
    assert plan.notes == ("it takes more members than the 16 of a joint search: planned by the default rule",)


def test_a_team_that_fits_in_another_order_only_is_found() -> None:
    """Each block fits one member and m5 fits none, so the team is five, in an order far from the cheapest."""
    rooms = [91, 102, 209, 101, 103, 95]
    members = [member(f"m{n}", rendezvous_rtt_s=n / 8, memory_bytes=room) for n, room in enumerate(rooms)]
    sizes = {
        "blocks": 6,
        "block_bytes": [90, 101, 102, 103, 104, 105],
        "head_bytes": 1,
        "kv_bytes_per_token_per_block": 0,
    }
    assert isinstance(plan_ring(parse_fleet(fleet(members, sizes))), Refusal)
    plan = plan_ring(parse_fleet(fleet(members, sizes)), objective="latency")
    assert isinstance(plan, RingPlan)
    assert not plan.proven
    assert plan.ring == ("m0", "m3", "m1", "m4", "m2")
    assert [one.member for one in plan.unseated] == ["m5"]
