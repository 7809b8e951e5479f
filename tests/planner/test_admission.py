"""Seats, tiers, refusals and what they say would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from kafila_planner.division import DivisionRule
from kafila_planner.facts import Fleet, parse_fleet
from kafila_planner.placement import fits
from kafila_planner.planner import plan_ring
from kafila_planner.remedy import with_context, with_room
from kafila_planner.ring import Refusal, Remedy, RingPlan, Tier
from tests.planner.brute_force import World
from tests.planner.fleets import fleet, member, proof, small_fleets


def planned(document: dict[str, Any], **options: str) -> RingPlan:
    plan = plan_ring(parse_fleet(document), **options)
    assert isinstance(plan, RingPlan), plan
    return plan


def refused(document: dict[str, Any], **options: str) -> Refusal:
    plan = plan_ring(parse_fleet(document), **options)
    assert isinstance(plan, Refusal), plan
    return plan


def counts(plan: RingPlan) -> dict[str, int]:
    return {stage.member: stage.end - stage.start for stage in plan.stages}


def changed(document: Fleet, remedy: Remedy, by: int = 0) -> Fleet:
    if remedy.member is not None:
        return with_room(document, remedy.member, remedy.to + by)
    if remedy.change == "context_tokens":
        return with_context(document, remedy.to + by)
    return replace(document, concurrency=remedy.to + by)


@proof(200)
@given(small_fleets(full=True))
def test_refusals_name_the_undersized_and_remedies_work(document: dict[str, Any]) -> None:
    whole, world = parse_fleet(document), World(document)
    plan = plan_ring(whole)
    if isinstance(plan, RingPlan):
        return
    assert plan.refused or "hybrid" in plan.reason
    for one in plan.refused:
        assert one.needs_bytes > one.room_bytes == world.room(one.member)
        assert one.member in plan.reason
    for remedy in plan.remedies:
        assert isinstance(plan_ring(changed(whole, remedy)), RingPlan)
        step = -1 if remedy.member is not None else 1
        assert not fits(changed(whole, remedy, step), DivisionRule.PLANNER), "a smaller change would do"
        if world.equal:
            assert isinstance(plan_ring(changed(whole, remedy, step)), Refusal)


def test_a_refusal_gives_what_the_division_without_rooms_would_need() -> None:
    """Reading the head costs a as much as two blocks, so 3 and 5 of 20 bytes, and the head's 32 on a.

    Rooms of 111 and 79 hold 6 blocks. With 9 bytes more a holds 6, and b then 2 with the head; at a
    context of 3 a block is 19 bytes, and 4 fit either.
    """
    plan = refused(fleet([member("a", memory_bytes=111), member("b", memory_bytes=79)]))
    assert [(one.member, one.needs_bytes, one.room_bytes) for one in plan.refused] == [("b", 100, 79)]
    more = [(remedy.member, remedy.to, remedy.more_bytes) for remedy in plan.remedies if remedy.member]
    assert more == [("a", 120, 9), ("b", 92, 13)]
    assert [(r.change, r.to) for r in plan.remedies if not r.member] == [("context_tokens", 3)]


def test_a_shorter_context_or_fewer_users_may_help() -> None:
    """8 blocks of 16 bytes and the head's 32 leave 64 bytes: 8 a block."""
    document = fleet([member("a", memory_bytes=224)], context_tokens=5, concurrency=3)
    assert [(r.change, r.to, r.more_bytes) for r in refused(document).remedies] == [
        ("context_tokens", 2, None),
        ("concurrency", 1, None),
        ("memory_bytes", 280, 56),
    ]


def test_the_paper_s_memory_wall_uniform_refused_and_the_planner_serves() -> None:
    members = [member("a"), member("b"), member("laptop", memory_bytes=45)]
    document = fleet(members, {"blocks": 9})
    assert [one.member for one in refused(document, division="uniform").refused] == ["laptop"]
    assert counts(planned(document))["laptop"] <= 2


