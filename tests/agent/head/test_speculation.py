"""Guessing ahead changes when tokens come and nothing else; what would break that is caught."""

from __future__ import annotations

import asyncio
import functools
import random
import threading

import pytest

from kafila_agent.head.engine import Engine
from kafila_agent.head.generation import EngineFailed, Finished, Request
from kafila_agent.head.measure import Tempo
from kafila_agent.head.sampler import Sampler, Sampling
from kafila_agent.head.sequence import Sequence
from kafila_agent.head.speculation import (
    LEAST_GAIN,
    MOST_ROWS,
    Acceptance,
    Speculation,
    guess_rows,
    predict_gain,
    predict_outlook,
)
from kafila_agent.model.kv import MAX_ROLLBACK_TOKENS
from kafila_agent.stage.kv_cache import SlotCache
from tests.agent.head.guessers import FixedWindow, Guesser, always_right, always_wrong, sometimes, wrong_every
from tests.agent.head.simulated_ring import SimulatedRing, TokenLayer, next_logits
from tests.agent.head.test_engine import GREEDY, PROMPT, answer, script, spoken

WINDOWS = [1, 2, 3, 8, 24]
PENALISED = Sampling(seed=4, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2)
TOKENS = 30


@functools.cache
def decode(prompt: tuple[int, ...], *, penalised: bool) -> list[int]:
    """One sequence alone, without a ring."""
    sampler, output = Sampler(PENALISED if penalised else GREEDY, prompt), []
    for _ in range(TOKENS):
        output.append(sampler.sample(next_logits(prompt + tuple(output)), output).token)
    return output


def truth_of(request: Request) -> list[int]:
    return decode(request.prompt, penalised=not request.sampling.greedy)


def greedy_request(*prompt: int) -> Request:
    return Request(prompt, TOKENS, GREEDY, ignore_eos=True)


class World:
    """Two sequences, one greedy and one drawn with penalties, and a ring that decodes both with guesses."""

    def __init__(self, text, *, rows: int, twist, seed: int, stages: int, replays: float = 0.0) -> None:
        draw = random.Random(stages)
        self.requests = [
            Request(tuple(draw.choices(range(20, 4000), k=length)), TOKENS, sampling, ignore_eos=True)
            for length, sampling in ((5, GREEDY), (17, PENALISED))
        ]
        self.ring = SimulatedRing(stages, seed, lag=seed % 2 == 0, replays=replays)
        self.engine = Engine(
            self.ring.launch,
            text,
            epoch=7,
            slots=2,
            context_tokens=64,
            prefill_chunk=8,
            speculation=FixedWindow(
                rows, Guesser({request.prompt: truth_of(request) for request in self.requests}, twist)
            ),
            clock=self.ring.clock,
        )
        self.ring.engine = self.engine

    async def run(self) -> bool:
        """Whether every answer is what plain decoding says, and nothing was refused but what was settled."""
        generations = [self.engine.generate(request) for request in self.requests]
        self.ring.run()
        for request, generation in zip(self.requests, generations, strict=True):
            try:
                async with asyncio.timeout(1):  # the ring has run: what has not come will not come
                    events = [event async for event in generation]
            except (EngineFailed, TimeoutError):
                return False
            if [each.token for event in events for each in event.tokens] != truth_of(request):
                return False
        return all("is settled" in str(error) for error in self.ring.errors) and not self.ring.owned


@pytest.mark.parametrize("rows", WINDOWS)
@pytest.mark.parametrize(
    "twist",
    [always_right, always_wrong, wrong_every(8), sometimes(random.Random(1), 0.7)],
    ids=["right", "wrong", "wrong-at-the-last-row", "sometimes"],
)
async def test_answers_are_plain_decodings_for_every_window_and_guesser(text, rows, twist):
    for seed, stages in ((1, 1), (2, 3)):
        assert await World(text, rows=rows, twist=twist, seed=seed, stages=stages, replays=0.2).run()


