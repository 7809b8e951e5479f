"""The order of the ring: the cheapest cycle over the predicted paths (paper, section V-A), exactly.

Edges are priced in whole nanoseconds, so that costs and separations compare exactly: floats miss ties,
and ties are the rule (in an all-relayed fleet every order costs 2 * sum of RTTs). Ties go to the smaller
separation, which puts members of like distance next to each other; then to the smallest cycle by
(RTT, name), so the answer is one. Where an RTT is missing an edge costs 1 if relayed and 0 if direct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

from kafila_planner.facts import MemberFacts
from kafila_planner.nat import expected_path, is_open, maps_alike
from kafila_planner.ring import Path

EXACT_MEMBERS = 16
"""Up to here the order is proven: the table has 2^(m-1) * (m-1) entries."""
ALL_ORDERS_MEMBERS = 8
"""Up to here every cycle can be listed: 7! / 2 of them."""


def rtt_ns(member: MemberFacts) -> int | None:
    """The member's round trip to the rendezvous in whole nanoseconds."""
    return None if member.rendezvous_rtt_s is None else round(member.rendezvous_rtt_s * 1e9)


def by_rtt_and_name(members: Sequence[MemberFacts]) -> tuple[MemberFacts, ...]:
    """Members in the canonical order of the last tie-break; unknown RTTs last."""
    return tuple(sorted(members, key=lambda m: (m.rendezvous_rtt_s is None, rtt_ns(m) or 0, m.name)))


@dataclass(frozen=True)
class Costs:
    """Symmetric matrices over members in canonical order; cost and separation in nanoseconds, or where
    `timed` is false in relayed edges and zeros.
    """

    timed: bool
    paths: tuple[tuple[Path, ...], ...]
    cost: tuple[tuple[int, ...], ...]
    separation: tuple[tuple[int, ...], ...]

    def of_ring(self, order: Sequence[int]) -> tuple[int, int]:
        """(cost, separation) round the cycle; two members make two edges, one makes none."""
        edges = list(zip(order, [*order[1:], order[0]], strict=True))
        return sum(self.cost[a][b] for a, b in edges), sum(self.separation[a][b] for a, b in edges)

    def among(self, members: Sequence[int]) -> Costs:
        """The prices between some of the members, in the order given."""
        paths = tuple(tuple(self.paths[a][b] for b in members) for a in members)
        cost, separation = (
            tuple(tuple(matrix[a][b] for b in members) for a in members)
            for matrix in (self.cost, self.separation)
        )
        return Costs(self.timed, paths, cost, separation)


@dataclass(frozen=True)
class Cycle:
    """A ring as member indices from the smallest, in the smaller direction."""

    order: tuple[int, ...]
    proven: bool


def edge_costs(members: Sequence[MemberFacts]) -> Costs:
    """Price every pair: r_A + r_B if relayed (the literal path), |r_A - r_B| if direct (its lower bound)."""
    rtts = [rtt_ns(member) for member in members]
    known = [rtt for rtt in rtts if rtt is not None]
    timed = len(known) == len(rtts)
    size = range(len(members))
    paths = tuple(
        tuple(Path.DIRECT if a == b else expected_path(members[a], members[b]) for b in size) for a in size
    )
    if not timed:
        count = tuple(tuple(int(path is Path.RELAYED) for path in row) for row in paths)
        return Costs(False, paths, count, tuple((0,) * len(members) for _ in size))
    separation = tuple(tuple(abs(a - b) for b in known) for a in known)
    cost = tuple(
        tuple(known[a] + known[b] if paths[a][b] is Path.RELAYED else separation[a][b] for b in size)
        for a in size
    )
    return Costs(True, paths, cost, separation)


class PathTable:
    """Held and Karp's table: the best path from any member, through any set of the others, to `base`.

    `cost[mask, j]`, `separation[mask, j]`: int64 of shape [2^(m-1), m-1]; bit and column j stand for
    `others[j]`. Pairs are minimised lexicographically, which addition preserves.
    """

    def __init__(self, costs: Costs, base: int) -> None:
        import numpy as np

        self._np: Any = np
        self.base = base
        self.others = [member for member in range(len(costs.cost)) if member != base]
        both = (np.asarray(matrix, dtype=np.int64) for matrix in (costs.cost, costs.separation))
        (self._near_c, self._far_c), (self._near_s, self._far_s) = (
            (matrix[self.others, base], matrix[np.ix_(self.others, self.others)]) for matrix in both
        )
        size = len(self.others)
        self.cost = np.full((1 << size, size), np.iinfo(np.int64).max // 4)
        self.separation = np.full((1 << size, size), np.iinfo(np.int64).max // 4)
        self._fill(size)

    def _fill(self, size: int) -> None:
        np = self._np
        self.cost[0], self.separation[0] = self._near_c, self._near_s
        masks = np.arange(1 << size)
        members = np.zeros(1 << size, dtype=np.int64)
        for bit in range(size):
            members += masks >> bit & 1
        for count in range(1, size):
            level = masks[members == count]
            for first in range(size):
                through = level[level >> first & 1 == 1]
                rest = through ^ (1 << first)
                cost = self.cost[rest, first][:, None] + self._far_c[first]
                separation = self.separation[rest, first][:, None] + self._far_s[first]
                old_cost, old_separation = self.cost[through], self.separation[through]
                better = (cost < old_cost) | ((cost == old_cost) & (separation < old_separation))
                self.cost[through] = np.where(better, cost, old_cost)
                self.separation[through] = np.where(better, separation, old_separation)

    def ring_costs(self) -> Any:
        """Cost of the cheapest cycle through base and each set of the others: int64 of shape [2^(m-1)]."""
        np = self._np
        size = len(self.others)
        masks = np.arange(1 << size)
        best = np.full(1 << size, np.iinfo(np.int64).max // 4)
        best[0] = 0
        for first in range(size):
            through = masks[masks >> first & 1 == 1]
            cost = self.cost[through ^ (1 << first), first] + self._near_c[first]
            best[through] = np.minimum(best[through], cost)
        return best

    def smallest_cycle(self, through: int | None = None) -> tuple[int, ...]:
        """The cheapest cycle through a set of the others (all, unless given) from base; of equals the
        smallest sequence of indices.
        """
        order, left = [self.base], (1 << len(self.others)) - 1 if through is None else through
        to_next = list(zip(self._near_c.tolist(), self._near_s.tolist(), strict=True))
        while left:
            step = min(
                (int(self.cost[rest, j]) + to_next[j][0], int(self.separation[rest, j]) + to_next[j][1], j)
                for j in range(len(self.others))
                if (rest := left & ~(1 << j)) != left
            )[2]
            order.append(self.others[step])
            left ^= 1 << step
            to_next = list(zip(self._far_c[step].tolist(), self._far_s[step].tolist(), strict=True))
        return tuple(order)


def cheapest_cycle(costs: Costs, members: Sequence[MemberFacts], anchor: int) -> Cycle:
    """The ring's order over members in canonical order; beyond the exact size good, not proven."""
    size = len(members)
    if size <= 3:  # there is only one cycle
        return Cycle(tuple(range(size)), True)
    if size <= EXACT_MEMBERS:
        return Cycle(_exact_cycle(costs), True)
    starts = [list(range(size)), alternation(members, anchor)]
    best = min((improved(costs, start) for start in starts), key=costs.of_ring)
    return Cycle(smaller_direction(best), False)


@lru_cache(maxsize=64)
def _exact_cycle(costs: Costs) -> tuple[int, ...]:
    """Remembered, because remedies and advice ask again about the same places on the map."""
    return PathTable(costs, 0).smallest_cycle()


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