def test_the_anchor_without_room_for_the_head_is_no_head() -> None:
    members = [member("a", memory_bytes=40), member("b", memory_bytes=51), member("c")]
    assert planned(fleet(members)).head == "c"


def test_head_bytes_weigh_on_the_head_only() -> None:
    plan = planned(fleet([member("a"), member("b")]))
    needs = {stage.member: stage.needs_bytes - 20 * (stage.end - stage.start) for stage in plan.stages}
    assert needs == {"a": 32, "b": 0}


def test_kv_cache_is_reserved_for_context_times_concurrency() -> None:
    facts = {"context_tokens": 10, "concurrency": 3}
    assert planned(fleet([member("a")], **facts)).stages[0].needs_bytes == 8 * (16 + 30) + 32
    window = {"kv_tokens_per_block": [10, 2] * 4}
    assert planned(fleet([member("a")], window, **facts)).stages[0].needs_bytes == 8 * 16 + 4 * 36 + 32


def test_no_room_no_seat_but_the_anchor_keeps_its_own() -> None:
    members = [member("a"), member("b", memory_bytes=19), member("c", memory_bytes=None), member("d")]
    plan = planned(fleet(members))
    assert {one.member: one.reason for one in plan.unseated} == {
        "b": "its room (19 bytes) holds no block (20 bytes with KV cache)",
        "c": "its room is unknown",
    }
    assert refused(fleet(members, anchor="b")).refused[0].member == "b"


def test_a_member_without_room_does_not_lower_the_tier() -> None:
    plan = planned(fleet([member("a"), member("b", memory_bytes=0, bandwidth_bytes_per_s=None)]))
    assert plan.tier is Tier.COST_MODEL


def test_no_room_anywhere_is_a_refusal() -> None:
    plan = refused(fleet([member("a", memory_bytes=0), member("b", memory_bytes=0)]))
    assert [(one.member, one.needs_bytes, one.room_bytes) for one in plan.refused] == [("a", 192, 0)]
    assert [one.member for one in plan.unseated] == ["b"]


@pytest.mark.parametrize(
    ("key", "tier"),
    [
        ("bandwidth_bytes_per_s", Tier.COST_MODEL),
        ("flops_per_s", Tier.THROUGHPUT),
        ("memory_bytes", Tier.WORKING_SET),
    ],
)
def test_while_members_outnumber_blocks_the_slowest_goes(key: str, tier: Tier) -> None:
    """The anchor is the slowest of all, and stays."""
    unknown = {Tier.COST_MODEL: {}, Tier.THROUGHPUT: {"overhead_s": None}}.get(
        tier, {"overhead_s": None, "flops_per_s": None}
    )
    members = [member(f"m{n}", **unknown) | {key: 300 + n} for n in range(6)]
    plan = planned(fleet(members, {"blocks": 3, "head_bytes": 0}))
    assert plan.tier is tier
    assert sorted(plan.ring) == ["m0", "m4", "m5"]
    assert [one.member for one in plan.unseated] == ["m1", "m2", "m3"]


def test_a_hybrid_has_as_many_seats_as_full_attention_blocks() -> None:
    """Blocks are alike in size; only their kind differs."""
    flags = {"full_attention": [False, False, False, True] * 2}
    plan = planned(fleet([member("a"), member("b"), member("c", bandwidth_bytes_per_s=4.0)], flags))
    assert [one.member for one in plan.unseated] == ["c"]
    assert [any(flags["full_attention"][s.start : s.end]) for s in plan.stages] == [True, True]


def test_a_hybrid_that_no_division_suits_is_refused_by_name() -> None:
    """The member with room for two blocks must hold a full-attention block, and there is none near enough."""
    model = {"name": "Jamba", "full_attention": [False] * 3 + [True, True] + [False] * 3}
    plan = refused(fleet([member("a", memory_bytes=82), member("b", memory_bytes=80)], model))
    assert "Jamba" in plan.reason


