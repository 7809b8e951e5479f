"""The ring's order: exact against all permutations, the paper's claims about relayed and direct rings, ties."""

from __future__ import annotations

import random
from itertools import product
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_planner.edge_cost import Costs, by_rtt_and_name, edge_costs
from kafila_planner.facts import MemberFacts, parse_fleet, parse_member
from kafila_planner.order import (
    SMALL_MEMBERS,
    alternation,
    cheapest_cycle,
    cycles_by_cost,
    improved,
    nearby_cycles,
    smaller_direction,
)
from kafila_planner.path_table import PathTable
from kafila_planner.planner import plan_ring
from kafila_planner.ring import RingPlan
from tests.planner.brute_force import World
from tests.planner.fleets import BEHAVIOURS, fleet, member, proof

INDEPENDENT, BY_ADDRESS, BY_PORT = BEHAVIOURS
OPEN = {"mapping": INDEPENDENT, "filtering": INDEPENDENT}
MIDDLE = {"mapping": INDEPENDENT, "filtering": BY_PORT}
STRICT = {"mapping": BY_PORT, "filtering": BY_PORT}


def random_members(seed: int, count: int, **facts: Any) -> tuple[MemberFacts, ...]:
    chance = random.Random(seed)
    return by_rtt_and_name(
        [
            parse_member(
                member(
                    f"m{index}",
                    rendezvous_rtt_s=chance.uniform(0.001, 0.2),
                    mapping=chance.choice(BEHAVIOURS),
                    filtering=chance.choice(BEHAVIOURS),
                )
                | facts
            )
            for index in range(count)
        ]
    )


@pytest.mark.parametrize("seed", range(40))
def test_cheapest_of_all_cycles(seed: int) -> None:
    """Six members with real RTTs: (cost, separation, smallest cycle) against every permutation."""
    members = random_members(seed, 6)
    costs = edge_costs(members)
    assert cheapest_cycle(costs, members, 0).order == next(cycles_by_cost(costs))


@proof(40)
@given(st.integers(4, SMALL_MEMBERS), st.randoms(use_true_random=False))
def test_both_tables_agree(size: int, chance: random.Random) -> None:
    """Small numbers are full of ties: numpy's table and the small one must break them alike."""
    cost, separation = ([[0] * size for _ in range(size)] for _ in range(2))
    for a in range(size):
        for b in range(a):
            cost[a][b] = cost[b][a] = chance.randrange(3)
            separation[a][b] = separation[b][a] = chance.randrange(3)
    frozen = [tuple(map(tuple, matrix)) for matrix in (cost, separation)]
    costs = Costs(True, (), *frozen)
    members = random_members(0, size)
    small = cheapest_cycle(costs, members, 0).order
    assert small == PathTable(costs, 0).smallest_cycle()
    if size <= 7:
        assert small == next(cycles_by_cost(costs))


@pytest.mark.parametrize("base", range(5))
def test_ring_costs_of_every_set(base: int) -> None:
    members = random_members(7, 5)
    costs = edge_costs(members)
    table = PathTable(costs, base)
    for number, cost in enumerate(table.ring_costs().tolist()):
        chosen = sorted([base, *(m for bit, m in enumerate(table.others) if number >> bit & 1)])
        part = costs.among(chosen)
        assert cost == part.of_ring(next(cycles_by_cost(part)))[0]
        assert cost == costs.of_ring(table.smallest_cycle(number))[0]


@pytest.mark.parametrize("seed", range(150))
def test_all_relayed_rings_cost_twice_the_sum_of_rtts(seed: int) -> None:
    """In any order, exactly; so separation decides, and 2 * (largest - smallest) is the least there is."""
    members = random_members(seed, 3 + seed % 8, udp=False)
    costs = edge_costs(members)
    rtts = [round((m.rendezvous_rtt_s or 0) * 1e9) for m in members]
    shuffled = random.Random(seed).sample(range(len(members)), len(members))
    assert costs.of_ring(shuffled)[0] == 2 * sum(rtts)
    cycle = cheapest_cycle(costs, members, 0).order
    assert costs.of_ring(cycle) == (2 * sum(rtts), 2 * (max(rtts) - min(rtts)))
    assert cycle == tuple(range(len(members))), "of equal separations, the smallest cycle by (RTT, name)"


def test_an_all_direct_ring_exists_exactly_when_the_counts_say() -> None:
    """p open members, q others that map alike, r the rest: r = 0, or q = 0 and p >= r, or q > 0 and p > r."""
    for p, q, r in product(range(5), repeat=3):
        if not 2 <= p + q + r <= 8:
            continue
        kinds = [OPEN] * p + [MIDDLE] * q + [STRICT] * r
        members = [member(f"m{n}", rendezvous_rtt_s=None, **kind) for n, kind in enumerate(kinds)]
        plan = plan_ring(parse_fleet(fleet(members)))
        assert isinstance(plan, RingPlan)
        possible = r == 0 or (p >= r if q == 0 else p >= r + 1)
        assert (plan.relayed_edges == 0) == possible, (p, q, r)


