"""The engine on a simulated ring: every answer is what its own history alone gives, whatever else is under way."""

from __future__ import annotations

import asyncio
import random

import pytest

from kafila_agent.edge.frame import Frame, Kind
from kafila_agent.head.generation import (
    Busy,
    Cancelled,
    ContextExceeded,
    EngineFailed,
    Finished,
    Piece,
    Request,
)
from kafila_agent.head.observer import Observer
from kafila_agent.head.sampler import Sampler, Sampling
from tests.agent.head.simulated_ring import COMPUTE_NS, SimulatedRing, greedy, next_logits

GREEDY = Sampling(temperature=0)


async def answer(generation) -> tuple[str, Finished]:
    """All of it; the ring must have run."""
    pieces = [event async for event in generation]
    return "".join(p.text for p in pieces[:-1]), pieces[-1]


def plain(prompt: tuple[int, ...], count: int, sampling: Sampling = GREEDY) -> list[int]:
    """Decoding one sequence alone, without a ring."""
    sampler, output = Sampler(sampling, prompt), []
    for _ in range(count):
        output.append(sampler.sample(next_logits(prompt + tuple(output)), output).token)
    return output


def spoken(text, prompt, ids) -> str:
    detokenizer = text.detokenizer(prompt)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("prompt_tokens", [1, 7, 8, 9, 33])
async def test_an_answer_is_plain_decodings(text, make_engine, stages, prompt_tokens):
    ring = SimulatedRing(stages, seed=prompt_tokens)
    prompt = tuple(range(100, 100 + prompt_tokens))
    generation = make_engine(ring).generate(Request(prompt, 6, GREEDY))
    ring.run()
    words, finished = await answer(generation)
    assert words == spoken(text, prompt, plain(prompt, 6))
    assert (finished.reason, finished.prompt_tokens, finished.completion_tokens) == (
        "length",
        prompt_tokens,
        6,
    )


@pytest.mark.parametrize("seed", range(8))
async def test_many_at_once_each_get_their_own_answer(text, make_engine, seed):
    draw = random.Random(seed)
    ring = SimulatedRing(draw.randrange(1, 5), seed)
    engine = make_engine(
        ring, slots=3, prefill_chunk=draw.choice([1, 4, 16]), chunks_in_flight=draw.choice([1, 4])
    )
    requests = [
        Request(
            tuple(draw.choices(range(20, 9000), k=draw.randrange(1, 40))),
            draw.randrange(1, 10),
            draw.choice(
                [
                    GREEDY,
                    Sampling(seed=draw.randrange(99)),
                    Sampling(seed=5, frequency_penalty=1.5, top_p=0.9),
                ]
            ),
        )
        for _ in range(9)
    ]
    generations, cancelled = [], []
    for request in requests:
        generations.append(engine.generate(request))
        ring.run(draw.randrange(12))
        if draw.random() < 0.4:
            extra = engine.generate(Request(tuple(range(50)), 50, GREEDY))
            ring.run(draw.randrange(30))
            extra.cancel()
            cancelled.append(extra)
    ring.run()
    for request, generation in zip(requests, generations, strict=True):
        words, finished = await answer(generation)
        expected = plain(request.prompt, request.max_tokens, request.sampling)
        if finished.reason == "length":
            assert words == spoken(text, request.prompt, expected)
        else:
            assert expected[finished.completion_tokens - 1] in text.eos_ids
    assert not ring.owned, "every slot of every stage is free again"
    assert engine.measured().running + engine.measured().waiting == 0
    for generation in cancelled:
        with pytest.raises(Cancelled):
            await answer(generation)


def script(prompt: tuple[int, ...], ids: list[int]) -> dict[tuple[int, ...], int]:
    """A model that answers ``prompt`` with ``ids``."""
    return {prompt + tuple(ids[:i]): token for i, token in enumerate(ids)}


PROMPT = (1, 2, 3)


