"""Plans against brute force: every order, rotation and division of small fleets, tight, tied, half measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given

from kafila_planner.facts import parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from tests.planner.brute_force import World, check_legal, kept_head
from tests.planner.fleets import fleet, member, proof, small_fleets

Json = dict[str, Any]


def planned(document: Json, **options: str) -> Json:
    return plan_to_json(plan_ring(parse_fleet(document), **options))


def agrees(document: Json) -> str:
    """The plan is what trying everything gives, in every respect that the rules fix; says what that is."""
    world, plan = World(document), planned(document)
    if world.tier == "working-set":
        if "refused" not in plan:
            check_legal(world, plan)
        return "shares"
    answer = world.plan()
    if answer is None:
        assert plan["refused"] or "hybrid" in plan["reason"]
        return "refused"
    cycle, best = answer
    check_legal(world, plan)
    assert plan["tier"] == world.tier
    assert plan["proven"]
    ring = tuple(plan["ring"])
    start = ring.index(cycle[0])
    turned = ring[start:] + ring[:start]
    assert turned in (cycle, (cycle[0], *cycle[:0:-1]))
    if all(world.rtt(name) is not None for name in world.seated):
        assert plan["ring_cost_s"] == world.ring_cost(cycle)[0] / 1e9
        assert plan["ring_separation_s"] == world.ring_cost(cycle)[1] / 1e9
    merits = [
        world.stage_s(stage["member"], *stage["blocks"], place == 0)
        for place, stage in enumerate(plan["stages"])
    ]
    assert (max(merits), sum(merits)) == best[plan["head"]]
    if world.tier == "throughput":
        assert (plan["head"] == world.anchor) == (world.anchor in best)
        assert plan["bottleneck_s"] is None
    elif kept_head(best, world.anchor):
        assert plan["head"] == world.anchor
    else:
        assert best[plan["head"]] == min(best.values())
        assert plan["bottleneck_s"] == best[plan["head"]][0]
    return f"planned for {len(ring)}"


@proof(250)
@given(small_fleets(unequal=False))
def test_equal_blocks(document: Json) -> None:
    event(agrees(document))


@proof(250)
@given(small_fleets(max_members=5, max_blocks=10, unequal=True))
def test_unequal_blocks(document: Json) -> None:
    event(agrees(document))


@proof(60)
@given(small_fleets(max_members=6, max_blocks=7, unequal=True, full=True))
def test_unequal_blocks_of_six_members(document: Json) -> None:
    event(agrees(document))


def test_one_pass_would_strand_the_large_block() -> None:
    """Filling left to right leaves the last, large block to the slow member; the dynamic program does not."""
    members = [member("fast", bandwidth_bytes_per_s=64.0), member("slow", bandwidth_bytes_per_s=4.0)]
    plan = planned(fleet(members, {"blocks": 4, "block_bytes": [8, 8, 8, 64], "head_read_bytes": 0}))
    large = next(stage for stage in plan["stages"] if stage["blocks"][0] <= 3 < stage["blocks"][1])
    assert large["member"] == "fast"


def test_another_order_where_the_cheapest_ring_does_not_fit() -> None:
    """Two members can hold a large block; in the cheapest ring they are not neighbours, as the blocks are."""
    members = [
        member("a", memory_bytes=64, rendezvous_rtt_s=0.0),
        member("b", memory_bytes=24, rendezvous_rtt_s=0.125),
        member("c", memory_bytes=64, rendezvous_rtt_s=0.25),
        member("d", memory_bytes=24, rendezvous_rtt_s=0.5),
    ]
    sizes = {"blocks": 4, "block_bytes": [56, 56, 8, 8], "head_bytes": 0}
    document = fleet(members, sizes)
    world, plan = World(document), planned(document)
    assert not world.best_per_head(world.cycles(world.seated)[0])
    assert plan["notes"] == ["the cheapest ring does not fit: this is the next cheapest that does"]
    agrees(document)


def test_more_than_eight_members_try_the_neighbouring_orders() -> None:
    members = [member(f"m{n}", memory_bytes=20, rendezvous_rtt_s=n / 64) for n in range(9)]
    members[4]["memory_bytes"] = 104
    document = fleet(members, {"blocks": 9, "block_bytes": [100, *[16] * 8], "head_bytes": 0})
    plan = planned(document)
    check_legal(World(document), plan)
    assert plan["stages"][0]["member"] == "m4"


@pytest.mark.parametrize("division", ["uniform", "memory"])
@proof(80)
@given(document=small_fleets())
def test_baselines_pass_the_same_checks(division: str, document: Json) -> None:
    world, plan = World(document), planned(document, division=division)
    if "refused" in plan:
        assert plan["refused"] or "hybrid" in plan["reason"]
        return
    check_legal(world, plan)
    counts = [stage["blocks"][1] - stage["blocks"][0] for stage in plan["stages"]]
    if division == "uniform":
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1
    elif rooms := sum(world.room(name) for name in plan["ring"]):
        shares = [world.blocks * world.room(name) / rooms for name in plan["ring"]]
        above = [count - share for count, share in zip(counts, shares, strict=True) if count > 1]
        assert all(extra < 1 for extra in above)