def test_a_cheap_ring_need_not_have_the_fewest_relayed_edges() -> None:
    """Members near the rendezvous relay for less than a direct edge across the world."""
    facts = [(0.001, STRICT), (0.001, STRICT), (0.2, OPEN), (0.2, OPEN)]
    members = [member(f"m{n}", rendezvous_rtt_s=rtt, **kind) for n, (rtt, kind) in enumerate(facts)]
    plan = plan_ring(parse_fleet(fleet(members)))
    counted = plan_ring(parse_fleet(fleet([m | {"rendezvous_rtt_s": None} for m in members])))
    assert isinstance(plan, RingPlan)
    assert isinstance(counted, RingPlan)
    assert counted.relayed_edges == 0
    assert plan.relayed_edges == 1
    assert counted.ring_cost_s is None


def test_two_members_have_two_edges_and_one_has_none() -> None:
    pair = plan_ring(parse_fleet(fleet([member("a", udp=False), member("b")])))
    alone = plan_ring(parse_fleet(fleet([member("a")])))
    assert isinstance(pair, RingPlan)
    assert isinstance(alone, RingPlan)
    assert [(edge.source, edge.target) for edge in pair.edges] == [("a", "b"), ("b", "a")]
    assert (pair.ring_cost_s, pair.relayed_edges) == (1.0, 2)
    assert (alone.edges, alone.ring_cost_s, alone.circuit_s) == ((), 0.0, alone.sum_s)


@pytest.mark.parametrize("count", [17, 24, 40])
def test_beyond_the_exact_size_the_order_is_good_and_says_it_is_not_proven(count: int) -> None:
    members = random_members(count, count)
    costs = edge_costs(members)
    cycle = cheapest_cycle(costs, members, 3)
    assert not cycle.proven
    assert sorted(cycle.order) == list(range(count))
    reached = costs.of_ring(cycle.order)
    assert reached <= costs.of_ring(alternation(members, 3))
    assert reached <= costs.of_ring(range(count))
    assert costs.of_ring(improved(costs, list(cycle.order))) == reached, "no reversal is left to gain by"


@pytest.mark.parametrize("seed", range(20))
def test_local_search_stays_near_the_proven_optimum(seed: int) -> None:
    members = random_members(seed, 10)
    costs = edge_costs(members)
    exact = costs.of_ring(cheapest_cycle(costs, members, 0).order)
    found = min(costs.of_ring(improved(costs, start)) for start in (list(range(10)), alternation(members, 0)))
    assert exact <= found
    assert found[0] <= exact[0] * 1.25


def test_alternation_puts_open_and_strict_members_in_turn() -> None:
    kinds = [OPEN, STRICT, OPEN, STRICT, STRICT, OPEN]
    members = by_rtt_and_name([parse_member(member(f"m{n}", **kind)) for n, kind in enumerate(kinds)])
    order = alternation(members, 1)
    assert order[0] == 1
    assert edge_costs(members).of_ring(order)[0] == 0


def test_nearby_cycles_are_cycles_and_do_not_repeat() -> None:
    costs = edge_costs(random_members(1, 6))
    nearby = list(nearby_cycles(costs, range(6)))
    assert len(set(nearby)) == len(nearby)
    assert all(cycle == smaller_direction(cycle) and sorted(cycle) == list(range(6)) for cycle in nearby)
    assert [costs.of_ring(cycle) for cycle in nearby] == sorted(costs.of_ring(cycle) for cycle in nearby)


def test_rtts_are_rounded_to_whole_nanoseconds_before_they_are_compared() -> None:
    """0.1 + 0.2 is not 0.3 in floats; here both orders of three like distances tie, as they should."""
    members = [member(f"m{n}", rendezvous_rtt_s=rtt, udp=False) for n, rtt in enumerate((0.1, 0.2, 0.3, 0.3))]
    world = World(fleet(members))
    plan = plan_ring(parse_fleet(fleet(members)))
    assert isinstance(plan, RingPlan)
    assert plan.ring_cost_s == 1.8
    assert plan.ring_separation_s == 0.4
    assert plan.ring == ("m0", "m1", "m2", "m3")
    assert world.ring_cost(plan.ring) == (1_800_000_000, 400_000_000)


def test_sixteen_members_are_ordered_in_under_a_second_of_work() -> None:
    members = random_members(16, 16)
    start = thread_time()  # which others' work does not lengthen
    assert cheapest_cycle(edge_costs(members), members, 0).proven
    assert thread_time() - start < 1.0