def test_throughput_tier_counts_no_head_and_keeps_the_anchor() -> None:
    """Per(i) = bytes / FLOP/s: 16 against 48 FLOP/s share 8 blocks as 2 and 6, wherever the head is."""
    members = [member("a", bandwidth_bytes_per_s=None), member("b", flops_per_s=48.0)]
    plan = planned(fleet(members))
    assert (plan.tier, plan.head, counts(plan)) == (Tier.THROUGHPUT, "a", {"a": 2, "b": 6})
    assert (plan.bottleneck_s, plan.sum_s, plan.circuit_s) == (None, None, None)
    assert {stage.predicted_s for stage in plan.stages} == {None}
    assert plan.predicted.tokens_per_s_one_user is None
    assert plan.ring_cost_s is not None


def test_throughput_tier_the_first_that_fits_is_head_where_the_anchor_does_not() -> None:
    members = [member(f"m{n}", bandwidth_bytes_per_s=None, memory_bytes=60) for n in range(4)]
    members[3]["memory_bytes"] = 400
    assert planned(fleet(members, {"head_bytes": 50})).head == "m3"


def test_working_set_tier_divides_by_room_less_the_head() -> None:
    """Rooms 132 - 32 and 300 share 8 blocks as 2 and 6."""
    unknown: dict[str, Any] = {"bandwidth_bytes_per_s": None, "flops_per_s": None}
    members = [member("a", memory_bytes=132, **unknown), member("b", memory_bytes=300, **unknown)]
    plan = planned(fleet(members))
    assert (plan.tier, plan.head, counts(plan)) == (Tier.WORKING_SET, "a", {"a": 2, "b": 6})
    assert counts(planned(fleet(members), division="memory")) == {"a": 2, "b": 6}


@pytest.mark.parametrize(
    ("rooms", "shares"),
    [
        ([500, 300, 200], [5, 3, 2]),
        ([333, 333, 334], [3, 3, 4]),
        ([960, 20, 20], [8, 1, 1]),
        ([550, 250, 200], [6, 2, 2]),  # 5.5, 2.5, 2: of equal remainders the first in the ring takes one
    ],
)
def test_largest_remainder_and_at_least_one_each(rooms: list[int], shares: list[int]) -> None:
    members = [member(f"m{n}", memory_bytes=room, overhead_s=None) for n, room in enumerate(rooms)]
    plan = plan_ring(parse_fleet(fleet(members, {"blocks": 10, "head_bytes": 0})), division="memory")
    assert isinstance(plan, RingPlan)
    assert counts(plan) == {f"m{n}": share for n, share in enumerate(shares)}


@pytest.mark.parametrize("better", [False, True])
def test_the_anchor_stays_head_within_the_margin(better: bool) -> None:
    """Alone in paying the head's read, the head with the smaller overhead wins by a little, or by a lot."""
    overhead = 8.0 if better else 0.5
    members = [member("a", overhead_s=overhead), member("b", overhead_s=0.0)]
    plan = planned(fleet(members, {"blocks": 2, "block_bytes": 64, "head_bytes": 16}))
    assert plan.head == ("b" if better else "a")


def test_a_shorter_context_that_seats_too_many_is_no_remedy() -> None:
    """At context 2 and below b has room for the small block, which then leaves a with two large ones."""
    members = [member("a", memory_bytes=122), member("b", memory_bytes=22)]
    sizes = {"blocks": 3, "block_bytes": [40, 20, 40], "head_bytes": 0}
    plan = refused(fleet(members, sizes, context_tokens=9))
    assert [(one.change, one.to) for one in plan.remedies if one.member is None] == [("context_tokens", 7)]
    assert counts(planned(fleet(members, sizes, context_tokens=7))) == {"a": 3}
    refused(fleet(members, sizes, context_tokens=2))
