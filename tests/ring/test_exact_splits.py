"""Every split of a model over a ring gives the tokens of one member alone, and those of transformers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from kafila_agent.edge.frame import Dtype, Frame, Kind, parse_frame
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.families import FAMILIES
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import Admitted, StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop

CHUNK = 16
BLOCKS = 6
CONTEXT = 64
NEW_TOKENS = 2
PROMPT_LENGTHS = (
    1,
    2,
    CHUNK - 1,
    CHUNK + 1,
    29,
)  # the window of 8 is passed within a chunk and across chunks
SPLITS = [
    (0, *cuts, BLOCKS)
    for members in (1, 2, 3)
    for cuts in itertools.combinations(range(1, BLOCKS), members - 1)
]


# Families whose every split is run; the others differ from one of these in arithmetic only.
MAIN_FAMILIES = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma2",
    "gemma3_text",
    "phi3",
    "gpt_oss",
]
OTHER_FAMILIES = sorted(set(FAMILIES) - set(MAIN_FAMILIES))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def plain(stage: StageModel) -> StageExecutor:
    """A stage at work."""
    return StageExecutor(stage, slots=1, context_tokens=CONTEXT, threads=1)


class Remembering(StageExecutor):
    """A stage that several splits have in common computes once what comes to it in all of them, bit for bit.

    ``known``: what the stage made of all that had come to it of a sequence.
    """

    def __init__(self, stage: StageModel, known: dict[tuple, torch.Tensor]) -> None:
        super().__init__(stage, slots=1, context_tokens=CONTEXT, threads=1)
        self._known = known
        self._come: tuple = ()

    def run(self, admitted: Sequence[Admitted]) -> list[torch.Tensor]:
        (one,) = admitted
        before = self._come if one.position else ()
        self._come = (*before, bytes(payload_of(one.hidden)))
        if self._come not in self._known:
            (self._known[self._come],) = super().run(admitted)
        return [self._known[self._come]]


class Ring:
    """Stages in one process; every frame between them is encoded and parsed as on the wire."""

    def __init__(self, executors: list[StageExecutor]) -> None:
        self.results: asyncio.Queue = asyncio.Queue()
        self.loops: list[StageLoop] = []
        for index, executor in enumerate(executors):
            following = (index + 1) % len(executors)
            self.loops.append(
                StageLoop(
                    executor,
                    epoch=1,
                    is_head=index == 0,
                    is_last=index == len(executors) - 1,
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


def _prompts(lengths: tuple[int, ...]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, 128, (n,), generator=generator).tolist() for n in lengths]


def widths(family: str) -> dict[str, int]:
    """Of heads wide enough for the kernels of a whole step, where a family has such (``kernels/program.py``)."""
    return {"head_dim": 32} if FAMILIES[family].is_standard else {}


class Checkpoint:
    """One checkpoint in one dtype; a stage that several splits have in common is loaded once."""

    def __init__(self, directory: Path, dtype: str, prompt_lengths: tuple[int, ...]) -> None:
        self.directory, self.dtype = directory, dtype
        self.manifest = read_manifest(directory)
        self.prompts = _prompts(prompt_lengths)
        self._facts = describe_model(self.manifest, dtype, context_tokens=CONTEXT, concurrency=1)
        self._stages: dict[tuple[int, int], tuple[StageModel, dict]] = {}

    def stage(self, start: int, end: int) -> tuple[StageModel, dict[tuple, torch.Tensor]]:
        """A stage, and what it is known to make of what comes to it."""
        if (start, end) not in self._stages:
            stage = load_stage(self.manifest, start, end, is_head=start == 0, dtype=self.dtype)
            described = sum(self._facts.block_bytes[start:end]) + (start == 0) * self._facts.head_bytes
            assert stage.loaded_bytes == described
            self._stages[start, end] = stage, {}
        return self._stages[start, end]

    async def alone(self) -> list[tuple[list[int], list[torch.Tensor]]]:
        """What one member alone gives, as ``greedy``; nothing of it is remembered."""
        return await self.greedy((0, self.manifest.blocks), anew=True)

    async def greedy(
        self, split: tuple[int, ...], *, anew: bool = False
    ) -> list[tuple[list[int], list[torch.Tensor]]]:
        """For every prompt: the tokens that a ring divided by ``split`` gives, and the logits of each.

        ``anew``: whatever is known of its stages.
        """
        stages = [self.stage(*ends) for ends in itertools.pairwise(split)]
        ring = Ring([plain(stage) if anew else Remembering(stage, known) for stage, known in stages])
        try:
            return [await ring.greedy(sequence, prompt) for sequence, prompt in enumerate(self.prompts)]
        finally:
            await ring.close()

    async def greedy_for_every(
        self, splits: list[tuple[int, ...]]
    ) -> list[tuple[list[int], list[torch.Tensor]]]:
        """What one member alone gives, having checked that each of ``splits`` gives the same bits."""
        alone = await self.alone()
        for number, split in enumerate(splits):
            assert_same(split, await self.greedy(split, anew=number % 4 == 0), alone)
        return alone

    def transformers_greedy(self) -> list[list[int]]:
        """transformers' own greedy tokens on the whole model."""
        model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=getattr(torch, self.dtype)).eval()
        model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
        out = []
        for prompt in self.prompts:
            ids = torch.tensor([prompt])
            tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS)
            out.append(tokens[0, len(prompt) :].tolist())
        return out


