"""Joint plans: who sits, in what order, with what division and which head, decided together.

A ring with one plain user does not feel its bottleneck t but its circuit T (all stages, half of every
round trip). Minimised is (1 - w) * T + w * t over every team that includes the anchor.

With equal blocks a division does not depend on the order, so one table of cheapest rings over all teams
(Held and Karp) and one greedy filling per bound on t are enough, and the answer is exact. T only falls as
the bound rises, so a whole interval of bounds [a, b] is worth at least (1 - w) * T(b) + w * a: intervals
are halved, all teams at once, and those that cannot win are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafila_planner.division import EqualDivider
from kafila_planner.head import Placement
from kafila_planner.objective import Objective
from kafila_planner.order import cheapest_cycle
from kafila_planner.path_table import PathTable
from kafila_planner.problem import Problem

_ROUNDING = 1 + 1e-12
"""Circuits closer than this differ by the order of their sums only."""


class Teams:
    """Every set of members that includes the anchor; arrays over sets have 2^(m-1) entries.

    Bit j of a set's number stands for `table.others[j]`.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        self.table = PathTable(problem.costs, problem.seating.anchor)
        numbers = np.arange(1 << len(self.table.others))
        self.sits: Any = np.ones((len(problem.seats), len(numbers)), dtype=bool)
        for bit, member in enumerate(self.table.others):
            self.sits[member] = numbers >> bit & 1 == 1
        self.sizes = self.sits.sum(axis=0)
        self.network_s = self.table.ring_costs() / 2e9

    def with_head(self, head: int) -> Any:
        """Numbers of the sets that include this member."""
        return self.sits[head].nonzero()[0]

    def members(self, number: int) -> list[int]:
        """Member indices of a set, in canonical order."""
        return [int(member) for member in self.sits[:, number].nonzero()[0]]

    def circuit_s(
        self,
        numbers: Any,
        fixed_s: Sequence[float],
        unit_s: Sequence[float],
        least: float,
        most: Sequence[float],
        total: float,
    ) -> Any:
        """Smallest circuit of each set, infinite where it cannot hold the model.

        Each member sitting costs `fixed_s` and `unit_s` for every unit (a block, or a byte); it holds
        `least` to `most` units, all together `total`. The cheapest units are filled first.
        """
        import numpy as np

        sits = self.sits[:, numbers]
        left = total - least * self.sizes[numbers]
        circuit = self.network_s[numbers] + (np.asarray(fixed_s) + least * np.asarray(unit_s)) @ sits
        for member in np.argsort(unit_s, kind="stable"):
            if most[member] < least:
                circuit[sits[member]] = np.inf
                continue
            more = np.minimum(left, most[member] - least) * sits[member]
            left = left - more
            circuit += more * unit_s[member]
        circuit[(left > 1e-9 * total) | (left < 0)] = np.inf
        return circuit


@dataclass(frozen=True)
class Found:
    """A joint plan's placement (seat indices) and its value."""

    placement: Placement
    value: float


