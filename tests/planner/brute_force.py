"""The planner's answers by trying everything, from the JSON alone: it shares no code with the planner."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import Any

Json = dict[str, Any]
MARGIN = 0.05


class World:
    """A fleet's JSON with its defaults filled in, and the rules of seats, rooms, paths and costs."""

    def __init__(self, fleet: Json) -> None:
        model = fleet["model"]
        self.blocks: int = model["blocks"]
        self.anchor: str = fleet["anchor"]

        def each(key: str, default: Any = None) -> list[Any]:
            value = model.get(key, default)
            return value if isinstance(value, list) else [value] * self.blocks

        kv = each("kv_bytes_per_token_per_block")
        kept = each("kv_tokens_per_block", fleet["context_tokens"])
        weights = each("block_bytes")
        self.held = [w + b * t * fleet["concurrency"] for w, b, t in zip(weights, kv, kept, strict=True)]
        self.read = each("block_read_bytes", model["block_bytes"])
        self.attention = model.get("full_attention") or [True] * self.blocks
        self.head_held = model["head_bytes"]
        self.head_read = model.get("head_read_bytes", self.head_held)
        self.equal = len(set(self.held)) == len(set(self.read)) == 1 and all(self.attention)
        self.members = {member["name"]: member for member in fleet["members"]}
        self.seated = self._seats()
        self.tier = self._tier(self.seated)

    def room(self, name: str) -> int:
        return self.members[name].get("memory_bytes") or 0

    def _tier(self, names: list[str]) -> str:
        facts = [self.members[name] for name in names]
        if all(f.get("bandwidth_bytes_per_s") is not None and f.get("overhead_s") is not None for f in facts):
            return "cost-model"
        return "throughput" if all(f.get("flops_per_s") is not None for f in facts) else "working-set"

    def _seats(self) -> list[str]:
        names = [n for n in self.members if n == self.anchor or self.room(n) >= min(self.held)]
        while len(names) > sum(self.attention):
            tier = self._tier(names)
            key = {"cost-model": "bandwidth_bytes_per_s", "throughput": "flops_per_s"}.get(
                tier, "memory_bytes"
            )
            names.remove(
                min(
                    (n for n in names if n != self.anchor),
                    key=lambda n: (
                        self.members[n].get(key) or 0,
                        -(self.members[n].get("overhead_s") or 0),
                        self.room(n),
                        n,
                    ),
                )
            )
        return names

    def relayed(self, a: str, b: str) -> bool:
        x, y = self.members[a], self.members[b]
        independent = "endpoint-independent"
        if x.get("udp") is False or y.get("udp") is False:
            return True
        if x.get("relay_only") or y.get("relay_only"):
            return True
        if x.get("site") and x.get("site") == y.get("site"):
            return False
        if x.get("nat") and x.get("nat") == y.get("nat"):
            if x.get("hairpin_open") or y.get("hairpin_open"):
                return False
            if not (x.get("hairpin") and y.get("hairpin")):
                return True

        def accepts(m: Json) -> bool:
            by_address = m.get("mapping") == independent and m.get("filtering") == "address-dependent"
            return m.get("filtering") == independent or by_address

        return not (accepts(x) or accepts(y) or x.get("mapping") == y.get("mapping") == independent)

    def rtt(self, name: str) -> int | None:
        rtt_s = self.members[name].get("rendezvous_rtt_s")
        return None if rtt_s is None else round(rtt_s * 10**9)

    def ring_cost(self, ring: tuple[str, ...]) -> tuple[int, int]:
        timed = all(self.rtt(name) is not None for name in self.seated)
        cost = separation = 0
        for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
            if a == b:
                continue
            if not timed:
                cost += self.relayed(a, b)
                continue
            near, far = self.rtt(a), self.rtt(b)
            assert near is not None
            assert far is not None
            separation += abs(near - far)
            cost += near + far if self.relayed(a, b) else abs(near - far)
        return cost, separation

    def canonical(self, name: str) -> tuple[bool, int, str]:
        rtt = self.rtt(name)
        return (rtt is None, rtt or 0, name)

    def cycles(self, names: list[str]) -> list[tuple[str, ...]]:
        """Every cycle once, by rising (cost, separation, smallest cycle)."""
        first, *rest = sorted(names, key=self.canonical)
        rings = [(first, *order) for order in permutations(rest)]
        once = [r for r in rings if len(r) < 3 or self.canonical(r[1]) < self.canonical(r[-1])]
        return sorted(once, key=lambda r: (self.ring_cost(r), [self.canonical(name) for name in r]))

    def stage_s(self, name: str, start: int, end: int, is_head: bool) -> float:
        member, read = self.members[name], sum(self.read[start:end])
        if self.tier == "throughput":
            return read / member["flops_per_s"]
        fixed = member["overhead_s"] + (end - start) * member.get("block_overhead_s", 0.0)
        return fixed + (read + self.head_read * is_head) / member["bandwidth_bytes_per_s"]

    def needs(self, start: int, end: int, is_head: bool) -> int:
        return sum(self.held[start:end]) + self.head_held * is_head

    def divisions(self, ring: tuple[str, ...]) -> Iterator[tuple[float, float]]:
        """(bottleneck, sum) of every division that fits this ring, its first member the head."""
        for cuts in combinations(range(1, self.blocks), len(ring) - 1):
            ends = [0, *cuts, self.blocks]
            stages = [
                (n, a, b, i == 0) for i, (n, a, b) in enumerate(zip(ring, ends, ends[1:], strict=False))
            ]
            if all(self.needs(a, b, h) <= self.room(n) and any(self.attention[a:b]) for n, a, b, h in stages):
                costs = [self.stage_s(*stage) for stage in stages]
                yield max(costs), sum(costs)

    def rotations(self, cycle: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Every head, in both directions."""
        for way in (cycle, cycle[::-1]):
            for turn in range(len(way)):
                yield way[turn:] + way[:turn]

    def best_per_head(self, cycle: tuple[str, ...]) -> dict[str, tuple[float, float]]:
        best: dict[str, tuple[float, float]] = {}
        for ring in self.rotations(cycle):
            for merit in self.divisions(ring):
                best[ring[0]] = min(best.get(ring[0], merit), merit)
        return best

    def plan(self) -> tuple[tuple[str, ...], dict[str, tuple[float, float]]] | None:
        """The first cycle that fits (the cheapest, unless blocks are unequal) and its best per head."""
        for cycle in self.cycles(self.seated):
            if best := self.best_per_head(cycle):
                return cycle, best
            if self.equal:
                return None
        return None

    def joint_values(self, weight: float) -> dict[str, float]:
        """Per head, the smallest (1 - weight) * circuit + weight * bottleneck over all teams and orders."""
        best: dict[str, float] = {}
        others = [name for name in self.seated if name != self.anchor]
        for size in range(len(others) + 1):
            for team in combinations(others, size):
                for cycle in self.cycles([self.anchor, *team]):
                    network_s = self.ring_cost(cycle)[0] / 2e9
                    for ring in self.rotations(cycle):
                        for bottleneck, total in self.divisions(ring):
                            value = (1 - weight) * (total + network_s) + weight * bottleneck
                            best[ring[0]] = min(best.get(ring[0], value), value)
        return best


def kept_head(best: dict[str, Any], anchor: str) -> bool:
    """Whether the anchor stays head, given the best merit (or value) of every head that fits."""
    value = {head: merit[0] if isinstance(merit, tuple) else merit for head, merit in best.items()}
    return anchor in value and not min(value.values()) < value[anchor] * (1 - MARGIN)


def check_legal(world: World, plan: Json) -> None:
    """Everything a plan claims that can be recomputed from the fleet is so."""
    ring, stages, edges = plan["ring"], plan["stages"], plan["edges"]
    assert ring[0] == plan["head"]
    assert [stage["member"] for stage in stages] == ring
    assert sorted(ring + plan["unseated"]) == sorted(world.members)
    assert [stage["blocks"][0] for stage in stages] == [0, *(stage["blocks"][1] for stage in stages[:-1])]
    assert stages[-1]["blocks"][1] == world.blocks
    for place, stage in enumerate(stages):
        start, end = stage["blocks"]
        assert any(world.attention[start:end])
        assert stage["needs_bytes"] == world.needs(start, end, place == 0) <= stage["room_bytes"]
        assert stage["room_bytes"] == world.room(stage["member"])
        if plan["tier"] == "cost-model":
            assert stage["predicted_s"] == world.stage_s(stage["member"], start, end, place == 0)
        else:
            assert stage["predicted_s"] is None
    hops = [] if len(ring) == 1 else list(zip(ring, [*ring[1:], ring[0]], strict=True))
    assert [(edge["from"], edge["to"]) for edge in edges] == hops
    assert [edge["path"] for edge in edges] == [
        "relayed" if world.relayed(*hop) else "direct" for hop in hops
    ]
    assert plan["relayed_edges"] == sum(world.relayed(*hop) for hop in hops)