async def scripted(
    make_engine, text, words: str, *, eos: bool = False, **options
) -> tuple[str, list[str], Finished]:
    ids = text.encode(words) + ([2] if eos else [])
    ring = SimulatedRing(2, script=script(PROMPT, ids))
    options.setdefault("max_tokens", len(ids))
    generation = make_engine(ring).generate(Request(PROMPT, sampling=GREEDY, **options))
    ring.run()
    events = [event async for event in generation]
    pieces = [event.text for event in events[:-1]]
    assert all(isinstance(event, Piece) and event.text for event in events[:-1])
    return "".join(pieces), pieces, events[-1]


async def test_the_models_own_end_is_a_stop_and_is_not_spoken(make_engine, text):
    words, _, finished = await scripted(make_engine, text, "Hello.", eos=True, max_tokens=50)
    assert (words, finished.reason) == ("Hello.", "stop")
    assert finished.completion_tokens == len(text.encode("Hello.")) + 1


async def test_ignoring_the_end_goes_on_past_it(make_engine, text):
    words, _, finished = await scripted(make_engine, text, "Hello.", eos=True, max_tokens=12, ignore_eos=True)
    assert (finished.reason, finished.completion_tokens) == ("length", 12)
    assert words == "Hello."  # the end itself and the script's filler are special tokens


async def test_a_stop_string_across_token_borders_ends_the_answer_before_it(make_engine, text):
    words, pieces, finished = await scripted(make_engine, text, "one two STOPPING three", stop=("PIN",))
    assert (words, finished.reason) == ("one two STOP", "stop")
    assert len(pieces) > 1


async def test_what_only_began_a_stop_string_is_given_out_at_the_end(make_engine, text):
    words, _, finished = await scripted(make_engine, text, "one two ST", stop=("STOP",))
    assert (words, finished.reason) == ("one two ST", "length")
    words, _, finished = await scripted(
        make_engine, text, "one two ST", eos=True, max_tokens=60, stop=("STOP",)
    )
    assert (words, finished.reason) == ("one two ST", "stop")


async def test_a_stop_string_in_the_last_token_counts_as_a_stop(make_engine, text):
    assert (await scripted(make_engine, text, "a b c", stop=("c",)))[2].reason == "stop"


async def test_what_is_held_at_the_end_may_complete_a_stop_string(make_engine, text):
    cut = len(text.encode("x👩")) - 1
    words, _, finished = await scripted(make_engine, text, "x👩", max_tokens=cut, stop=("\ufffd",))
    assert (words, finished.reason) == ("x", "stop")


async def test_emoji_and_han_are_held_until_whole(make_engine, text):
    said = "👩‍👩‍👧 漢字 🇳🇱"
    words, pieces, _ = await scripted(make_engine, text, said)
    assert words == said
    assert not any("\ufffd" in piece for piece in pieces)


async def test_half_a_character_at_the_end_shows_as_such(make_engine, text):
    words, _, finished = await scripted(make_engine, text, "x👩", max_tokens=len(text.encode("x👩")) - 1)
    assert (words, finished.reason) == ("x\ufffd", "length")


async def test_a_cancelled_request_leaves_within_one_step(make_engine):
    ring = SimulatedRing(4)
    engine = make_engine(ring, slots=1)
    gone = engine.generate(Request(PROMPT, 200, GREEDY))
    waiting = engine.generate(Request((5, 6), 2, GREEDY))
    while sum(frame.kind is Kind.TOKENS for frame in ring.launched) < 5:
        ring.step()
    launched = len(ring.launched)
    gone.cancel()
    gone.cancel()
    assert [(frame.kind, frame.sequence) for frame in ring.launched[launched:]] == [
        (Kind.RELEASE, 1),
        (Kind.TOKENS, 2),
    ]
    ring.run()
    following = ring.launched[launched + 1 :]
    assert {frame.sequence for frame in following} == {2}
    assert (await answer(waiting))[1].completion_tokens == 2


async def test_a_request_cancelled_while_it_waits_never_enters_the_ring(make_engine):
    ring = SimulatedRing(2)
    engine = make_engine(ring, slots=1)
    first, second = (engine.generate(Request(PROMPT, 3, GREEDY)) for _ in range(2))
    second.cancel()
    ring.run()
    assert (await answer(first))[1].reason
    assert {frame.sequence for frame in ring.launched} == {1}