class EqualSearch:
    """The exact joint search for equal blocks."""

    def __init__(self, problem: Problem, goal: Objective) -> None:
        self._problem, self._goal, self.teams = problem, goal, Teams(problem)
        self._divider = EqualDivider(problem.chain, problem.seats)
        read = problem.chain.read_bytes[0]
        self._block_s = [seat.price.block_s(read) for seat in problem.seats]

    def columns(self, head: int) -> list[list[float]]:
        """Every member's cost of 0, 1, ... blocks, with this head."""
        return [self._divider.column(seat, seat == head) for seat in range(len(self._problem.seats))]

    def circuits_s(self, numbers: Any, head: int, bound_s: float) -> Any:
        """Smallest circuit of each set with no stage above the bound."""
        columns = self.columns(head)
        most = [bisect_right(column, bound_s) - 1 for column in columns]
        fixed_s = [column[0] if column else 0.0 for column in columns]
        return self.teams.circuit_s(numbers, fixed_s, self._block_s, 1, most, self._problem.chain.blocks)

    def best(self, heads: Sequence[int], below: float) -> tuple[Found | None, float]:
        """The plan of the smallest value under `below` with one of these heads, if there is one; and a
        value that no such plan can be under.
        """
        goal = self._goal
        winner: tuple[int, int, float] | None = None
        todo: deque[tuple[int, list[float], int, int, Any, Any]] = deque()
        for head in heads:
            bounds = sorted({cost for column in self.columns(head) for cost in column[1:]})
            if bounds:
                numbers = self.teams.with_head(head)
                todo.append((head, bounds, 0, len(bounds) - 1, numbers, None))
        while todo:
            head, bounds, low, high, numbers, floor_s = todo.popleft()
            if floor_s is not None:
                hopeful = goal.value(floor_s, bounds[low]) < below
                numbers = numbers[hopeful]
            if not len(numbers):
                continue
            circuits = self.circuits_s(numbers, head, bounds[high])
            values = goal.value(circuits, bounds[high])
            first = int(values.argmin())
            if values[first] < below:
                below, winner = float(values[first]), (int(numbers[first]), head, bounds[high])
            middle = (low + high) // 2
            if low < high:
                todo.append((head, bounds, low, middle, numbers, circuits))
            if middle + 1 < high:
                todo.append((head, bounds, middle + 1, high - 1, numbers, circuits))
        found = None if winner is None else self.found(*winner)
        return found, found.value if found else below

    def found(self, number: int, head: int, bound_s: float) -> Found:
        """The placement of a set with this head within this bound, on the set's cheapest ring."""
        members = self.teams.members(number)
        columns = {seat: self._divider.column(seat, seat == head) for seat in members}
        counts = self._divider.fill(columns, bound_s)
        assert counts is not None
        cycle = cheapest_ring_of(self._problem, members)
        place = cycle.index(head)
        order = (*cycle[place:], *cycle[:place])
        division = self._divider.priced(order, counts)
        circuit_s = division.sum_s + self._problem.costs.of_ring(order)[0] / 2e9
        return Found(Placement(order, division), self._goal.value(circuit_s, division.bottleneck_s))

    def front(self) -> list[Found]:
        """Every pair (circuit, bottleneck) that no other plan beats in both, by rising circuit and falling
        bottleneck. For the objective `latency`: values are circuits.

        A tighter bound never shortens a circuit: what a set came to last is what it costs at least.
        """
        import numpy as np

        heads = range(len(self._problem.seats))
        numbers = [self.teams.with_head(head) for head in heads]
        floors_s = [self.circuits_s(numbers[head], head, np.inf) for head in heads]
        points: list[Found] = []
        bound_s = np.inf
        while True:
            best = (np.inf, 0, 0)
            promising = [floor_s.argmin(keepdims=True) for floor_s in floors_s]
            for head, first in [(head, True) for head in heads] + [(head, False) for head in heads]:
                picked = promising[head] if first else (floors_s[head] < best[0]).nonzero()[0]
                if not len(picked):
                    continue
                circuits_s = self.circuits_s(numbers[head][picked], head, bound_s)
                floors_s[head][picked] = circuits_s
                shortest = int(circuits_s.argmin())
                if circuits_s[shortest] < best[0]:
                    best = (float(circuits_s[shortest]), int(numbers[head][picked[shortest]]), head)
            if np.isinf(best[0]):
                return points
            point = self.found(best[1], best[2], bound_s)
            if points and point.value <= points[-1].value * _ROUNDING:
                points.pop()  # as quick a circuit, with a smaller bottleneck
            points.append(point)
            bound_s = np.nextafter(point.placement.division.bottleneck_s, 0)


def cheapest_ring_of(problem: Problem, members: Sequence[int]) -> tuple[int, ...]:
    """The cheapest ring of some of the members, by the rule that orders a whole fleet."""
    costs = problem.costs.among(members)
    chosen = [problem.seating.members[member] for member in members]
    cycle = cheapest_cycle(costs, chosen, members.index(problem.seating.anchor))
    return tuple(members[index] for index in cycle.order)
