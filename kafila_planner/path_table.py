"""Held and Karp's table over all sets of members, in numpy: for many members, and for joint plans."""

from __future__ import annotations

from typing import Any

from kafila_planner.edge_cost import Costs


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
