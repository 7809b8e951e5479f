"""What an edge between each two members costs.

In whole nanoseconds, so that costs and separations compare exactly: floats miss ties, and ties are the rule (in
an all-relayed fleet every order costs 2 * sum of RTTs). Where an RTT is missing an edge costs 1 if relayed and 0
if direct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafila_planner.facts import MemberFacts
from kafila_planner.nat import expected_path
from kafila_planner.ring import Path


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
