"""A real model in a ring of real stages in this process, frames encoded and parsed on every edge."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from kafila_agent.edge.frame import Frame, parse_frame
from kafila_agent.head.engine import Engine, Judged
from kafila_agent.head.text import Text
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import StageExecutor
from kafila_agent.stage.loop import StageLoop

CONTEXT_TOKENS = 96
PREFILL_CHUNK = 8


class RealRing:
    """``ranges``: a stage's blocks each, the head first. Made on a running event loop. ``tokens``: by sequence.

    ``options`` are the engine's.
    """

    def __init__(
        self,
        directory: Path,
        ranges: list[tuple[int, int]],
        *,
        slots: int,
        context_tokens: int = CONTEXT_TOKENS,
        **options: object,
    ) -> None:
        manifest = read_manifest(directory)
        self.tokens: dict[int, list[int]] = {}
        self.errors: list[Exception] = []
        self.engine = Engine(
            lambda frame: self.loops[0].submit(frame),
            Text.from_model(manifest),
            epoch=3,
            slots=slots,
            context_tokens=context_tokens,
            prefill_chunk=PREFILL_CHUNK,
            **options,
        )
        self.loops = [self._loop(manifest, i, ranges, slots) for i in range(len(ranges))]

    def _loop(self, manifest, place: int, ranges: list[tuple[int, int]], slots: int) -> StageLoop:
        head = place == 0
        stage = load_stage(manifest, *ranges[place], is_head=head, dtype="float32")
        executor = StageExecutor(stage, slots=slots, context_tokens=self.engine.context_tokens, threads=1)
        return StageLoop(
            executor,
            epoch=3,
            is_head=head,
            is_last=place == len(ranges) - 1,
            send=lambda frame: self.loops[(place + 1) % len(ranges)].submit(parse_frame(frame.encode())),
            awaits=self.engine.awaits,
            sample=self.engine.sample if head else None,
            on_sampled=self._sampled if head else None,
            on_error=lambda frame, error: self.errors.append(error) or self.engine.on_error(frame, error),
        )

    def _sampled(self, frame: Frame, result: object) -> None:
        if isinstance(result, Judged) and frame.sequence in self.engine._runs:  # and not after its end
            self.tokens.setdefault(frame.sequence, []).append(result.sampled.token)
        self.engine.on_sampled(frame, result)

    async def close(self) -> None:
        for loop in self.loops:
            await loop.close()


class WholeModel:
    """transformers' own, in one piece, float32."""

    def __init__(self, directory: Path) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def greedy(self, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        """Its greedy continuation, the end included."""
        ids = torch.tensor([prompt])
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
        )
        return out[0, len(prompt) :].tolist()
