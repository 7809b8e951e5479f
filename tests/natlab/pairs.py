"""Pairs of members in places of a kind: what the planner expects of each, and what happens between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafila_planner.facts import Behaviour
from kafila_planner.nat import expected_path, judge_path
from tests.natlab.world import Outcome, World

EI, AD, APD = Behaviour
# class: (short name, its site's round trip, the behaviours that RFC 4787 would give it)
CLASSES = {
    "permissive": ("P", 20, (EI, EI)),
    "addrfilter": ("A", 60, (EI, AD)),
    "ordinary": ("O", 115, (EI, APD)),
    "restrictive": ("R", 80, (APD, APD)),
    "sym_adf": ("Sa", 40, (APD, AD)),
    "sym_eif": ("Se", 100, (APD, EI)),
    "public": ("pub", 30, (EI, EI)),
    "firewall": ("fw", 50, (EI, APD)),
}


@dataclass(frozen=True)
class Row:
    """One pair: predicted, actual, and how long the edge took to open over a round trip of ``rtt_s``."""

    one: str
    other: str
    predicted: str
    actual: str
    took_s: float
    rtt_s: float
    why: str

    def __str__(self) -> str:
        wrong = "" if self.predicted == self.actual else f"   WRONG: {self.why}"
        names = f"{self.one:12}{self.other:12}"
        return f"{names}{self.predicted:10}{self.actual:10}{self.took_s:6.2f} s{wrong}"


async def try_pairs(world: World, pairs: Sequence[tuple[str, str]], epoch: int, **options: bool) -> list[Row]:
    """All at once; ``options`` are those of an endpoint's ``connect``."""
    rows = []
    outcomes = await world.connect(pairs, epoch=epoch, **options)
    for (one, other), outcome in zip(pairs, outcomes, strict=True):
        facts = [world.members[name].facts for name in (one, other)]
        path, why = judge_path(*facts)
        assert path is expected_path(*reversed(facts))
        rows.append(Row(one, other, path.value, outcome.path, outcome.took_s, _rtt_s(world, outcome), why))
    return rows


def _rtt_s(world: World, outcome: Outcome) -> float:
    """Each member is half its round trip away from the middle; who could not measure it is taken to be there."""
    return sum(world.members[edge.peer].reach.rendezvous_rtt_s or 0.0 for edge in outcome.edges)
