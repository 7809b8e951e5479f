"""A tiny llama over real stages: every answer is transformers' own, however many are under way."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from kafila_agent.head.generation import Cancelled, Finished, Request
from kafila_agent.head.sampler import Sampling
from tests.agent.head.models import give_tokenizer
from tests.agent.head.real_ring import RealRing, WholeModel

GREEDY = Sampling(temperature=0)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(checkpoint):
    return WholeModel(checkpoint("llama"))


@pytest.fixture
async def make_ring(checkpoint, tmp_path):
    rings = []

    def make(*ranges: tuple[int, int], slots: int = 2) -> RealRing:
        ring = RealRing(give_tokenizer(checkpoint("llama"), tmp_path / "llama"), list(ranges), slots=slots)
        rings.append(ring)
        return ring

    yield make
    for ring in rings:
        await ring.close()


async def read(generation) -> Finished:
    async for event in generation:
        last = event
    return last


def prompts(seed: int, lengths: list[int]) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [tuple(draw.randrange(4, 128) for _ in range(length)) for length in lengths]


@pytest.mark.parametrize("ranges", [[(0, 6)], [(0, 1), (1, 6)], [(0, 2), (2, 5), (5, 6)]], ids=len)
async def test_greedy_answers_are_transformers_own_with_more_users_than_slots(make_ring, whole, ranges):
    ring = make_ring(*ranges, slots=3)
    asked = prompts(1, [1, 7, 8, 9, 17, 40])
    generations = [ring.engine.generate(Request(prompt, 12, GREEDY)) for prompt in asked]
    finished = await asyncio.gather(*map(read, generations))
    assert ring.errors == []
    for number, (prompt, end) in enumerate(zip(asked, finished, strict=True), start=1):
        expected = whole.greedy(prompt, 12)
        assert ring.tokens[number] == expected
        assert end.completion_tokens == len(expected)
        assert end.reason == ("stop" if expected[-1] == 2 else "length")


async def test_seeded_answers_repeat_alone_in_company_and_over_any_split(make_ring):
    (prompt, *others) = prompts(2, [11, 20, 5, 9])
    request = Request(prompt, 24, Sampling(seed=6, temperature=0.8, top_p=0.95, frequency_penalty=0.3))
    alone, split = make_ring((0, 6)), make_ring((0, 3), (3, 6), slots=4)
    await read(alone.engine.generate(request))
    company = [split.engine.generate(Request(other, 30, Sampling())) for other in others]
    await asyncio.gather(*map(read, company), read(split.engine.generate(request)))
    assert split.tokens[4] == alone.tokens[1]
    await read(alone.engine.generate(Request(prompt, 24, Sampling(seed=7))))
    assert alone.tokens[2] != alone.tokens[1]


async def test_those_that_leave_do_not_touch_those_that_stay(make_ring, whole):
    ring = make_ring((0, 4), (4, 6), slots=2)
    asked = prompts(3, [30, 12, 9, 25, 33, 8])
    generations = [ring.engine.generate(Request(prompt, 20, GREEDY, ignore_eos=True)) for prompt in asked]
    await anext(generations[0])
    for gone in (0, 2, 3):
        generations[gone].cancel()
    stayed = (1, 4, 5)
    await asyncio.gather(*(read(generations[i]) for i in stayed))
    for i in stayed:
        expected = whole.greedy(asked[i], 20)
        assert ring.tokens[i + 1][: len(expected)] == expected
    with pytest.raises(Cancelled):
        await read(generations[2])
    assert ring.errors == []
    again = ring.engine.generate(Request(asked[0], 10, GREEDY))
    await read(again)
    assert ring.tokens[7] == whole.greedy(asked[0], 10)


async def test_measured_steps_have_a_visit_for_each_stage_and_one_for_the_heads_end(make_ring):
    ring = make_ring((0, 3), (3, 6))
    finished = await read(ring.engine.generate(Request((5, 6, 7), 10, GREEDY, ignore_eos=True)))
    measured = ring.engine.measured()
    assert len(measured.stage_compute_s) == 3
    assert all(0 < seconds < 1 for seconds in measured.stage_compute_s)
    assert 0 <= finished.measures.network_share < 1
    assert finished.measures.compute_s <= finished.measures.circuit_s
    assert finished.measures.tokens_per_s > 1