async def test_whoever_gets_a_slot_next_follows_the_release_of_its_last_owner(make_engine):
    ring = SimulatedRing(3)
    engine = make_engine(ring, slots=1)
    generations = [engine.generate(Request((n, 9), 2, GREEDY)) for n in range(3)]
    ring.run()
    assert [(await answer(each))[1].completion_tokens for each in generations] == [2, 2, 2]
    sent = [(frame.kind, frame.sequence) for frame in ring.launched]
    tokens, release = Kind.TOKENS, Kind.RELEASE
    assert sent == [(kind, n) for n in (1, 2, 3) for kind in (tokens, tokens, release)]
    assert {frame.slot for frame in ring.launched} == {0}


async def test_failing_ends_every_request_with_the_reason_and_refuses_new_ones(make_engine):
    ring = SimulatedRing(2)
    engine = make_engine(ring, slots=1)
    generations = [engine.generate(Request(PROMPT, 50, GREEDY)) for _ in range(3)]
    ring.run(40)
    engine.fail("lap left the session")
    engine.fail("again")
    for generation in generations:
        with pytest.raises(EngineFailed, match="lap left the session"):
            await answer(generation)
        generation.cancel()
    with pytest.raises(EngineFailed, match="lap left the session"):
        engine.generate(Request(PROMPT, 1, GREEDY))
    launched = len(ring.launched)
    ring.run()
    assert len(ring.launched) == launched, "what was in the ring starts nothing new"
    assert (engine.measured().running, engine.measured().waiting) == (0, 0)


async def test_frames_of_another_epoch_are_not_heeded(make_engine):
    ring = SimulatedRing(1)
    engine = make_engine(ring)
    engine.generate(Request(PROMPT, 2, GREEDY))
    frame = ring.launched[0]
    stale = Frame(Kind.HIDDEN, 6, frame.sequence, frame.slot, 2, 1, rows_wanted=1)
    engine.on_sampled(stale, 17)
    assert engine.measured().tokens == 0


async def test_a_stages_error_ends_only_the_sequence_it_concerns(make_engine):
    ring = SimulatedRing(2)
    engine = make_engine(ring, chunks_in_flight=1)  # the lost one must not keep its place
    bad, good = (engine.generate(Request(prompt, 3, GREEDY)) for prompt in (PROMPT, (7, 8, 9)))
    lost = ring.edges[0].popleft()
    engine.on_error(lost, RuntimeError("a token id is outside the vocabulary"))
    engine.on_error(lost, RuntimeError("again"))
    with pytest.raises(EngineFailed, match="outside the vocabulary"):
        await answer(bad)
    for stage in ring.slots:  # what the stages hold of it, for the release to free
        stage[0].seek(1, 0)
    ring.run()
    assert (await answer(good))[1].completion_tokens == 3


async def test_a_fault_in_one_answer_leaves_nobody_waiting(make_engine, monkeypatch):
    ring = SimulatedRing(2)
    engine = make_engine(ring)
    bad, good = (engine.generate(Request(prompt, 3, GREEDY)) for prompt in (PROMPT, (7, 8, 9)))
    monkeypatch.setattr(engine._runs[1].detokenizer, "push", lambda token: 1 / 0)
    ring.run()
    with pytest.raises(EngineFailed, match=r"internal error \(ZeroDivisionError\)"):
        await answer(bad)
    assert (await answer(good))[1].completion_tokens == 3
    assert not ring.owned, "every slot of every stage is free again"


async def test_logits_that_are_not_numbers_end_the_request_and_say_so(make_engine, monkeypatch):
    ring = SimulatedRing(2)
    engine = make_engine(ring)
    generation = engine.generate(Request(PROMPT, 3, GREEDY))
    monkeypatch.setattr(
        "tests.agent.head.simulated_ring.next_logits", lambda history: next_logits(history) * float("nan")
    )
    ring.run()
    with pytest.raises(EngineFailed, match="not numbers"):
        await answer(generation)
    assert not ring.owned, "every slot of every stage is free again"


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "fits"),
    [
        (255, None, True),
        (256, None, False),
        (300, None, False),
        (200, 56, True),
        (200, 57, False),
        (255, 1, True),
    ],
)
async def test_prompt_and_answer_must_fit_into_the_context(make_engine, prompt_tokens, max_tokens, fits):
    ring = SimulatedRing(1)
    engine = make_engine(ring, context_tokens=256)
    request = Request(tuple(range(prompt_tokens)), max_tokens, GREEDY, ignore_eos=True)
    if fits:
        generation = engine.generate(request)
        ring.run()
        finished = (await answer(generation))[1]
        assert finished.reason == "length"
        assert finished.completion_tokens == (max_tokens or 256 - prompt_tokens)
        assert max(frame.position + frame.rows for frame in ring.launched) <= 256
    else:
        with pytest.raises(
            ContextExceeded, match=rf"context length is 256 tokens.*\({prompt_tokens} in the prompt"
        ):
            engine.generate(request)


