"""A ring in one thread, seeded: stages with KV slots whose "model" is a pure function of the tokens they were shown.

Frames keep their order on every edge and take random numbers of ticks; whatever stage and edge are due next is drawn.
The slots are the real ones, with tokens in the place of keys and values. What a stage refuses goes to the engine.
"""

from __future__ import annotations

import random
import struct
from collections import deque
from dataclasses import dataclass, field, replace

import torch

from kafila_agent.edge.frame import Frame, Kind, StageTime, adoption_source
from kafila_agent.stage.errors import StageError, VoidFrame
from kafila_agent.stage.kv_cache import SlotCache

VOCAB = 4096  # of the model that is a hash; a script may name any token of the tokenizer
ALL_TOKENS = 49152
COMPUTE_NS = 2_000_000
SLOTS = 8


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


class TokenLayer:
    """A block's cache that holds the tokens themselves."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def seek(self, position: int) -> None:
        del self.tokens[position:]

    def require(self, position: int) -> None:
        """It keeps everything."""

    def copy_from(self, other: TokenLayer, position: int) -> None:
        self.tokens = other.tokens[:position]


@dataclass
class SimulatedRing:
    """``stages`` queues in a circle; queue 0 is the head's. ``script`` overrides the model: history -> token.

    ``lag``: the engine hears of a sampled token some ticks later, as it does from a thread. ``replays``: how often a
    frame that is void or settled at its stage by then comes to it once more.
    """

    stages: int = 3
    seed: int = 0
    script: dict[tuple[int, ...], int] | None = None
    lag: bool = False
    replays: float = 0.0
    now_s: float = 0.0
    launched: list[Frame] = field(default_factory=list)
    errors: list[StageError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.edges: list[deque] = [deque() for _ in range(self.stages + 2)]
        self.slots = [[SlotCache([TokenLayer()]) for _ in range(SLOTS)] for _ in range(self.stages)]
        self.passed: list[list[Frame]] = [[] for _ in range(self.stages)]
        self.engine = None

    def clock(self) -> float:
        return self.now_s

    def launch(self, frame: Frame) -> None:
        self.launched.append(frame)
        self.edges[0].append(frame)

    @property
    def idle(self) -> bool:
        return not any(self.edges)

    @property
    def owned(self) -> list[int]:
        """Sequences that own a slot of some stage."""
        return [slot.sequence for slots in self.slots for slot in slots if slot.sequence is not None]

    def step(self) -> None:
        """One frame moves on by one place."""
        self.now_s += 0.01
        place = self.random.choice([i for i, edge in enumerate(self.edges) if edge])
        item = self.edges[place].popleft()
        if place > self.stages:
            self.engine.on_sampled(*item)
        elif place == self.stages:
            self._return(item)
        else:
            self._visit(place, item)

    def run(self, steps: int = 1_000_000) -> None:
        """Until nothing moves."""
        while not self.idle and steps:
            self.step()
            steps -= 1

    def _visit(self, place: int, frame: Frame) -> None:
        if self.random.random() < self.replays and (old := self._overtaken(place, frame)):
            self._run(place, old)
        self.passed[place].append(frame)
        self._run(place, frame)

    def _overtaken(self, place: int, newer: Frame) -> Frame | None:
        """One that this stage has run and that ``newer``, of the same sequence, voids or finds settled."""
        slot = self.slots[place][newer.slot]
        if newer.kind is not Kind.TOKENS or slot.sequence != newer.sequence:
            return None
        own = [
            frame
            for frame in self.passed[place]
            if (frame.kind, frame.sequence) == (Kind.TOKENS, newer.sequence)
        ]
        void = [frame for frame in own if frame.fence < slot.fence and frame.position >= slot.floor]
        settled = [frame for frame in own if frame.fence == slot.fence and frame.position < slot.floor]
        old = [frames for frames in (void, settled) if frames]
        return self.random.choice(self.random.choice(old)) if old else None

    def _run(self, place: int, frame: Frame) -> None:
        try:
            self._work(self.slots[place], frame)
        except VoidFrame:
            return
        except StageError as error:
            self.errors.append(error)
            self.engine.on_error(frame, error)
            return
        self.edges[place + 1].append(self._onward(place, frame))

    def _work(self, slots: list[SlotCache], frame: Frame) -> None:
        slot = slots[frame.slot]
        if frame.kind is Kind.RELEASE:
            assert slot.sequence == frame.sequence
            slot.release(frame.sequence)
        elif frame.kind is Kind.ADOPT:
            source, holder = adoption_source(frame)
            slot.adopt(frame.sequence, frame.position, slots[source], holder)
        else:
            slot.seek(frame.sequence, frame.position, fence=frame.fence, floor=frame.floor)
            ids = struct.unpack(f"<{len(frame.payload) // 4}i", frame.payload)
            slot.layers[0].tokens += ids[-frame.rows :]
            slot.advance(frame.rows)

    def _onward(self, place: int, frame: Frame) -> Frame:
        """As a stage leaves it: its duration added; the last one before the head sends what it has seen so far."""
        times = (*frame.stage_times, StageTime(COMPUTE_NS, 0))
        if place < self.stages - 1 or frame.kind is not Kind.TOKENS:
            return replace(frame, stage_times=times)
        seen = self.slots[place][frame.slot].layers[0].tokens
        skipped = frame.rows - frame.rows_wanted
        return replace(
            frame,
            rows=frame.rows_wanted,
            position=frame.position + skipped,
            stage_times=times,
            payload=struct.pack(f"<{len(seen)}i", *seen),
        )

    def _return(self, frame: Frame) -> None:
        result = None
        if frame.rows_wanted:  # as if ``awaits`` had been asked before any that came back with it was sampled
            history = struct.unpack(f"<{len(frame.payload) // 4}i", frame.payload)
            result = self.engine.sample(frame, self.logits_of(frame, history)[None])
        if self.lag:
            self.edges[-1].append((frame, result))
        else:
            self.engine.on_sampled(frame, result)

    def logits_of(self, frame: Frame, history: tuple[int, ...]) -> torch.Tensor:
        """float32 [vocab]"""
        if self.script is None:
            return next_logits(history)
        return one_hot(self.script.get(history, 0))
