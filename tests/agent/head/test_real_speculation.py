"""Guesses and kept prefixes over real stages: every answer is what a ring without them gives, and transformers too."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch

from kafila_agent.edge.frame import Kind
from kafila_agent.head.generation import EngineFailed, Finished, Request
from kafila_agent.head.sampler import Sampling
from kafila_agent.head.speculation import Speculation
from kafila_agent.kernels.library import native_kernels
from kafila_agent.model.kv import MAX_ROLLBACK_TOKENS
from kafila_agent.stage.kv_cache import BlockCache
from kafila_agent.stage.waiting import WaitingFrames
from tests.agent.head.guessers import FixedWindow, Guesser, always_right, always_wrong, sometimes, wrong_every
from tests.agent.head.models import give_tokenizer
from tests.agent.head.real_ring import PREFILL_CHUNK, RealRing, WholeModel

GREEDY = Sampling(temperature=0)
SEEDED = Sampling(seed=3, temperature=0.8, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3)
WINDOWS = [1, 2, 3, 8, 24]
BLOCKS = 6
SPLITS = [[(0, BLOCKS)], *([(0, k), (k, BLOCKS)] for k in range(1, BLOCKS))]
TOKENS = 20
PLAIN = Speculation(most_rows=0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
async def make_ring(checkpoint, tmp_path):
    rings = []

    def make(*ranges: tuple[int, int], family: str = "llama", slots: int = 2, **options: object) -> RealRing:
        ring = RealRing(
            give_tokenizer(checkpoint(family), tmp_path / family), list(ranges), slots=slots, **options
        )
        rings.append(ring)
        return ring

    yield make
    for ring in rings:
        await ring.close()


async def read(generation) -> tuple[list[int], Finished]:
    tokens: list[int] = []
    async for event in generation:
        tokens += [each.token for each in event.tokens]
    return tokens, event


def prompts(seed: int, lengths: list[int]) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(4, 128) for _ in range(length)) for length in lengths]


def requests(seed: int) -> list[Request]:
    one, two = prompts(seed, [11, 20])
    return [
        Request(one, TOKENS, GREEDY, ignore_eos=True),
        Request(two, TOKENS, SEEDED, ignore_eos=True),
        Request((*one, 9), TOKENS, SEEDED, stop=("a",)),
    ]


def plain_answers(directory: Path, dtype: str) -> list[list[int]]:
    """What one stage without guesses answers."""

    async def ask() -> list[list[int]]:
        ring = RealRing(directory, [(0, BLOCKS)], slots=1, dtype=dtype, speculation=PLAIN)
        answers = [(await read(ring.engine.generate(request)))[0] for request in requests(5)]
        await ring.close()
        return answers

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def truth(checkpoint, tmp_path_factory):
    """For the greedy one that is transformers' own."""
    directory = give_tokenizer(checkpoint("llama"), tmp_path_factory.mktemp("truth") / "llama")
    answers = plain_answers(directory, "float32")
    greedy = WholeModel(directory).greedy(requests(5)[0].prompt, TOKENS)
    assert answers[0][: len(greedy)] == greedy
    return answers


class Guesses:
    """A window that a test may change, over the truth."""

    def __init__(self, truth: list[list[int]]) -> None:
        self.answers = {request.prompt: tokens for request, tokens in zip(requests(5), truth, strict=True)}
        self.guesser = Guesser(self.answers, always_wrong)
        self.speculation = FixedWindow(1, self.guesser)

    def set(self, rows: int, twist) -> None:
        self.speculation.rows, self.guesser.twist = rows, twist


async def answers_of(ring: RealRing) -> list[list[int]]:
    answers = await asyncio.gather(*(read(ring.engine.generate(request)) for request in requests(5)))
    return [tokens for tokens, _ in answers]


@pytest.mark.parametrize("ranges", SPLITS, ids=str)
async def test_every_split_and_window_gives_the_same_tokens(make_ring, truth, ranges):
    guesses = Guesses(truth)
    ring = make_ring(*ranges, speculation=guesses.speculation)
    for rows in WINDOWS:
        guesses.set(rows, sometimes(random.Random(rows), 0.8) if rows % 2 else wrong_every(rows))
        assert await answers_of(ring) == truth
    assert ring.errors == []
    assert any(loop.void_frames for loop in ring.loops) or len(ranges) == 1


@pytest.mark.skipif(native_kernels() is None, reason="no C compiler: no rows go together")
@pytest.mark.parametrize("ranges", [[(0, 6)], [(0, 2), (2, 4), (4, 6)]], ids=str)
async def test_lines_whose_rows_go_together_give_the_same_tokens(checkpoint, tmp_path, monkeypatch, ranges):
    """In bfloat16, of a model of which compiled kernels take the rows of several frames at once."""
    directory = give_tokenizer(checkpoint("llama", head_dim=32), tmp_path / "llama")
    truth = await asyncio.to_thread(plain_answers, directory, "bfloat16")
    take, taken = WaitingFrames.take, []

    def take_and_tell(self):
        taken.append(group := take(self))
        return group

    monkeypatch.setattr(WaitingFrames, "take", take_and_tell)
    guesses = Guesses(truth)
    ring = RealRing(directory, ranges, slots=2, dtype="bfloat16", speculation=guesses.speculation)
    for rows in WINDOWS:
        for twist in (always_right, wrong_every(rows), sometimes(random.Random(rows), 0.8)):
            guesses.set(rows, twist)
            assert await answers_of(ring) == truth
    await ring.close()
    assert ring.errors == []
    lines = [group for group in taken if len({each.frame.slot for each in group}) < len(group)]
    kinds = {each.frame.kind for group in lines for each in group}
    assert kinds == {Kind.TOKENS} if len(ranges) == 1 else {Kind.TOKENS, Kind.HIDDEN}


