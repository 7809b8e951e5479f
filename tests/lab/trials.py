"""What is to be run on a fleet, as data: each trial is one session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.lab.fleets import SMALL_ANCHOR, TWO_HOUSES, FleetFacts

DIVISIONS = ("planner", "memory", "uniform")
SESSIONS = 5
# What a member must fail to measure for the planner to fall to a tier, and to order by the count of relayed edges.
TIERS = {"throughput": ("bandwidth_bytes_per_s",), "working-set": ("bandwidth_bytes_per_s", "flops_per_s")}
_NO_RTT = ("rendezvous_rtt_s",)


@dataclass(frozen=True)
class Trial:
    """One session: ``purpose`` says which table it is for, ``number`` which of several alike it is.

    ``without`` names the member that stays away, ``hidden`` what the last member fails to measure. One user is
    measured before all of them are, and ``is_framed`` after them, too: they answer as long as both windows together.
    """

    purpose: str
    model: str
    division: str = "planner"
    objective: str = "throughput"
    number: int = 1
    without: str = ""
    hidden: tuple[str, ...] = ()
    is_framed: bool = False

    @property
    def key(self) -> str:
        """Names it among all trials of a fleet."""
        parts = (self.purpose, self.model, self.division, self.objective, self.without, *self.hidden)
        return "/".join([*(part for part in parts if part), str(self.number)])


def trials_of(fleet: FleetFacts, sessions: int = SESSIONS) -> Iterator[Trial]:
    """All trials of a fleet, those that are compared with each other next to each other."""
    if fleet is TWO_HOUSES:
        for number in range(1, sessions + 1):
            yield Trial("order", fleet.models[0], number=number)
            yield Trial("order", fleet.models[0], number=number, hidden=_NO_RTT)
        return
    if fleet is SMALL_ANCHOR:
        yield Trial("anchor", fleet.models[0])
        return
    for number in range(1, sessions + 1):
        for model in fleet.models:
            for division in DIVISIONS:
                framed = fleet.judges_own_rate and division == "planner"
                yield Trial("division", model, division, number=number, is_framed=framed)
    model = fleet.models[0]
    for number in range(1, sessions + 1):
        yield Trial("objective", model, objective="latency", number=number)
    for machine in fleet.machines:
        yield Trial("advice", model, without=machine.name)
    if fleet.uniform_cannot:
        for division in ("planner", "uniform"):
            yield Trial("refusal", fleet.uniform_cannot, division)
    if fleet.name == "lan":
        for fields in TIERS.values():
            yield Trial("tier", model, hidden=fields)
