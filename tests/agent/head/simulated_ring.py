"""A ring in one thread, seeded: stages with KV slots whose "model" is a pure function of the tokens they were shown.

Frames keep their order on every edge and take random numbers of ticks; whatever stage and edge are due next is drawn.
A stage that is shown a wrong position, a foreign slot or a gap fails the test.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass, field, replace

import torch

from kafila_agent.edge.frame import Frame, Kind, StageTime

VOCAB = 4096  # of the model that is a hash; a script may name any token of the tokenizer
ALL_TOKENS = 49152
COMPUTE_NS = 2_000_000


def next_logits(history: tuple[int, ...]) -> torch.Tensor:
    """The model: float32 [VOCAB], a function of the whole history and nothing else."""
    generator = torch.Generator().manual_seed(hash(history) & 0xFFFFFFFF)
    return 4 * torch.randn(VOCAB, generator=generator)


def greedy(history: tuple[int, ...]) -> int:
    """What plain decoding of ``history`` alone would choose."""
    return int(next_logits(history).argmax())


def one_hot(token: int) -> torch.Tensor:
    """Logits that leave no choice: float32 [ALL_TOKENS]."""
    logits = torch.full((ALL_TOKENS,), -100.0)
    logits[token] = 100.0
    return logits


@dataclass
class SimulatedRing:
    """``stages`` queues in a circle; queue 0 is the head's. ``script`` overrides the model: history -> token."""

    stages: int = 3
    seed: int = 0
    script: dict[tuple[int, ...], int] | None = None
    now_s: float = 0.0
    launched: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.edges: list[deque[Frame]] = [deque() for _ in range(self.stages + 1)]
        self.slots: list[dict[int, tuple[int, list[int]]]] = [{} for _ in range(self.stages)]
        self.engine = None

    def clock(self) -> float:
        return self.now_s

    def launch(self, frame: Frame) -> None:
        self.launched.append(frame)
        self.edges[0].append(frame)

    @property
    def idle(self) -> bool:
        return not any(self.edges)

    def step(self) -> None:
        """One frame moves on by one place."""
        self.now_s += 0.01
        place = self.random.choice([i for i, edge in enumerate(self.edges) if edge])
        frame = self.edges[place].popleft()
        if place == self.stages:
            self._return(frame)
        else:
            self._work(place, frame)
            self.edges[place + 1].append(self._onward(place, frame))

    def run(self, steps: int = 1_000_000) -> None:
        """Until nothing moves."""
        while not self.idle and steps:
            self.step()
            steps -= 1

    def _work(self, place: int, frame: Frame) -> None:
        slots = self.slots[place]
        if frame.kind is Kind.RELEASE:
            assert slots.pop(frame.slot)[0] == frame.sequence
            return
        owner, tokens = slots.setdefault(frame.slot, (frame.sequence, []))
        assert owner == frame.sequence, f"slot {frame.slot} is {owner}'s, not {frame.sequence}'s"
        assert frame.position == len(tokens)
        tokens += struct.unpack(f"<{frame.rows}i", frame.payload)

    def _onward(self, place: int, frame: Frame) -> Frame:
        """As a stage leaves it: its duration added; the last one before the head keeps only the rows wanted."""
        skipped = frame.rows - frame.rows_wanted if place == self.stages - 1 else 0
        return replace(
            frame,
            rows=frame.rows - skipped,
            position=frame.position + skipped,
            stage_times=(*frame.stage_times, StageTime(COMPUTE_NS, 0)),
        )

    def _return(self, frame: Frame) -> None:
        if not frame.rows_wanted:
            self.engine.on_sampled(frame, None)
            return
        logits = self.logits_of(frame, self._history(frame))
        self.engine.on_sampled(frame, self.engine.sample(frame, logits[None]))

    def logits_of(self, frame: Frame, history: tuple[int, ...]) -> torch.Tensor:
        """float32 [vocab]"""
        if self.script is None:
            return next_logits(history)
        return one_hot(self.script.get(history, 0))

    def _history(self, frame: Frame) -> tuple[int, ...]:
        owner, tokens = self.slots[-1].get(frame.slot, (None, []))
        if owner != frame.sequence:
            return ()
        return tuple(tokens[: frame.position + frame.rows])
