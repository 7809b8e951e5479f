"""A draft model beside the ring: what it guesses changes when tokens come and nothing else."""

from __future__ import annotations

import asyncio

import pytest
import torch

from kafila_agent.head.draft import DraftModel
from kafila_agent.head.generation import Request
from kafila_agent.head.measure import Tempo
from kafila_agent.head.sampler import Sampling
from kafila_agent.head.sequence import Event, Sequence
from kafila_agent.head.speculation import Speculation
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.executor import StageExecutor
from tests.agent.head.models import give_tokenizer
from tests.agent.head.real_ring import RealRing, WholeModel
from tests.agent.head.test_real_speculation import prompts, read

GREEDY = Sampling(temperature=0)
CONTEXT_TOKENS = 96


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
async def make_draft():
    made: list[DraftModel] = []

    def make(directory, on_guess) -> DraftModel:
        manifest = read_manifest(directory)
        model = load_stage(manifest, 0, manifest.blocks, is_head=True, dtype="float32")
        executor = StageExecutor(model, slots=2, context_tokens=CONTEXT_TOKENS, threads=1)
        made.append(DraftModel(executor, on_guess, vocab_size=128))
        return made[-1]

    yield make
    for draft in made:
        await draft.close()


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def decoding(number: int, slot: int, prompt: tuple[int, ...], first: int) -> Sequence:
    sequence = Sequence(number, prompt, 40, slot=slot)
    sequence.handle(Event.ADMIT)
    sequence.chunk(len(prompt))
    sequence.handle(Event.FIRST_TOKEN)
    sequence.commit(first)
    return sequence


async def test_it_guesses_what_it_would_say_itself_and_goes_back_when_it_was_wrong(checkpoint, make_draft):
    model = WholeModel(checkpoint("llama"))
    told: list[Sequence] = []
    draft = make_draft(checkpoint("llama"), told.append)
    lines = [decoding(n, n, prompt, 50 + n) for n, prompt in enumerate(prompts(3, [12, 20]))]
    for line in lines:
        draft.guess(line, 6)
    await until(lambda: all(line.guesses == 6 for line in lines))
    for line in lines:
        own = model.greedy((*line.prompt, *line.output), 6)
        assert line.line().guesses[: len(own)] == own
    one, other = lines
    right = one.line().guesses[0]
    one.commit(right)
    one.commit((one.line().guesses[0] + 1) % 128)  # not what it said
    assert one.guesses == 0
    draft.guess(one, 4)
    await until(lambda: one.guesses == 4)
    own = model.greedy((*one.prompt, *one.output), 4)
    assert one.line().guesses[: len(own)] == own
    assert other.guesses == 6
    await until(lambda: len(told) == 16)
    assert 0 < draft.proposal_s < 5


async def test_a_slot_that_changes_hands_forgets_who_had_it(checkpoint, make_draft):
    model = WholeModel(checkpoint("llama"))
    draft = make_draft(checkpoint("llama"), lambda sequence: None)
    for number, prompt in enumerate(prompts(4, [20, 9])):
        line = decoding(number, 0, prompt, 60)
        draft.guess(line, 3)
        await until(lambda line=line: line.guesses == 3)
        own = model.greedy((*prompt, 60), 3)
        assert line.line().guesses[: len(own)] == own
        line.handle(Event.END)


class Wide(Speculation):
    def window(self, rate: float, tempo: Tempo, proposal_s: float) -> int:
        return 6

    def places(self, tempo: Tempo) -> int:
        return 12


@pytest.mark.parametrize("seed", [0, 1], ids=["its twin", "another model"])
async def test_answers_are_the_rings_own_whoever_guesses(checkpoint, make_draft, tmp_path, seed):
    directory = give_tokenizer(checkpoint("llama"), tmp_path / "llama")
    rings: list[RealRing] = []
    draft = make_draft(checkpoint("llama", seed=seed), lambda sequence: rings[0].engine.on_guess(sequence))
    rings.append(RealRing(directory, [(0, 3), (3, 6)], slots=2, speculation=Wide(proposers=[lambda: draft])))
    rings.append(RealRing(directory, [(0, 6)], slots=2, speculation=Speculation(most_rows=0)))
    asked = [
        Request(prompt, 16, sampling, ignore_eos=True)
        for prompt, sampling in zip(
            prompts(5, [10, 15]),
            (GREEDY, Sampling(seed=2, temperature=0.9, frequency_penalty=0.4)),
            strict=True,
        )
    ]
    guessed, plain = [
        [tokens for tokens, _ in await asyncio.gather(*(read(ring.engine.generate(each)) for each in asked))]
        for ring in rings
    ]
    assert guessed == plain
    assert rings[0].engine.measured().tokens == 2 * 16
    for ring in rings:
        assert ring.errors == []
        await ring.close()
