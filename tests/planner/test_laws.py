"""Laws that hold between plans: what improves a fleet never worsens its best bottleneck, names do not matter."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kafila_planner.division import DivisionRule, EqualDivider, UnequalDivider
from kafila_planner.facts import Fleet, MemberFacts, parse_fleet
from kafila_planner.head import best_per_head
from kafila_planner.order import cheapest_cycle
from kafila_planner.placement import directions
from kafila_planner.planner import plan_ring
from kafila_planner.problem import pose
from kafila_planner.ring import Refusal, RingPlan, Tier
from tests.planner.fleets import proof, small_fleets

WHO = st.integers(0, 5)


def best_bottleneck_s(fleet: Fleet) -> float:
    """Over all rotations of the cheapest ring, no margin; infinite where nothing fits."""
    problem = pose(fleet)
    anchor = problem.seating.anchor
    cycle = cheapest_cycle(problem.costs, problem.seating.members, anchor)
    ways = directions(problem, cycle.order)
    heads = best_per_head(problem.divider(DivisionRule.PLANNER), ways, anchor)
    return min((head.division.bottleneck_s for head in heads.values()), default=float("inf"))


def with_member(fleet: Fleet, who: int, **facts: Any) -> Fleet:
    who %= len(fleet.members)
    members = list(fleet.members)
    members[who] = replace(members[who], **facts)
    return replace(fleet, members=tuple(members))


def same_seats(one: Fleet, other: Fleet) -> bool:
    return {m.name for m in pose(one).seating.members} == {m.name for m in pose(other).seating.members}


@proof(100)
@given(small_fleets(full=True), WHO, st.sampled_from([1.25, 2.0, 16.0]))
def test_a_faster_member_never_worsens_the_best_bottleneck(
    document: dict[str, Any], who: int, times: float
) -> None:
    fleet = parse_fleet(document)
    before = fleet.members[who % len(fleet.members)].bandwidth_bytes_per_s
    assert before is not None
    faster = with_member(fleet, who, bandwidth_bytes_per_s=before * times)
    assume(same_seats(fleet, faster))
    assert best_bottleneck_s(faster) <= best_bottleneck_s(fleet)


@proof(100)
@given(small_fleets(full=True), WHO, st.sampled_from([1, 20, 500]))
def test_more_room_never_worsens_the_best_bottleneck(document: dict[str, Any], who: int, more: int) -> None:
    fleet = parse_fleet(document)
    roomier = with_member(fleet, who, memory_bytes=fleet.members[who % len(fleet.members)].room_bytes + more)
    assume(same_seats(fleet, roomier))
    assert best_bottleneck_s(roomier) <= best_bottleneck_s(fleet)


@proof(100)
@given(small_fleets(unequal=False), st.randoms(use_true_random=False))
def test_names_and_listing_change_nothing_where_blocks_are_equal(
    document: dict[str, Any], chance: random.Random
) -> None:
    fleet = parse_fleet(document)
    assume(len(fleet.members) <= fleet.model.blocks)  # of equally slow members, names say who has no seat
    names = [member.name for member in fleet.members]
    called = dict(zip(names, chance.sample(names, len(names)), strict=True))
    members = [replace(member, name=called[member.name]) for member in fleet.members]
    chance.shuffle(members)
    renamed = replace(fleet, members=tuple(members), anchor=called[fleet.anchor])
    one, other = plan_ring(fleet), plan_ring(renamed)
    assert type(one) is type(other)
    if isinstance(one, RingPlan) and isinstance(other, RingPlan):
        assume(one.tier is other.tier is not Tier.WORKING_SET)
        assert (one.bottleneck_s, one.sum_s, one.ring_cost_s, one.ring_separation_s, one.relayed_edges) == (
            (other.bottleneck_s, other.sum_s, other.ring_cost_s, other.ring_separation_s, other.relayed_edges)
        )


@proof(100)
@given(small_fleets(full=True), st.sampled_from([0.5, 2.0, 8.0]))
def test_scaling_every_bandwidth_scales_the_compute_part(document: dict[str, Any], times: float) -> None:
    """With no overheads the compute part is all there is, and powers of two scale exactly."""
    fleet = parse_fleet(document)

    def bare(member: MemberFacts, scale: float) -> MemberFacts:
        assert member.bandwidth_bytes_per_s is not None
        bandwidth = member.bandwidth_bytes_per_s * scale
        return replace(member, bandwidth_bytes_per_s=bandwidth, overhead_s=0.0, block_overhead_s=0.0)

    one, other = (
        plan_ring(replace(fleet, members=tuple(bare(member, scale) for member in fleet.members)))
        for scale in (1.0, times)
    )
    if isinstance(one, Refusal) or isinstance(other, Refusal):
        assert isinstance(one, Refusal)
        assert isinstance(other, Refusal)
        return
    assert [(s.member, s.start, s.end) for s in one.stages] == [
        (s.member, s.start, s.end) for s in other.stages
    ]
    assert one.bottleneck_s is not None
    assert other.bottleneck_s == one.bottleneck_s / times
    assert other.ring_cost_s == one.ring_cost_s


@proof(100)
@given(small_fleets(unequal=False, full=True))
def test_both_dividers_agree_on_equal_blocks(document: dict[str, Any]) -> None:
    """Algorithm 1 and the dynamic programs are two proofs of the same minima."""
    problem = pose(parse_fleet(document))
    quick, general = EqualDivider(problem.chain, problem.seats), UnequalDivider(problem.chain, problem.seats)
    for turn in range(len(problem.seats)):
        order = [*range(turn, len(problem.seats)), *range(turn)]
        one, other = quick.divide(order), general.divide(order)
        assert (one is None) == (other is None)
        if one and other:
            assert (one.bottleneck_s, one.sum_s) == (other.bottleneck_s, other.sum_s)


@pytest.mark.parametrize("seed", range(5))
def test_planning_is_a_function(seed: int) -> None:
    chance = random.Random(seed)
    members = tuple(
        MemberFacts(
            f"m{n}", chance.uniform(1, 9), chance.random(), memory_bytes=400, rendezvous_rtt_s=chance.random()
        )
        for n in range(6)
    )
    fleet = replace(_fleet(), members=members, anchor="m0")
    assert plan_ring(fleet) == plan_ring(fleet)


def _fleet() -> Fleet:
    return parse_fleet(
        {
            "model": {"blocks": 12, "block_bytes": 16, "head_bytes": 32, "kv_bytes_per_token_per_block": 1},
            "context_tokens": 4,
            "concurrency": 2,
            "anchor": "a",
            "members": [{"name": "a"}],
        }
    )
