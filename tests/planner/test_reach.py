"""Refusals as proofs: what sets of members can hold, against every order one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

from hypothesis import given

from kafila_planner.division import DivisionRule
from kafila_planner.facts import parse_fleet
from kafila_planner.fields import MAX_BYTES
from kafila_planner.placement import fits, place, proves_refusal
from kafila_planner.planner import plan_ring
from kafila_planner.problem import Problem, pose
from kafila_planner.reach import ReachTable
from kafila_planner.refusal import refuse
from kafila_planner.remedy import with_room
from kafila_planner.ring import Refusal, RingPlan
from tests.planner.fleets import fleet, member, proof, small_fleets


def every_need(problem: Problem) -> Iterator[list[tuple[int, int]]]:
    """(seat, bytes it needs) for every order and legal division there is."""
    chain, size = problem.chain, len(problem.seats)
    legal = chain.full_attention or [True] * chain.blocks
    for cuts in combinations(range(1, chain.blocks), size - 1):
        ranges = list(zip([0, *cuts], [*cuts, chain.blocks], strict=True))
        if all(any(legal[start:end]) for start, end in ranges):
            needs = [chain.needs_bytes(*part, place == 0) for place, part in enumerate(ranges)]
            head, rest = needs[0], needs[1:]
            for order in permutations(range(size)):
                yield [(order[0], head), *zip(order[1:], rest, strict=True)]


@proof(150)
@given(small_fleets(max_members=4, max_blocks=7, unequal=True))
def test_every_order_is_judged(document: dict[str, Any]) -> None:
    problem = pose(parse_fleet(document))
    rooms = [seat.room_bytes for seat in problem.seats]
    least: list[int | None] = [None] * len(rooms)
    possible = False
    for needs in every_need(problem):
        over = [(seat, need) for seat, need in needs if need > rooms[seat]]
        possible = possible or not over
        for seat, need in needs:
            if all(other == seat for other, _ in over) and (least[seat] is None or need < least[seat]):  # type: ignore[operator]
                least[seat] = need
    table = ReachTable(problem)
    order = table.fitting_order()
    assert (order is not None) is possible
    assert order is None or sorted(order) == list(range(len(rooms)))
    assert table.least_rooms() == least


def ladder(size: int, misfit: int) -> dict[str, Any]:
    """As many blocks as members; a member takes one block, and only its own will do, `misfit` apart from
    where the cheapest ring would have it.
    """
    members = [
        member(f"m{n:02}", rendezvous_rtt_s=n / 8, memory_bytes=100 + (n * misfit) % size)
        for n in range(size)
    ]
    sizes = [100 + n for n in range(size)]
    model = {"blocks": size, "block_bytes": sizes, "head_bytes": 0, "kv_bytes_per_token_per_block": 0}
    return fleet(members, model)


def test_an_order_far_from_the_cheapest_is_found_where_not_all_can_be_listed() -> None:
    """Of 11 members' orders one alone fits, many exchanges away from the cheapest ring."""
    plan = plan_ring(parse_fleet(ladder(11, 4)))
    assert isinstance(plan, RingPlan)
    assert [stage.room_bytes for stage in plan.stages] == [100 + n for n in range(11)]
    assert not plan.proven
    assert plan.notes == (
        "the cheapest ring does not fit: this is one that does, not proven the cheapest that does",
    )


def test_a_refusal_says_whether_it_is_a_proof() -> None:
    """A byte too little: up to 16 members nothing is missed; beyond, an order that fits may be."""
    for size, proven in ((3, True), (4, True), (9, True), (17, False)):
        whole = parse_fleet(ladder(size, 4 if size % 4 else 3))
        largest = max(whole.members, key=lambda one: one.room_bytes)
        short = with_room(whole, largest.name, largest.room_bytes - 1)
        roomier = with_room(short, whole.anchor, whole.model.block_bytes[0] + 1)  # together they have room
        problem = pose(roomier)
        assert not problem.lacks_room
        assert place(problem, DivisionRule.PLANNER) is None
        assert proves_refusal(problem, DivisionRule.PLANNER) is proven
        reason = refuse(problem, DivisionRule.PLANNER).reason
        assert ("so there may be one" in reason) is not proven
        assert reason.startswith("no division of toy fits the members' room") is proven


def test_the_least_room_fits_and_a_byte_less_does_not() -> None:
    short = parse_fleet(ladder(9, 4) | {"anchor": "m03"})
    short = with_room(short, "m03", 90)
    plan = plan_ring(short)
    assert isinstance(plan, Refusal)
    rooms = {one.member: one.to for one in plan.remedies if one.member}
    assert rooms["m03"] == 103
    for name, room in rooms.items():
        assert fits(with_room(short, name, room), DivisionRule.PLANNER)
        assert not fits(with_room(short, name, room - 1), DivisionRule.PLANNER)


def test_a_room_that_no_machine_has_is_no_remedy() -> None:
    document = fleet([member("a"), member("b")], {"block_bytes": [MAX_BYTES, *[16] * 7]})
    plan = plan_ring(parse_fleet(document))
    assert isinstance(plan, Refusal)
    assert not plan.remedies


def test_a_fixed_share_that_does_not_fit_is_named() -> None:
    tight = fleet([member("a"), member("b", memory_bytes=60)])
    plan = plan_ring(parse_fleet(tight), division="uniform")
    assert isinstance(plan, Refusal)
    assert plan.reason.startswith("the uniform division of toy does not fit the members' room at context 4")
