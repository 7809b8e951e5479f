"""The fleets of the laboratory, as data: the machines that are emulated, and the networks they stand in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One member: the speed and the room of its device, and its place on the network.

    ``nat`` is a class of tests/natlab; ``lan`` names the member on whose LAN it stands, where that is not its own.
    """

    name: str
    device: str
    bandwidth_gb_per_s: float
    memory_gb: float
    tflops: float
    overhead_us: float
    nat: str
    rtt_ms: float = 0.0
    lan: str = ""


@dataclass(frozen=True)
class FleetFacts:
    """Who serves what. The first machine opens the sessions.

    Everything emulated runs ``time_scale`` times slower than it stands for, round trips included: what two cores
    need for a hop or a block is to be small beside it.
    """

    name: str
    title: str
    machines: tuple[Machine, ...]
    models: tuple[str, ...]
    time_scale: float
    context_tokens: int = 32768
    concurrency: int = 4
    tokens: int = 10
    uniform_cannot: str = ""  # a model of which a uniform division does not fit, and the planner's does
    judges_own_rate: bool = False  # whether a user may be slower among several than alone

    def machine(self, name: str) -> Machine:
        """The machine of that name."""
        return next(machine for machine in self.machines if machine.name == name)


def _tower(nat: str, rtt_ms: float = 0.0, lan: str = "") -> Machine:
    return Machine("tower", "RTX 4090", 946, 24, 165, 18, nat, rtt_ms, lan)


def _studio(nat: str, rtt_ms: float = 0.0, lan: str = "") -> Machine:
    return Machine("studio", "A100, a slice", 700, 40, 156, 20, nat, rtt_ms, lan)


def _shed(nat: str, rtt_ms: float = 0.0, lan: str = "") -> Machine:
    return Machine("shed", "A40, a slice", 620, 11.5, 75, 22, nat, rtt_ms, lan)


def _attic(nat: str, rtt_ms: float = 0.0, lan: str = "") -> Machine:
    return Machine("attic", "RTX A6000, a slice", 410, 48, 77, 25, nat, rtt_ms, lan)


def _laptop(nat: str, rtt_ms: float = 0.0, lan: str = "") -> Machine:
    return Machine("laptop", "MacBook Pro", 86, 18, 7, 60, nat, rtt_ms, lan)


LAN = FleetFacts(
    "lan",
    "LAN of four",
    (
        _tower("restrictive", 24),
        _attic("restrictive", lan="tower"),
        _shed("restrictive", lan="tower"),
        _laptop("restrictive", lan="tower"),
    ),
    models=("Qwen3-8B",),
    time_scale=10.0,
    uniform_cannot="Qwen3-14B",
)
US = FleetFacts(
    "us",
    "US Central, five networks",
    (
        _tower("ordinary", 14),
        _studio("permissive", 9),
        _shed("addrfilter", 22),
        _attic("ordinary", 31),
        _laptop("ordinary", 18),
    ),
    models=("Qwen3-8B", "Qwen3-14B", "Qwen3-32B"),
    time_scale=5.0,
    judges_own_rate=True,
)
WORLD = FleetFacts(
    "world",
    "Intercontinental, two of five co-located",
    (
        _tower("restrictive", 79),
        _studio("restrictive", 104),
        _shed("restrictive", 91),
        _attic("restrictive", lan="shed"),
        _laptop("restrictive", 115),
    ),
    models=("Qwen3-8B", "Qwen3-32B"),
    time_scale=4.0,
    tokens=6,
    uniform_cannot="Qwen3-32B",
)
FLEETS = {fleet.name: fleet for fleet in (LAN, US, WORLD)}

SMOKE = FleetFacts(
    "smoke",
    "Two machines on two networks",
    (_tower("ordinary", 10), _laptop("restrictive", 20)),
    models=("Qwen3-8B",),
    time_scale=1.0,
    context_tokens=512,
    concurrency=2,
    tokens=6,
)
# Fleets that need what the others do not: a head elsewhere than where the session was opened, and an order by cost.
SMALL_ANCHOR = FleetFacts(
    "small-anchor",
    "An anchor that cannot hold the head",
    (
        Machine("netbook", "a 3 GB card", 250, 3, 10, 25, "ordinary", 12),
        _studio("permissive", 9),
        _attic("ordinary", 31),
    ),
    models=("Qwen3-8B",),
    time_scale=4.0,
)
TWO_HOUSES = FleetFacts(
    "two-houses",
    "Two houses of two, whose names alternate",
    (
        Machine("a-north", "RTX 4090", 946, 24, 165, 18, "ordinary", 60),
        Machine("b-south", "RTX 4090", 946, 24, 165, 18, "ordinary", 80),
        Machine("c-north", "RTX 3090", 860, 24, 71, 18, "ordinary", lan="a-north"),
        Machine("d-south", "RTX 3090", 860, 24, 71, 18, "ordinary", lan="b-south"),
    ),
    models=("Qwen3-8B",),
    time_scale=4.0,
)