@pytest.mark.parametrize("family", MAIN_FAMILIES)
async def test_every_split_in_float32_is_transformers(checkpoint: Callable[..., Path], family: str) -> None:
    model = Checkpoint(checkpoint(family, tied=True), "float32", (1, CHUNK + 1, 29))
    alone = await model.greedy_for_every(SPLITS)
    assert [tokens for tokens, _ in alone] == model.transformers_greedy()


@pytest.mark.parametrize("family", MAIN_FAMILIES)
async def test_every_prompt_length_with_an_untied_embedding(
    checkpoint: Callable[..., Path], family: str
) -> None:
    model = Checkpoint(checkpoint(family, tied=False), "float32", PROMPT_LENGTHS)
    alone = await model.greedy_for_every([(0, 1, 6), (0, 3, 6), (0, 2, 4, 6)])
    assert [tokens for tokens, _ in alone] == model.transformers_greedy()


@pytest.mark.parametrize("family", MAIN_FAMILIES)
async def test_every_split_in_bfloat16_is_one_member_alone(
    checkpoint: Callable[..., Path], family: str
) -> None:
    model = Checkpoint(checkpoint(family, tied=True, **widths(family)), "bfloat16", (29,))
    alone = await model.greedy_for_every(SPLITS)
    for (tokens, logits), expected in zip(alone, model.transformers_greedy(), strict=True):
        certain = next((i for i, row in enumerate(logits) if _near_tie(row)), len(tokens))
        assert tokens[:certain] == expected[:certain]


@pytest.mark.parametrize("family", OTHER_FAMILIES)
async def test_family_is_split_exactly(checkpoint: Callable[..., Path], family: str) -> None:
    model = Checkpoint(checkpoint(family, tied=True), "float32", (2, 29))
    alone = await model.greedy_for_every([(0, 2, 3, 6)])
    assert [tokens for tokens, _ in alone] == model.transformers_greedy()


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize(
    ("family", "tied"), [("llama", True), ("qwen3", False), ("gemma3_text", True), ("qwen3_moe", True)]
)
async def test_splits_of_packed_weights_are_one_member_alone(
    checkpoint: Callable[..., Path], family: str, tied: bool, quant: str
) -> None:
    model = Checkpoint(checkpoint(family, tied=tied, **widths(family)), f"bfloat16/{quant}", (2, 29))
    assert model.manifest.packings(quant)
    await model.greedy_for_every([(0, 1, 6), (0, 2, 4, 6)])


async def test_a_published_model_from_gguf_is_split_exactly(smollm2: Path) -> None:
    model = Checkpoint(smollm2, "bfloat16", (29,))
    alone = await model.alone()
    for split in ((0, 11, 30), (0, 7, 19, 30)):
        assert_same(split, await model.greedy(split, anew=True), alone)


def assert_same(split: tuple[int, ...], results: list, expected: list) -> None:
    """The same tokens, from logits equal to the last bit."""
    for (tokens, logits), (alone, alone_logits) in zip(results, expected, strict=True):
        assert tokens == alone, split
        assert all(torch.equal(a, b) for a, b in zip(logits, alone_logits, strict=True)), split


def _near_tie(logits: torch.Tensor) -> bool:
    """Whether the two best logits are within one bfloat16 step of each other."""
    best, second = logits.topk(2).values
    return bool(best - second <= torch.finfo(torch.bfloat16).eps * best.abs())
