"""Dividing the chain of blocks over an order of members: exactly (paper, section V-B), or by two baselines.

Every divider answers one question: `divide(order)`, seat indices from the head round the ring, gives the
division it makes, or None where rooms do not allow it. Costs are computed once per (seat, range) and only
compared, so minima are exact: no tolerance anywhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from math import fsum
from typing import Any, Protocol

from kafila_planner.cost import Seat
from kafila_planner.memory import Chain

Order = Sequence[int]


class DivisionRule(StrEnum):
    """How blocks are divided; all but `planner` are there to be compared with."""

    PLANNER = "planner"
    UNIFORM = "uniform"
    MEMORY = "memory"


@dataclass(frozen=True)
class Division:
    """Block counts and stage costs, in the order that was divided (head first)."""

    counts: tuple[int, ...]
    costs_s: tuple[float, ...]

    @property
    def bottleneck_s(self) -> float:
        """The slowest stage."""
        return max(self.costs_s)

    @property
    def sum_s(self) -> float:
        """One token's compute round the ring, rounded once: the same from every head, so ties are seen."""
        return fsum(self.costs_s)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Block ranges [start, end), in the same order."""
        ends = list(accumulate(self.counts, initial=0))
        return list(pairwise(ends))


class Divider(Protocol):
    """One rule, for one chain and one set of seats."""

    def divide(self, order: Order) -> Division | None:
        """The rule's division for this order, head first; None if it does not fit."""


def priced(chain: Chain, seats: Sequence[Seat], order: Order, counts: Sequence[int]) -> Division:
    """The division with these counts, each stage at its price."""
    ends = list(accumulate(counts, initial=0))
    costs = (
        seats[seat].price.stage_s(count, chain.stage_read_bytes(start, start + count), place == 0)
        for place, (seat, count, start) in enumerate(zip(order, counts, ends, strict=False))
    )
    return Division(tuple(counts), tuple(costs))


def undersized_places(chain: Chain, seats: Sequence[Seat], order: Order, division: Division) -> list[int]:
    """Places in the order whose member has not the room for its range."""
    return [
        place
        for place, (seat, (start, end)) in enumerate(zip(order, division.ranges, strict=True))
        if chain.needs_bytes(start, end, place == 0) > seats[seat].room_bytes
    ]


