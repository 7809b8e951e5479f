"""A real model in a ring of real stages in this process, frames encoded and parsed on every edge."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
import transformers

from kafila_agent.edge.frame import Frame, parse_frame
from kafila_agent.head.engine import Engine, Judged
from kafila_agent.head.text import Text
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import read_manifest
from kafila_agent.pace import Pace, PacedExecutor
from kafila_agent.stage.executor import StageExecutor
from kafila_agent.stage.loop import StageLoop

CONTEXT_TOKENS = 96
PREFILL_CHUNK = 8


class RealRing:
    """``ranges``: a stage's blocks each, the head first. Made on a running event loop. ``tokens``: by sequence.

    Every hop takes ``delay_s``; ``paces`` are the machines that the stages stand for. ``options`` are the engine's.
    """

    def __init__(
        self,
        directory: Path,
        ranges: list[tuple[int, int]],
        *,
        slots: int,
        context_tokens: int = CONTEXT_TOKENS,
        dtype: str = "float32",
        delay_s: float = 0.0,
        paces: list[Pace] | None = None,
        **options: object,
    ) -> None:
        manifest = read_manifest(directory)
        self._dtype, self._delay_s, self._paces = dtype, delay_s, paces
        self.tokens: dict[int, list[int]] = {}
        self.errors: list[Exception] = []
        self.engine = Engine(
            lambda frame: self.loops[0].submit(frame),
            Text.from_model(manifest),
            epoch=3,
            slots=slots,
            context_tokens=context_tokens,
            **{"prefill_chunk": PREFILL_CHUNK} | options,
        )
        self.loops = [self._loop(manifest, i, ranges, slots) for i in range(len(ranges))]

    def _loop(self, manifest, place: int, ranges: list[tuple[int, int]], slots: int) -> StageLoop:
        head = place == 0
        stage = load_stage(manifest, *ranges[place], is_head=head, dtype=self._dtype)
        sizes = {"slots": slots, "context_tokens": self.engine.context_tokens, "threads": 1}
        if self._paces is None:
            executor = StageExecutor(stage, **sizes)
        else:
            facts = describe_model(
                manifest, self._dtype, context_tokens=sizes["context_tokens"], concurrency=slots
            )
            executor = PacedExecutor(stage, self._paces[place], facts, **sizes)
        return StageLoop(
            executor,
            epoch=3,
            is_head=head,
            is_last=place == len(ranges) - 1,
            send=lambda frame: self._carry(frame, (place + 1) % len(ranges)),
            awaits=self.engine.awaits,
            sample=self.engine.sample if head else None,
            on_sampled=self._sampled if head else None,
            on_error=lambda frame, error: self.errors.append(error) or self.engine.on_error(frame, error),
        )

    def _carry(self, frame: Frame, place: int) -> None:
        """Over the edge to a stage, in order."""
        data = frame.encode()
        if not self._delay_s:
            self.loops[place].submit(parse_frame(data))
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._delay_s, lambda: self.loops[place].submit(parse_frame(data)))

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

    def would_say(self, prompt: tuple[int, ...], tokens: list[int], max_tokens: int) -> bool:
        """Whether ``tokens`` are what ``greedy`` gives, at the cost of one token of it.

        Where not, ``greedy`` itself decides: rows together may prefer another of two tokens that are almost as likely.
        """
        with torch.inference_mode():
            logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        is_whole = len(tokens) == max_tokens or tokens[-1] == self.model.generation_config.eos_token_id
        return (is_whole and logits.argmax(-1).tolist() == tokens) or self.greedy(
            prompt, max_tokens
        ) == tokens
