"""The order of the ring: the cheapest cycle over the predicted paths (paper, section V-A), exactly.

Ties go to the smaller separation, which puts members of like distance next to each other; then to the smallest
cycle by (RTT, name), so the answer is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

from kafila_planner.edge_cost import Costs
from kafila_planner.facts import MemberFacts
from kafila_planner.nat import is_open, maps_alike
from kafila_planner.path_table import PathTable

EXACT_MEMBERS = 16
"""Up to here the order is proven: the table has 2^(m-1) * (m-1) entries."""
SMALL_MEMBERS = 9
"""Up to here the table is quicker made without numpy."""
ALL_ORDERS_MEMBERS = 8
"""Up to here every cycle can be listed: 7! / 2 of them."""


@dataclass(frozen=True)
class Cycle:
    """A ring as member indices from the smallest, in the smaller direction."""

    order: tuple[int, ...]
    proven: bool


def cheapest_cycle(costs: Costs, members: Sequence[MemberFacts], anchor: int) -> Cycle:
    """The ring's order over members in canonical order; beyond the exact size good, not proven."""
    size = len(members)
    if size <= 3:  # there is only one cycle
        return Cycle(tuple(range(size)), True)
    if size <= EXACT_MEMBERS:
        return Cycle(exact_cycle(costs), True)
    starts = [list(range(size)), alternation(members, anchor)]
    best = min((improved(costs, start) for start in starts), key=costs.of_ring)
    return Cycle(smaller_direction(best), False)


@lru_cache(maxsize=64)
def exact_cycle(costs: Costs) -> tuple[int, ...]:
    """Remembered, because remedies and advice ask again about the same places on the map."""
    if len(costs.cost) <= SMALL_MEMBERS:
        return _small_cycle(costs)
    return PathTable(costs, 0).smallest_cycle()


def _small_cycle(costs: Costs) -> tuple[int, ...]:
    """Held and Karp's recursion without numpy, whose import alone would take longer.

    A pair (cost, separation) is one integer, the cost shifted above any separation: sums and comparisons
    of such integers are those of the pairs.
    """
    size = len(costs.cost)
    shift = sum(map(sum, costs.separation)).bit_length() + 1
    weight = [
        [(cost << shift) + apart for cost, apart in zip(*rows, strict=True)]
        for rows in zip(costs.cost, costs.separation, strict=True)
    ]
    # best[left][j]: the best way from j through the members of the set `left` (bit i is member i) to 0
    best = [[0] * size for _ in range(1 << size)]
    best[0] = [weight[member][0] for member in range(size)]
    members = range(1, size)
    for left in range(2, 1 << size, 2):
        onward = [(step, best[left ^ (1 << step)][step]) for step in members if left >> step & 1]
        best[left] = [min(weight[member][step] + rest for step, rest in onward) for member in range(size)]
    order, left = [0], (1 << size) - 2
    while left:
        steps = [step for step in members if left >> step & 1]
        order.append(
            min(steps, key=lambda step: (weight[order[-1]][step] + best[left ^ (1 << step)][step], step))
        )
        left ^= 1 << order[-1]
    return tuple(order)


def smaller_direction(order: Sequence[int]) -> tuple[int, ...]:
    """The same cycle from its smallest member, towards the smaller of its two neighbours."""
    start = order.index(min(order))
    turned = [*order[start:], *order[:start]]
    back = [turned[0], *turned[:0:-1]]
    return tuple(min(turned, back))


def alternation(members: Sequence[MemberFacts], anchor: int) -> list[int]:
    """The paper's rule: open and restrictive members alternate round the anchor; the others follow."""
    others = [index for index in range(len(members)) if index != anchor]
    opens = [index for index in others if is_open(members[index])]
    strict = [index for index in others if not is_open(members[index]) and not maps_alike(members[index])]
    middle = [index for index in others if index not in opens and index not in strict]
    order = [anchor]
    while opens or strict:
        wanted = strict if is_open(members[order[-1]]) else opens
        order.append((wanted or opens or strict).pop(0))
    return order + middle


def improved(costs: Costs, order: list[int]) -> list[int]:
    """Reverse stretches of the cycle while that makes (cost, separation) smaller: the best one each time."""
    import numpy as np

    cost, separation = np.asarray(costs.cost), np.asarray(costs.separation)
    current = np.asarray(order)
    while True:
        gain_c, gain_s = (
            matrix[current[:, None], current[None, :]]
            + matrix[np.roll(current, -1)[:, None], np.roll(current, -1)[None, :]]
            - matrix[current, np.roll(current, -1)][:, None]
            - matrix[current, np.roll(current, -1)][None, :]
            for matrix in (cost, separation)
        )
        np.fill_diagonal(gain_c, 0)
        np.fill_diagonal(gain_s, 0)
        best = np.lexsort((gain_s.ravel(), gain_c.ravel()))[0]
        first, last = sorted(divmod(int(best), len(order)))
        if (gain_c[first, last], gain_s[first, last]) >= (0, 0):
            return [int(index) for index in current]
        current[first + 1 : last + 1] = current[first + 1 : last + 1][::-1]


def cycles_by_cost(costs: Costs) -> Iterator[tuple[int, ...]]:
    """Every cycle of at most ALL_ORDERS_MEMBERS members by rising (cost, separation), then the smallest."""
    size = len(costs.cost)
    assert size <= ALL_ORDERS_MEMBERS
    cycles = [(0, *rest) for rest in permutations(range(1, size)) if size <= 3 or rest[0] < rest[-1]]
    yield from sorted(cycles, key=costs.of_ring)  # stable: permutations come smallest first


def nearby_cycles(costs: Costs, cycle: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The cycles one exchange of two members away, by rising (cost, separation)."""
    found = set()
    for a in range(len(cycle)):
        for b in range(a + 1, len(cycle)):
            swapped = list(cycle)
            swapped[a], swapped[b] = swapped[b], swapped[a]
            found.add(smaller_direction(swapped))
    yield from sorted(found - {smaller_direction(cycle)}, key=lambda order: (costs.of_ring(order), order))