async def test_what_was_cropped_is_never_read(make_ring, truth, monkeypatch):
    seek = BlockCache.seek

    def seek_and_poison(self, position):
        seek(self, position)
        for buffer in (self.keys, self.values):
            buffer[:, :, position - self._base :] = float("nan")

    monkeypatch.setattr(BlockCache, "seek", seek_and_poison)
    guesses = Guesses(truth)
    ring = make_ring((0, 2), (2, 4), (4, 6), speculation=guesses.speculation)
    guesses.set(8, wrong_every(4))
    assert await answers_of(ring) == truth


@pytest.mark.parametrize("kept", [0, 1], ids=["no crop", "crop off by one"])
async def test_stages_that_crop_wrongly_are_found_out(make_ring, truth, monkeypatch, kept):
    seek = BlockCache.seek

    def seek_wrongly(self, position):
        if 0 < position < self._length:
            position = min(position + kept, self._length) if kept else self._length
        seek(self, position)

    monkeypatch.setattr(BlockCache, "seek", seek_wrongly)
    guesses = Guesses(truth)
    ring = make_ring((0, 2), (2, 4), (4, 6), speculation=guesses.speculation)
    guesses.set(8, wrong_every(4))
    try:
        assert await answers_of(ring) != truth
    except EngineFailed:
        assert ring.errors


async def test_windows_of_attention_are_cropped_as_far_as_any_line_goes(make_ring):
    """A window of 8 tokens, in a context that is longer than the stages keep."""
    prompt = prompts(6, [600])[0]
    request = Request(prompt, 90, GREEDY, ignore_eos=True)
    options = {"family": "gemma3_text", "context_tokens": 1024, "rollback_tokens": MAX_ROLLBACK_TOKENS}
    options["prefill_chunk"] = 60  # how the prompt comes is not what is asked here
    truth, _ = await read(make_ring((0, 6), **options, speculation=PLAIN).engine.generate(request))
    window = FixedWindow(24, Guesser({prompt: truth}, wrong_every(30)))
    ring = make_ring((0, 3), (3, 6), **options, speculation=window)
    assert (await read(ring.engine.generate(request)))[0] == truth
    assert ring.errors == []


# Kept prefixes


def whole_chunks(tokens: int) -> int:
    return tokens // PREFILL_CHUNK * PREFILL_CHUNK


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
async def test_the_next_turn_computes_only_what_is_new(make_ring, family):
    first, more, other, last = prompts(7, [21, 13, 17, 9])
    ring, fresh = make_ring((0, 2), (2, 6), family=family), make_ring((0, 6), family=family, slots=1)

    async def same(prompt: tuple[int, ...], kept: int) -> tuple[int, ...]:
        request = Request(prompt, 6, GREEDY, ignore_eos=True)
        tokens, finished = await read(ring.engine.generate(request))
        assert finished.cached_tokens == kept
        await read(
            fresh.engine.generate(Request(last, 1, GREEDY))
        )  # of what its one slot held nothing is left then
        expected, anew = await read(fresh.engine.generate(request))
        assert (tokens, anew.cached_tokens) == (expected, 0)
        return (*prompt, *tokens)

    second = (*await same(first, 0), *more)
    third = (*await same(second, whole_chunks(len(first))), *more)
    await same(third, whole_chunks(len(second)))
    await same((*first, 5), whole_chunks(len(first)))  # a fork: the slot of the long one is left alone
    await same((*third, 6), whole_chunks(len(third)))
    await same(other, 0)
    assert ring.errors == []


async def test_a_beginning_is_copied_from_a_slot_that_is_in_use(make_ring):
    beginning, one, two = prompts(8, [24, 9, 10])
    ring = make_ring((0, 2), (2, 6))
    long = Request((*beginning, *one), 40, GREEDY, ignore_eos=True)
    reading = ring.engine.generate(long)
    await anext(reading)
    short = Request((*beginning, *two), 12, GREEDY, ignore_eos=True)
    tokens, finished = await read(ring.engine.generate(short))
    assert finished.cached_tokens == len(beginning)
    await read(reading)
    alone = make_ring((0, 6), slots=1)
    assert tokens == (await read(alone.engine.generate(short)))[0]
    assert ring.tokens[1] == (await read(alone.engine.generate(long)))[0]
    assert ring.errors == []


async def test_chats_that_push_each_other_out_all_get_their_own_answers(make_ring):
    draw = random.Random(9)
    ring, fresh = make_ring((0, 3), (3, 6), slots=2), make_ring((0, 6), slots=1)
    chats = prompts(9, [10, 18, 30])
    kept = 0
    for _ in range(14):
        chat = draw.randrange(3)
        prompt = chats[chat][:60]
        request = Request(prompt, 4, draw.choice([GREEDY, SEEDED]), ignore_eos=True)
        tokens, finished = await read(ring.engine.generate(request))
        kept += finished.cached_tokens
        assert tokens == (await read(fresh.engine.generate(request)))[0]
        chats[chat] = (*prompt, *tokens, *draw.choices(range(4, 128), k=5))
    assert kept > 0
    assert ring.errors == []
