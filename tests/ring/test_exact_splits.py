"""Every split of a model over a ring of members gives the tokens of one member alone, and those of transformers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from kafila_agent.edge.frame import Dtype, Frame, Kind, parse_frame
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.families import FAMILIES
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import StageExecutor
from kafila_agent.stage.loop import StageLoop

CHUNK = 8
BLOCKS = 6
CONTEXT = 64
NEW_TOKENS = 5
PROMPT_LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 29)  # 29: past the window of 8 before the prompt ends
SPLITS = [
    (0, *cuts, BLOCKS)
    for members in (1, 2, 3)
    for cuts in itertools.combinations(range(1, BLOCKS), members - 1)
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Ring:
    """Stages in one process; every frame between them is encoded and parsed as on the wire."""

    def __init__(self, stages: list[StageModel]) -> None:
        self.results: asyncio.Queue = asyncio.Queue()
        self.loops: list[StageLoop] = []
        for index, stage in enumerate(stages):
            executor = StageExecutor(stage, slots=1, context_tokens=CONTEXT, threads=1)
            following = (index + 1) % len(stages)
            self.loops.append(
                StageLoop(
                    executor,
                    epoch=1,
                    is_head=index == 0,
                    is_last=index == len(stages) - 1,
                    send=lambda frame, to=following: self.loops[to].submit(parse_frame(frame.encode())),
                    sample=lambda frame, logits: logits.clone(),
                    on_sampled=lambda frame, logits: self.results.put_nowait((frame, logits)),
                    on_error=lambda frame, error: self.results.put_nowait((frame, error)),
                )
            )

    async def step(self, sequence: int, position: int, ids: list[int], wanted: int) -> torch.Tensor | None:
        payload = torch.tensor(ids, dtype=torch.int32).numpy().tobytes()
        self.loops[0].submit(
            Frame(
                Kind.TOKENS,
                1,
                sequence,
                0,
                position,
                len(ids),
                Dtype.INT32,
                rows_wanted=wanted,
                payload=payload,
            )
        )
        frame, result = await self.results.get()
        if isinstance(result, Exception):
            raise result
        assert frame.position == position + len(ids) - wanted
        assert len(frame.stage_times) == len(self.loops) + 1
        return result

    async def greedy(self, sequence: int, prompt: list[int]) -> tuple[list[int], list[torch.Tensor]]:
        """Greedy tokens, and the logits that each was chosen from."""
        for start in range(0, len(prompt), CHUNK):
            rows = prompt[start : start + CHUNK]
            is_whole = start + len(rows) == len(prompt)
            logits = await self.step(sequence, start, rows, int(is_whole))
        tokens, all_logits, position = [], [], len(prompt)
        while True:
            assert logits is not None
            all_logits.append(logits[-1])
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == NEW_TOKENS:
                return tokens, all_logits
            logits = await self.step(sequence, position, tokens[-1:], 1)
            position += 1

    async def close(self) -> None:
        for loop in self.loops:
            await loop.close()


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 128, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


async def _run_split(load: Callable[[int, int], StageModel], split: tuple[int, ...]) -> list:
    ring = Ring([load(a, b) for a, b in itertools.pairwise(split)])
    try:
        return [await ring.greedy(sequence, prompt) for sequence, prompt in enumerate(_prompts())]
    finally:
        await ring.close()


def _loader(directory: Path, dtype: str) -> Callable[[int, int], StageModel]:
    manifest = read_manifest(directory)
    return lambda start, end: load_stage(manifest, start, end, is_head=start == 0, dtype=dtype)


def _reference(directory: Path, dtype: str) -> list[list[int]]:
    """transformers' own greedy tokens on the whole model."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
    tokens = []
    for prompt in _prompts():
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=transformers.GenerationConfig(
                do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
            ),
        )
        tokens.append(out[0, len(prompt) :].tolist())
    return tokens


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_float32_is_transformers_greedy(
    checkpoint: Callable[..., Path], family: str, tied: bool
) -> None:
    directory = checkpoint(family, tied=tied)
    alone = None
    for split in SPLITS:
        results = await _run_split(_loader(directory, "float32"), split)
        alone = alone or results
        for (tokens, logits), (expected, expected_logits) in zip(results, alone, strict=True):
            assert tokens == expected, split
            assert all(torch.equal(a, b) for a, b in zip(logits, expected_logits, strict=True)), split
    assert [tokens for tokens, _ in alone] == _reference(directory, "float32")


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_bfloat16_is_one_member_alone(checkpoint: Callable[..., Path], family: str) -> None:
    directory = checkpoint(family, tied=True)
    alone = None
    for split in SPLITS:
        results = await _run_split(_loader(directory, "bfloat16"), split)
        alone = alone or results
        for (tokens, logits), (expected, expected_logits) in zip(results, alone, strict=True):
            assert tokens == expected, split
            assert all(torch.equal(a, b) for a, b in zip(logits, expected_logits, strict=True)), split
    for (tokens, logits), expected in zip(alone, _reference(directory, "bfloat16"), strict=True):
        certain = next((i for i, row in enumerate(logits) if _near_tie(row)), len(tokens))
        assert tokens[:certain] == expected[:certain]


def _near_tie(logits: torch.Tensor) -> bool:
    """Whether the two best logits are within one bfloat16 step of each other."""
    best, second = logits.topk(2).values
    return bool(best - second <= torch.finfo(torch.bfloat16).eps * best.abs())
