"""Two links through whatever networks do, at once and again, by a seeded dice: no edge dies while the relay answers.

`make fuzz` tries many more seeds: KAFILA_WEATHER says how many.
"""

from __future__ import annotations

import os
import random

import pytest

from kafila_agent.edge.events import Closed
from kafila_agent.edge.link import LinkState
from tests.agent.edge.world import RENDEZVOUS, are_open, connect

SEEDS = range(int(os.environ.get("KAFILA_WEATHER", "10")))
TROUBLES = 4
FRAME_EVERY_S = 0.25
BLACKOUT_S = 2.0


class Weather:
    """The network of a world: two ordinary NATs, lines that lose, shuffle and copy, and what befalls them."""

    def __init__(self, world, seed: int):
        self.dice = random.Random(seed)
        self.world = world
        world.delay_s = self.dice.choice([0.002, 0.02, 0.08])
        self.loss, self.late, self.copied = (
            self.dice.choice([0.0, 0.0, share]) for share in (0.05, 0.2, 0.2)
        )
        self.late_s = self.dice.choice([0.03, 0.1])
        self.spoken_to: dict[object, set[object]] = {}
        self.parted: set[tuple[int, int]] = set()  # ways between two ends that are shut
        self.dark_until: dict[int, float] = {}
        self.relay_bytes, self.direct_bytes = (self.dice.choice([9000, narrow]) for narrow in (1300, 1400))
        self.deaf_until = 0.0
        world.lets, world.fates = self.lets, self.fates
        world.grants = lambda: world.now >= self.deaf_until

    def end_at(self, address: object) -> int | None:
        return next((i for i, end in enumerate(self.world.ends) if end.address == address), None)

    def lets(self, source, target, data) -> bool:
        here, there = self.end_at(source), self.end_at(target)
        self.spoken_to.setdefault(source, set()).add(target)
        if any(self.world.now < self.dark_until.get(i, 0.0) for i in (here, there)):
            return False
        if RENDEZVOUS in (source, target):
            return len(data) <= self.relay_bytes
        return (
            there is not None
            and len(data) <= self.direct_bytes
            and (here, there) not in self.parted
            and source in self.spoken_to.get(target, ())
        )

    def fates(self, source, target) -> list[float]:
        dice = self.dice
        if dice.random() < self.loss:
            return []
        late_s = dice.random() * self.late_s if dice.random() < self.late else 0.0
        return [late_s] * (2 if dice.random() < self.copied else 1)

    def trouble(self) -> str:
        """Something happens."""
        i = self.dice.randrange(2)
        what = self.dice.choice(
            ["flush", "blackout", "blackout and flush", "part", "part one way", "join", "narrow", "deaf"]
        )
        if "blackout" in what:
            self.dark_until[i] = self.world.now + BLACKOUT_S
        if "flush" in what:
            end = self.world.ends[self.dice.randrange(2)]
            end.address = (end.address[0], end.address[1] + 1)
        match what:
            case "part":
                self.parted = {(0, 1), (1, 0)}
            case "part one way":
                self.parted = {(i, 1 - i)}
            case "join":
                self.parted = set()
            case "narrow":
                self.relay_bytes, self.direct_bytes = 1300, self.dice.choice([1250, 9000])
            case "deaf":  # nobody gets an answer from the rendezvous's other half
                self.deaf_until = self.world.now + 8.0
        return f"{self.world.now:.1f} {what} {i}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_edge_dies_while_the_relay_answers(world_of, seed):
    world = world_of()
    weather = Weather(world, seed)
    one, two = connect(world)
    assert world.run(15.0, are_open(one, two))
    story = [
        f"delay {world.delay_s} loss {weather.loss} late {weather.late} {weather.late_s} dup {weather.copied}"
    ]
    sent: list[bytes] = []

    def flow(seconds: float) -> None:
        stop = world.now + seconds
        while world.now < stop:
            sent.append(b"%d" % len(sent) * 200)
            for end in world.ends:
                end.link.send_frame(sent[-1])
            world.run(FRAME_EVERY_S)

    for _ in range(TROUBLES):
        flow(weather.dice.choice([0.5, 4.0, 12.0]))
        story.append(weather.trouble())
    flow(12.0)
    assert not [e for end in world.ends for e in end.events if isinstance(e, Closed)], story
    weather.parted = set()
    assert world.run(30.0, lambda: one.frames == two.frames == sent), story
    assert world.run(60.0, lambda: one.link.state is two.link.state is LinkState.DIRECT), story
    assert not [e for end in world.ends for e in end.events if isinstance(e, Closed)], story