def test_an_empty_prompt_is_no_request():
    with pytest.raises(ValueError, match="no tokens"):
        Request(())


async def test_a_full_queue_says_when_to_come_back(make_engine):
    ring = SimulatedRing(2)
    engine = make_engine(ring, slots=1, waiting_limit=1)
    first = engine.generate(Request(PROMPT, 60, GREEDY))
    ring.run()
    latency_s = (await answer(first))[1].measures.latency_s
    for _ in range(2):
        engine.generate(Request(PROMPT, 5, GREEDY))
    with pytest.raises(Busy, match="1 requests are waiting") as refusal:
        engine.generate(Request(PROMPT, 5, GREEDY))
    assert latency_s > 1
    assert latency_s <= refusal.value.retry_after_s < latency_s + 1


class Counting(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def on_accepted(self, prompt_tokens):
        self.seen.append(("accepted", prompt_tokens))

    def on_first_token(self, ttft_s):
        self.seen.append(("first", ttft_s))

    def on_token(self, gap_s):
        self.seen.append(("token", gap_s))

    def on_step(self, step):
        self.seen.append(("step", step.circuit_s))

    def on_finished(self, finished):
        self.seen.append(("finished", finished.reason))

    def on_aborted(self, reason):
        self.seen.append(("aborted", reason))


async def test_times_are_the_heads_own_and_shares_come_from_the_stages(make_engine, text):
    ring, counting = SimulatedRing(3, script=script(PROMPT, text.encode(" a b c d"))), Counting()
    engine = make_engine(ring, observer=counting)
    generation = engine.generate(Request(PROMPT, 4, GREEDY))
    ring.run()
    measures = (await answer(generation))[1].measures
    # Alone in a ring of three stages each frame takes 4 moves of 0.01 s, of which 3 x 0.002 s are computing.
    assert measures.ttft_s == pytest.approx(0.04)
    assert measures.latency_s == pytest.approx(0.16)
    assert measures.tokens_per_s == pytest.approx(3 / 0.12)
    assert measures.circuit_s == pytest.approx(0.04)
    assert measures.compute_s == pytest.approx(0.006)
    assert measures.network_share == pytest.approx(1 - 0.006 / 0.04)
    measured = engine.measured()
    assert (measured.requests, measured.tokens, measured.slots) == (1, 4, 4)
    assert measured.circuit_s == pytest.approx(0.04)
    assert measured.network_share == pytest.approx(0.85)
    assert measured.stage_compute_s == (COMPUTE_NS / 1e9,) * 3
    names = [name for name, _ in counting.seen]
    assert names == ["accepted", "token", "first", *["step", "token"] * 3, "finished"]
    assert [value for name, value in counting.seen if name == "token"] == [None, *[pytest.approx(0.04)] * 3]


async def test_nothing_measured_is_unknown_and_not_zero(make_engine):
    measured = make_engine(SimulatedRing(1)).measured()
    assert (measured.tokens_per_s, measured.ttft_s, measured.circuit_s, measured.network_share) == (None,) * 4
    assert measured.stage_compute_s == ()


async def test_an_answer_is_read_while_it_comes(make_engine):
    ring = SimulatedRing(2)
    generation = make_engine(ring).generate(Request(PROMPT, 3, GREEDY))
    reader = asyncio.create_task(answer(generation))
    await asyncio.sleep(0)
    ring.run()
    assert (await reader)[1].completion_tokens == 3
    assert greedy(PROMPT) == plain(PROMPT, 1)[0]
