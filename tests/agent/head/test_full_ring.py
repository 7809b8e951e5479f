"""What fills a ring, in simulated time: guesses for one user, four users against one."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, replace

import pytest

from kafila_agent.edge.frame import Frame, Kind, StageTime
from kafila_agent.head.generation import Request
from tests.agent.head.simulated_ring import SimulatedRing
from tests.agent.head.test_engine import GREEDY, answer, script

PROMPT_TOKENS, ANSWER_TOKENS = 60, 100


@dataclass
class TimedRing(SimulatedRing):
    """Stages that take ``stage_s`` a row, one frame after the other, and hops of ``hop_s``."""

    stage_s: float = 0.01
    hop_s: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events: list[tuple[float, int, int, Frame]] = []
        self._numbers = itertools.count()
        self._free_s = [0.0] * self.stages

    def launch(self, frame: Frame) -> None:
        self._push(self.now_s, 0, frame)

    def _push(self, at_s: float, place: int, frame: Frame) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), place, frame))

    def run(self) -> None:
        while self._events:
            self.now_s, _, place, frame = heapq.heappop(self._events)
            if place == self.stages:  # the head again, which samples in no time
                self._return(replace(frame, stage_times=(*frame.stage_times, StageTime(0, 0))))
                continue
            began_s = max(self.now_s, self._free_s[place])
            compute_s = self.stage_s if frame.kind is Kind.TOKENS else 0.0
            self._free_s[place] = began_s + compute_s
            self._work(self.slots[place], frame)
            onward = self._onward(place, frame)
            time = StageTime(round(compute_s * 1e9), round((began_s - self.now_s) * 1e9))
            onward = replace(onward, stage_times=(*frame.stage_times, time))
            self._push(self._free_s[place] + self.hop_s, place + 1, onward)


def tokens(seed: int, count: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).sample(range(20, 9000), count))


async def seconds(make_engine, ring: TimedRing, requests: list[Request]) -> list[float]:
    """Of each request's answer, from its first token to its last."""
    engine = make_engine(ring, prefill_chunk=64)
    generations = [engine.generate(request) for request in requests]
    ring.run()
    took_s = []
    for request, generation in zip(requests, generations, strict=True):
        measures = (await answer(generation))[1].measures
        took_s.append((request.max_tokens - 1) / measures.tokens_per_s)
    return took_s


@pytest.mark.parametrize("hop_s", [0.0, 0.005, 0.02, 0.04, 0.05])
@pytest.mark.parametrize(("words", "least"), [("copied", 1.0), ("new", 0.97)])
async def test_copying_is_faster_the_further_away_members_are_and_new_text_never_slower(
    make_engine, show_ratio, hop_s, words, least
):
    """Nine tenths of the copied answer are in the prompt; the first eight of each stretch have to be said unaided."""
    prompt = tokens(1, PROMPT_TOKENS)
    said = (
        [*prompt[5:55], *tokens(2, 10), *prompt[10:50]]
        if words == "copied"
        else list(tokens(3, ANSWER_TOKENS))
    )
    took_s = {}
    for speculation in (False, True):
        ring = TimedRing(3, script=script(prompt, said), hop_s=hop_s)
        request = Request(prompt, len(said), GREEDY, ignore_eos=True, speculation=speculation)
        [took_s[speculation]] = await seconds(make_engine, ring, [request])
    gain = took_s[False] / took_s[True]
    show_ratio(f"hop {hop_s * 1e3:3.0f} ms, {words}: {gain:4.2f} times plain decoding")
    assert gain >= (2.5 if words == "copied" and hop_s >= 0.04 else least)


async def test_alone_nothing_is_guessed_and_the_reason_is_told(make_engine):
    prompt = tokens(1, PROMPT_TOKENS)
    said = list(prompt[5:55])
    for stages, hop_s, guesses, reason in ((1, 0.0, 0, "less than 5% would be gained"), (3, 0.04, 30, "")):
        ring = TimedRing(stages, script=script(prompt, said), hop_s=hop_s)
        engine = make_engine(ring, prefill_chunk=64)
        assert "too few tokens" in engine.outlook().reason
        generation = engine.generate(Request(prompt, len(said), GREEDY, ignore_eos=True))
        ring.run()
        finished = (await answer(generation))[1]
        assert finished.guesses >= guesses
        assert (finished.guesses > 0) == (guesses > 0) == (engine.outlook().rows > 0)
        assert engine.outlook().reason == reason


@pytest.mark.parametrize("share", [0.12, 0.5, 0.9])
async def test_four_users_have_what_the_slowest_stage_allows(make_engine, show_ratio, share):
    stage_s = 0.04
    requests = [Request(tokens(n, 40), 60, GREEDY, ignore_eos=True, speculation=False) for n in range(4)]
    hop_s = stage_s * share / (1 - share)
    one_s, *_ = await seconds(make_engine, TimedRing(3, stage_s=stage_s, hop_s=hop_s), requests[:1])
    many_s = await seconds(make_engine, TimedRing(3, stage_s=stage_s, hop_s=hop_s), requests)
    gain, bound = sum(one_s / each for each in many_s), min(4, (stage_s + hop_s) * 3 / stage_s)
    show_ratio(f"network share {share}: four users have {gain:4.2f} times one's, of {bound:4.2f}")
    assert gain >= 0.95 * bound
    if share == 0.9:
        assert max(many_s) / min(many_s) < 1.01


@pytest.fixture
def show_ratio(record_property):
    """A line for the end of the run."""
    return lambda text: record_property("shown", text)