async def test_right_guesses_are_taken_and_wrong_ones_cost_no_token(text):
    for twist, rows_launched in ((always_right, 29), (always_wrong, 29 * 2)):
        world = World(text, rows=2, twist=twist, seed=1, stages=2)
        assert await world.run()
        launched = [frame for frame in world.ring.launched if frame.rows == 1 and frame.floor]
        assert len(launched) <= 2 * rows_launched  # two sequences; the first token comes with the prompt


MUTATIONS = {
    "no crop": (TokenLayer, "seek", lambda self, position: None),
    "crop off by one": (
        TokenLayer,
        "seek",
        lambda self, position: self.tokens.__delitem__(slice(position + 1, None)),
    ),
    "fence not raised": (Sequence, "commit", None),
    "fence not checked at the head": (
        Sequence,
        "awaits",
        lambda self, fence, position: position == self.settled,
    ),
    "fence not checked at a stage": (SlotCache, "seek", None),
    "floor not checked": (SlotCache, "seek", None),
}


def mutated(name: str):
    """The attribute that is wrong by exactly what ``name`` says."""
    owner, attribute, replacement = MUTATIONS[name]
    original = getattr(owner, attribute)

    def commit(self, token):
        fence, verdict = self.fence, original(self, token)
        self.fence = fence
        return verdict

    def seek_unfenced(self, sequence, position, *, fence=0, floor=0):
        original(self, sequence, position, fence=max(fence, self.fence), floor=floor)

    def seek_unfloored(self, sequence, position, *, fence=0, floor=0):
        floor, self.floor = max(floor, self.floor), 0
        original(self, sequence, position, fence=fence, floor=floor)

    others = {
        "fence not raised": commit,
        "fence not checked at a stage": seek_unfenced,
        "floor not checked": seek_unfloored,
    }
    return owner, attribute, replacement or others[name]


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_ring_without_one_of_its_guards_is_found_out(text, monkeypatch, name):
    monkeypatch.setattr(*mutated(name))
    right = [
        await World(
            text,
            rows=3,
            twist=sometimes(random.Random(seed), 0.7),
            seed=seed,
            stages=3,
            replays=0.3,
        ).run()
        for seed in range(6)
    ]
    assert not all(right)


async def scripted(
    make_engine, text, words: str, guessed: str, **options
) -> tuple[str, Finished, SimulatedRing]:
    """A model that says ``words`` while ``guessed`` is guessed, eight rows at a time."""
    ids, guesses = text.encode(words), text.encode(guessed)
    ring = SimulatedRing(2, script=script(PROMPT, ids), lag=True)
    window = FixedWindow(8, Guesser({PROMPT: guesses}, always_right))
    generation = make_engine(ring, speculation=window).generate(Request(PROMPT, 60, GREEDY, **options))
    ring.run()
    said, finished = await answer(generation)
    assert not ring.errors
    assert not ring.owned
    return said, finished, ring


async def test_a_stop_string_inside_a_window_ends_the_answer_before_it(make_engine, text):
    said, finished, _ = await scripted(
        make_engine, text, "one two STOPPING three", "one two STOPPING three", stop=("PIN",)
    )
    assert (said, finished.reason) == ("one two STOP", "stop")
    assert finished.completion_tokens < len(text.encode("one two STOPPING three"))


async def test_guesses_that_go_on_past_the_end_are_never_told(make_engine, text):
    words = "The end."
    ids = text.encode(words)
    ring = SimulatedRing(2, script=script(PROMPT, [*ids, 2]), lag=True)
    window = FixedWindow(8, Guesser({PROMPT: [*ids, 2, *ids, *ids]}, always_right))
    generation = make_engine(ring, speculation=window).generate(Request(PROMPT, 60, GREEDY))
    ring.run()
    said, finished = await answer(generation)
    assert (said, finished.reason, finished.completion_tokens) == (words, "stop", len(ids) + 1)
    assert max(frame.position for frame in ring.launched) > len(PROMPT) + len(ids) + 1
    assert not ring.owned


async def test_a_cancelled_line_frees_its_slot_behind_its_guesses(make_engine, text):
    request = greedy_request(5, 6, 7)
    ring = SimulatedRing(3)
    window = FixedWindow(8, Guesser({request.prompt: truth_of(request)}, wrong_every(5)))
    generation = make_engine(ring, speculation=window, slots=1).generate(request)
    ring.run(60)
    generation.cancel()
    ring.run()
    assert not ring.owned
    assert not ring.errors


