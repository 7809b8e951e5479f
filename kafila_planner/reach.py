"""Whether a model fits its members in any order at all: tables over sets of members, not over orders.

A set of members that closes the ring can take the blocks from some starts to the end and not from others;
a set that opens it can leave off at some blocks only. Which ones depends on the set alone, so all m! orders
are judged in 2^m steps, and a refusal is a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafila_planner.fields import MAX_BYTES
from kafila_planner.problem import Problem

_SETS_AT_ONCE = 4096
"""Rows of a table taken together: it bounds memory, not the answer."""


class ReachTable:
    """`next_start[set, block]`: if a stage begins at `block`, the first block at which it may end so that the
    members of the set, in some order, hold the rest of the chain exactly; int16 of shape [2^m, blocks],
    blocks + 1 where there is none. Bit j of a set's number is seat j.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np  # equal blocks, the common case, need none of it

        self._np: Any = np
        self._chain, self._seats = problem.chain, problem.seats
        self._everyone = (1 << len(self._seats)) - 1
        self._near: Any = np.asarray(self._chain.nearest())
        self._far: Any = np.asarray(
            [self._chain.furthest(seat.room_bytes, False) for seat in self._seats], dtype=np.int16
        )
        self._head_far = [self._chain.furthest(seat.room_bytes, True)[0] for seat in self._seats]
        self.next_start: Any = self._closing_sets()

    def _levels(self) -> Iterator[Any]:
        """Numbers of the sets of one member, of two, and so on."""
        sets = self._np.arange(self._everyone + 1)
        members = sum(sets >> seat & 1 for seat in range(len(self._seats)))
        for count in range(1, len(self._seats) + 1):
            yield sets[members == count]

    def _closing_sets(self) -> Any:
        np, blocks = self._np, self._chain.blocks
        table = np.empty((self._everyone + 1, blocks), dtype=np.int16)
        table[0] = np.where(self._near <= blocks, blocks, blocks + 1)
        starts, never = np.arange(blocks, dtype=np.int16), np.int16(blocks + 1)
        for level in self._levels():
            possible = np.zeros((len(level), blocks), dtype=bool)
            for seat, furthest in enumerate(self._far):
                sits = (level >> seat & 1 == 1).nonzero()[0]
                possible[sits] |= table[level[sits] ^ (1 << seat)] <= furthest
            nearest = np.full((len(level), blocks + 2), never)  # that can be held, at or after each block
            found = np.where(possible, starts, never)[:, ::-1]
            nearest[:, :blocks] = np.minimum.accumulate(found, axis=1)[:, ::-1]
            table[level] = nearest[:, self._near]
        return table

    def _opening_sets(self) -> Any:
        """`[set, block]`: whether the members of the set, one of them head, can leave off at this block;
        bool of shape [2^m, blocks + 1].
        """
        np, blocks = self._np, self._chain.blocks
        table = np.zeros((self._everyone + 1, blocks + 1), dtype=bool)
        ends = np.arange(blocks + 1, dtype=np.int16)
        begun = np.searchsorted(self._near, ends, side="right") - 1  # the last start that may end here
        # last[set, block]: the last start from which a stage may end at `block`, -1 where there is none
        last = np.full((self._everyone + 1, blocks + 1), -1, dtype=np.int16)
        furthest = np.concatenate([self._far, np.full((len(self._seats), 2), -1, dtype=np.int16)], axis=1)
        for level in self._levels():
            possible = np.zeros((len(level), blocks + 1), dtype=bool)
            for seat, head_far in enumerate(self._head_far):
                sits = (level >> seat & 1 == 1).nonzero()[0]
                possible[sits] |= furthest[seat][last[level[sits] ^ (1 << seat)]] >= ends
                possible[level == 1 << seat] = (ends >= self._near[0]) & (ends <= head_far)
            table[level] = possible
            latest = np.maximum.accumulate(np.where(possible, ends, np.int16(-1)), axis=1)
            last[level] = np.where(begun >= 0, latest[:, begun], np.int16(-1))
        return table

    def fitting_order(self, team: int | None = None) -> tuple[int, ...] | None:
        """Seat indices, head first, of an order of the set (of everyone, unless given) over which some
        division fits; None if there is none.
        """
        team = self._everyone if team is None else team
        for head, head_far in enumerate(self._head_far):
            if not team >> head & 1:
                continue
            start = int(self.next_start[team ^ (1 << head), 0])
            if start <= head_far:
                return (head, *self._closing_order(team ^ (1 << head), start))
        return None

    def fitting_teams(self, member: int) -> list[int]:
        """Every set with this member over which, in some order, some division fits."""
        np = self._np
        teams = np.arange(self._everyone + 1)
        teams = teams[teams >> member & 1 == 1]
        fits = np.zeros(len(teams), dtype=bool)
        for head, head_far in enumerate(self._head_far):
            closes = self.next_start[teams & ~(1 << head), 0] <= head_far
            fits |= closes & (teams >> head & 1 == 1)
        return [int(team) for team in teams[fits]]

    def _closing_order(self, left: int, start: int) -> list[int]:
        """The members of a set in an order that holds the blocks from `start` on."""
        order = []
        while left:
            seat, end = next(
                (seat, end)
                for seat in range(len(self._seats))
                if left >> seat & 1
                and (end := int(self.next_start[left ^ (1 << seat), start])) <= self._far[seat, start]
            )
            order.append(seat)
            left, start = left ^ (1 << seat), end
        return order

    def least_rooms(self) -> list[int | None]:
        """For each seat, the least room with which everything would fit in some order, all other rooms the
        same; None where no room that a machine may have would do.
        """
        np, chain = self._np, self._chain
        if chain.held_before[-1] > np.iinfo(np.int64).max // 2:
            return [None] * len(self._seats)
        opening, sets = self._opening_sets(), np.arange(1, self._everyone + 1)
        rooms: list[int | None] = []
        for seat in range(len(self._seats)):
            alone = self._everyone ^ (1 << seat)
            end = int(self.next_start[alone, 0])
            least = chain.needs_bytes(0, end, True) if end <= chain.blocks else MAX_BYTES + 1
            before = sets[sets >> seat & 1 == 0]
            for at in range(0, len(before), _SETS_AT_ONCE):
                part = before[at : at + _SETS_AT_ONCE]
                least = min(least, self._least_between(opening[part], alone ^ part))
            rooms.append(least if least <= MAX_BYTES else None)
        return rooms

    def _least_between(self, opening: Any, after: Any) -> int:
        """Bytes of the lightest range that begins where an opening set can leave off and ends where the
        rest, of the same row, can go on.
        """
        np, blocks = self._np, self._chain.blocks
        held = np.asarray([*self._chain.held_before, MAX_BYTES + self._chain.held_before[-1] + 1])
        ranges = held[self.next_start[after]] - held[:blocks]
        return int(ranges.min(where=opening[:, :blocks], initial=MAX_BYTES + 1))