class EqualDivider:
    """Algorithm 1 for equal blocks: O(km log km), then the smallest sum within the bottleneck."""

    def __init__(self, chain: Chain, seats: Sequence[Seat]) -> None:
        self._chain, self._seats = chain, seats
        self._block_s = [seat.price.block_s(chain.read_bytes[0]) for seat in seats]
        self._cheapest_first = sorted(range(len(seats)), key=self._block_s.__getitem__)
        self._columns: dict[tuple[int, bool], list[float]] = {}

    def column(self, seat: int, is_head: bool) -> list[float]:
        """Costs of holding 0, 1, ... blocks, up to the member's limit: non-decreasing."""
        key = (seat, is_head)
        if key not in self._columns:
            chain, price = self._chain, self._seats[seat].price
            room = self._seats[seat].room_bytes - (chain.head_held_bytes if is_head else 0)
            limit = min(chain.blocks, max(room // chain.held_bytes[0], 0))
            read = chain.read_bytes[0]
            self._columns[key] = [price.stage_s(n, n * read, is_head) for n in range(limit + 1)]
        return self._columns[key]

    def divide(self, order: Order) -> Division | None:
        """Smallest bottleneck, then smallest sum. The order matters only for who is head."""
        columns = {seat: self.column(seat, place == 0) for place, seat in enumerate(order)}
        bound = self._smallest_bound(list(columns.values()))
        if bound is None:
            return None
        counts = self.fill(columns, bound)
        assert counts is not None
        return self.priced(order, counts)

    def priced(self, order: Order, counts: dict[int, int]) -> Division:
        """The division of these counts by seat, in this order."""
        return priced(self._chain, self._seats, order, [counts[seat] for seat in order])

    def _smallest_bound(self, columns: list[list[float]]) -> float | None:
        """The bottleneck of the best division is some member's cost of some count: search those."""
        if any(len(column) < 2 for column in columns):
            return None
        bounds = sorted({cost for column in columns for cost in column[1:]})
        low, high = 0, len(bounds) - 1
        if not self._feasible(columns, bounds[high]):
            return None
        while low < high:
            middle = (low + high) // 2
            if self._feasible(columns, bounds[middle]):
                high = middle
            else:
                low = middle + 1
        return bounds[low]

    def _feasible(self, columns: list[list[float]], bound: float) -> bool:
        """Everyone can hold a block, and all together all blocks, within the bound and their rooms."""
        most = [bisect_right(column, bound) - 1 for column in columns]
        return min(most) >= 1 and sum(most) >= self._chain.blocks

    def fill(self, columns: dict[int, list[float]], bound: float) -> dict[int, int] | None:
        """Counts by seat with the smallest sum among those within the bound: one block each, the rest
        to whom a further block costs least (an exchange argument). None if the bound is too tight.
        """
        counts = dict.fromkeys(columns, 1)
        left = self._chain.blocks - len(columns)
        for seat in self._cheapest_first:
            if seat in columns:
                most = bisect_right(columns[seat], bound) - 1
                if most < 1:
                    return None
                more = min(left, most - 1)
                counts[seat] += more
                left -= more
        return counts if left == 0 else None


class UnequalDivider:
    """Prefix dynamic programs over cost cells: minimax first, then the smallest sum within it.

    Algorithm 1's one pass is not exact here: it can strand a large block on a slow member.
    """

    def __init__(self, chain: Chain, seats: Sequence[Seat]) -> None:
        import numpy as np  # equal blocks, the common case, need none of it

        self._np: Any = np
        self._chain, self._seats = chain, seats
        self._read = np.asarray(chain.read_before)
        self._nearest = np.asarray([*chain.nearest(), chain.blocks + 1])[:, None]
        self._cells: dict[tuple[int, bool], Any] = {}

    def cells(self, seat: int, is_head: bool) -> Any:
        """Cost of the range [start, end) at [start, end], infinite where it is no legal range or does
        not fit the room; float64 of shape [blocks + 1, blocks + 1].
        """
        key = (seat, is_head)
        if key not in self._cells:
            np, chain, price = self._np, self._chain, self._seats[seat].price
            points = np.arange(chain.blocks + 1)
            furthest = np.asarray([*chain.furthest(self._seats[seat].room_bytes, is_head), 0])[:, None]
            legal = (points >= self._nearest) & (points <= furthest)
            read = self._read[None, :] - self._read[:, None]
            cost = price.stage_s(points[None, :] - points[:, None], read, is_head)
            self._cells[key] = np.where(legal, cost, np.inf)
        return self._cells[key]

    def divide(self, order: Order) -> Division | None:
        """Smallest bottleneck, then smallest sum, for this very order."""
        bound = self.smallest_bound(order)
        return None if bound is None else self.cheapest_within(order, bound)

    def smallest_bound(self, order: Order) -> float | None:
        """The smallest possible slowest stage; None where rooms allow no division."""
        np = self._np
        reached = np.full(self._chain.blocks + 1, np.inf)
        reached[0] = 0.0
        for place, seat in enumerate(order):
            reached = np.maximum(reached[:, None], self.cells(seat, place == 0)).min(axis=0)
        return None if np.isinf(reached[-1]) else float(reached[-1])

    def cheapest_within(self, order: Order, bound: float, strict: bool = False) -> Division | None:
        """The smallest sum among divisions with no stage above the bound (below it, if strict)."""
        np = self._np
        reached = np.full(self._chain.blocks + 1, np.inf)
        reached[0] = 0.0
        starts = []
        for place, seat in enumerate(order):
            cells = self.cells(seat, place == 0)
            within = cells < bound if strict else cells <= bound
            totals = reached[:, None] + np.where(within, cells, np.inf)
            starts.append(totals.argmin(axis=0))
            reached = totals.min(axis=0)
        if np.isinf(reached[-1]):
            return None
        counts, end = [], self._chain.blocks
        for column in reversed(starts):
            counts.append(end - int(column[end]))
            end = int(column[end])
        return priced(self._chain, self._seats, order, counts[::-1])


class UniformDivider:
    """GPipe's rule: equal counts, the first stages take the remainder."""

    def __init__(self, chain: Chain, seats: Sequence[Seat]) -> None:
        self._chain, self._seats = chain, seats

    def divide(self, order: Order) -> Division | None:
        """Equal counts; None if a member's range exceeds its room."""
        each, more = divmod(self._chain.blocks, len(order))
        counts = [each + (place < more) for place in range(len(order))]
        return _if_it_fits(self._chain, self._seats, order, counts)


class ProportionalDivider:
    """Counts in proportion to weights, one per seat: largest remainder, at least one each.

    With rooms as weights this is exo's rule. `less_head`: the head's resident bytes are taken off the
    head's weight first (tier `working-set`).
    """

    def __init__(
        self, chain: Chain, seats: Sequence[Seat], weights: Sequence[int], *, less_head: bool
    ) -> None:
        self._chain, self._seats, self._weights, self._less_head = chain, seats, weights, less_head

    def divide(self, order: Order) -> Division | None:
        """Proportional counts; None if a member's range exceeds its room."""
        return _if_it_fits(self._chain, self._seats, order, self.counts(order))

    def counts(self, order: Order) -> list[int]:
        """Block counts in the given order, in exact integer arithmetic."""
        weights = [self._weights[seat] for seat in order]
        if self._less_head:
            weights[0] = max(weights[0] - self._chain.head_held_bytes, 0)
        if not any(weights):
            weights = [1] * len(order)
        blocks, total = self._chain.blocks, sum(weights)
        counts = [max(blocks * weight // total, 1) for weight in weights]

        def shortfall(place: int) -> int:
            return blocks * weights[place] - counts[place] * total

        while sum(counts) < blocks:
            counts[max(range(len(order)), key=shortfall)] += 1
        while sum(counts) > blocks:
            counts[min((p for p in range(len(order)) if counts[p] > 1), key=shortfall)] -= 1
        return counts


def _if_it_fits(chain: Chain, seats: Sequence[Seat], order: Order, counts: Sequence[int]) -> Division | None:
    division = priced(chain, seats, order, counts)
    legal = chain.full_attention is None or all(
        any(chain.full_attention[start:end]) for start, end in division.ranges
    )
    return division if legal and not undersized_places(chain, seats, order, division) else None