async def test_a_void_frame_that_fails_harms_nobody(make_engine, text):
    request = greedy_request(5, 6, 7)
    truth = truth_of(request)
    ring = SimulatedRing(2)
    window = FixedWindow(4, Guesser({request.prompt: truth}, wrong_every(4)))
    engine = make_engine(ring, speculation=window)
    generation = engine.generate(request)
    while not any(frame.fence for frame in ring.launched):
        ring.step()
    void = next(frame for frame in ring.launched if frame.rows == 1 and not frame.fence)
    engine.on_error(void, RuntimeError("too late to matter"))
    ring.run()
    assert (await answer(generation))[0] == spoken(text, request.prompt, truth)


def test_two_threads_at_one_line_lose_no_token():
    """One samples as the stage's thread does, the other launches and guesses: every row is answered once, in order."""
    line = Sequence(1, (0,), 300)
    line.chunk(1)
    line.commit(1)
    draw, rows, done = random.Random(0), [], threading.Event()

    def answer_rows() -> None:
        while not done.is_set() or rows:
            if rows and line.awaits(*(row := rows.pop(0))[:2]):
                line.commit(row[1] % 7)

    answering = threading.Thread(target=answer_rows)
    answering.start()
    while line.launched < 300:
        if line.guesses < 6:
            line.extend(line.line(), [draw.choice([line.line().length % 7, 9])], "a")
        while line.rows_in_flight < 6 and (row := line.next_row()):
            rows.append((row.fence, row.position))
    done.set()
    answering.join()
    assert line.settled <= line.launched <= 300


# How far to guess


def tempo(circuit_s: float, interval_s: float) -> Tempo:
    made = Tempo()
    made.circuit_s, made.interval_s = circuit_s, interval_s
    return made


@pytest.mark.parametrize(
    ("rate", "circuit_s", "interval_s", "rows"),
    [
        (0.97, 0.5, 0.02, 25),
        (0.97, 0.5, 0.001, MOST_ROWS),
        (0.60, 0.5, 0.001, 8),  # a ninth row would be needed once in a hundred times
        (0.97, 0.02, 0.02, 0),  # alone, one row at a time keeps the ring full
        (0.97, 0.03, 0.02, 2),
        (0.04, 0.5, 0.01, 0),
        (0.0, 0.5, 0.01, 0),
        (1.0, 1.0, 0.1, 10),
    ],
)
def test_the_window_fills_the_ring_unless_it_gains_too_little(rate, circuit_s, interval_s, rows):
    outlook = predict_outlook(rate, tempo(circuit_s, interval_s))
    assert outlook.rows == rows
    assert outlook.gain == predict_gain(rate, circuit_s, interval_s)
    assert (outlook.gain < LEAST_GAIN) == (not rows) == bool(outlook.reason)


def test_a_slow_proposer_sets_the_interval_and_nothing_measured_is_no_reason_to_guess():
    assert predict_outlook(0.97, tempo(0.5, 0.01), proposal_s=0.1).rows == 5
    outlook = predict_outlook(0.97, Tempo())
    assert (outlook.rows, outlook.gain) == (0, None)
    assert "too few tokens" in outlook.reason
    assert Tempo().places == 1


def test_a_window_is_never_more_than_stages_can_go_back():
    assert [guess_rows(tokens) for tokens in (None, MAX_ROLLBACK_TOKENS, 20, 1, 0)] == [64, 64, 10, 0, 0]
    outlook = Speculation(most_rows=0).outlook(tempo(1, 0.01))
    assert (outlook.rows, outlook.reason) == (0, "this model's stages cannot go back")


def test_who_is_wrong_is_not_asked_and_later_tried_again():
    acceptance = Acceptance()
    while predict_outlook(acceptance.rate, tempo(0.2, 0.1)).rows:
        acceptance.judge(False)
    tokens = 0
    while not predict_outlook(acceptance.rate, tempo(0.2, 0.1)).rows:
        acceptance.forget()
        tokens += 1
    assert 1 <= tokens < 200
