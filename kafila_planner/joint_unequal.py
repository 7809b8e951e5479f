"""Joint plans where blocks are unequal: order and division couple, so a good plan, a bound and the gap.

The bound lets blocks be cut anywhere and go to anyone: a member pays for every byte at its best rate. The
plan comes from the most promising teams, each on its cheapest ring in both directions with an exact
division, until no other team's bound is smaller or TRIALS have been made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafila_planner.division import UnequalDivider
from kafila_planner.head import Placement
from kafila_planner.joint import Found, Teams
from kafila_planner.objective import Objective
from kafila_planner.placement import directions
from kafila_planner.problem import Problem
from kafila_planner.reach import ReachTable

TRIALS = 100
STEPS = 400
"""Divisions solved on the way, for all trials together."""
GRID = 32


class UnequalSearch:
    """The bounded joint search for unequal blocks."""

    def __init__(self, problem: Problem, goal: Objective) -> None:
        self._problem, self._goal, self.teams = problem, goal, Teams(problem)
        self._divider = UnequalDivider(problem.chain, problem.seats)
        self._steps = STEPS

    def best(self, heads: Sequence[int], below: float) -> tuple[Found | None, float]:
        """The best plan found with a value under `below`, and a value that no plan can be under."""
        import numpy as np

        if not heads:
            return None, below
        parts = [(head, self.teams.with_head(head)) for head in heads]
        bounds = np.concatenate([self._bounds_s(head, numbers) for head, numbers in parts])
        head_of = np.concatenate([np.full(len(numbers), head) for head, numbers in parts])
        number_of = np.concatenate([numbers for _, numbers in parts])
        winner: Found | None = None
        smallest = below
        self._steps = STEPS
        for trial, pick in enumerate(np.argsort(bounds, kind="stable")):
            bound = float(bounds[pick])
            if bound >= below or trial == TRIALS:
                smallest = min(smallest, bound)
                break
            number = int(number_of[pick])
            found, exact = self._trial(number, int(head_of[pick]))
            smallest = min(smallest, found.value if found and exact else bound)
            if found and found.value < below:
                winner, below = found, found.value
        return winner, min(smallest, below)

    def _bounds_s(self, head: int, numbers: Any) -> Any:
        """For each set, a value that no plan with this head can be under; infinite where none exists."""
        import numpy as np

        chain, seats = self._problem.chain, self._problem.seats
        fixed_s = [seat.price.stage_s(0, 0, place == head) for place, seat in enumerate(seats)]
        byte_s = [
            1 / seat.price.bytes_per_s + seat.price.block_overhead_s / max(chain.read_bytes) for seat in seats
        ]
        most = [self._most_bytes(seat, seat == head) for seat in range(len(seats))]
        total, least = float(chain.read_before[-1]), float(min(chain.read_bytes))
        tops = (fixed + each * size for fixed, each, size in zip(fixed_s, byte_s, most, strict=True))
        slowest = max(*tops, 1e-9)
        grid = [np.inf]
        if self._goal.weight:
            grid = [*np.geomspace(slowest * 1e-3, slowest, GRID), np.inf]
        best, floor = np.full(len(numbers), np.inf), 0.0
        for bound in grid:
            within = [
                min(size, (bound - fixed) / each)
                for size, fixed, each in zip(most, fixed_s, byte_s, strict=True)
            ]
            circuits = self.teams.circuit_s(numbers, fixed_s, byte_s, least, within, total)
            best = np.minimum(best, self._goal.value(circuits, floor))
            floor = float(bound)
        return best * (1 - 1e-9)  # sums of floats, in another order than the plan's

    def _most_bytes(self, seat: int, is_head: bool) -> float:
        """Bytes read of the largest range that fits the member."""
        chain = self._problem.chain
        ends = chain.furthest(self._problem.seats[seat].room_bytes, is_head)
        return max(chain.read_before[end] - chain.read_before[start] for start, end in enumerate(ends))

    def _trial(self, number: int, head: int) -> tuple[Found | None, bool]:
        """The best plan of a set with this head on the set's cheapest ring, in both directions; and
        whether that is the best of the set with this head on any ring.
        """
        cycles = directions(self._problem, self.teams.table.smallest_cycle(number))
        best: Found | None = None
        exact = self.teams.sizes[number] <= 3  # there is no other ring
        for cycle in cycles:
            place = cycle.index(head)
            found, complete = self.on_order((*cycle[place:], *cycle[:place]))
            exact = exact and complete
            if found and (best is None or found.value < best.value):
                best = found
        return best, exact and best is not None

    def wherever_it_fits(self) -> Found | None:
        """Where no cheapest ring fits: the best of some teams that fit in another order, if any does."""
        table = ReachTable(self._problem)
        teams = table.fitting_teams(self._problem.seating.anchor)[:TRIALS]
        orders = [order for team in teams if (order := table.fitting_order(team))]
        found = [one for order in orders if (one := self.on_order(order)[0])]
        return min(found, key=lambda one: one.value, default=None)

    def on_order(self, order: tuple[int, ...]) -> tuple[Found | None, bool]:
        """The best division over a directed order, and whether the steps allowed sufficed to prove it.

        First the smallest bottleneck, then the smallest circuit under ever smaller bottlenecks, while
        the smallest one leaves hope.
        """
        smallest_s = self._divider.smallest_bound(order)
        if smallest_s is None:
            return None, True
        network_s = self._problem.costs.of_ring(order)[0] / 2e9
        division = self._divider.cheapest_within(order, smallest_s)
        best: Found | None = None
        bound_s = float("inf")
        while division:
            circuit_s = division.sum_s + network_s
            value = self._goal.value(circuit_s, division.bottleneck_s)
            if best is None or value < best.value:
                best = Found(Placement(order, division), value)
            if bound_s < float("inf") and self._goal.value(circuit_s, smallest_s) >= best.value:
                return best, True
            if self._steps == 0:
                return best, False
            self._steps -= 1
            division = self._divider.cheapest_within(order, bound_s, strict=True)
            bound_s = division.bottleneck_s if division else 0.0
        return best, True
