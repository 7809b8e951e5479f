from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers.generation.logits_process import TopPLogitsWarper

from kafila_agent.head.errors import SamplingError
from kafila_agent.head.sampler import Nucleus, Sampler, Sampling


def logits(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def draws(sampling: Sampling, row: torch.Tensor, count: int, prompt=(0,)) -> list[int]:
    sampler = Sampler(sampling, prompt)
    output: list[int] = []
    for _ in range(count):
        output.append(sampler.sample(row, output).token)
    return output


def share(tokens: list[int], token: int) -> float:
    return tokens.count(token) / len(tokens)


def test_greedy_takes_the_best_whatever_the_rest_says():
    row = logits(0.0, 3.0, 2.9, -1.0)
    assert draws(Sampling(temperature=0), row, 3) == [1, 1, 1]
    assert draws(Sampling(temperature=0, top_p=0.1, top_k=1, min_p=0.5, seed=3), row, 3) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_of_the_scaled_logits(temperature):
    row = logits(1.0, 0.0, 2.0, -1.0)
    expected = torch.softmax(row / temperature, -1)
    tokens = draws(Sampling(temperature=temperature, seed=1), row, 4000)
    for token in range(4):
        sigma = math.sqrt(float(expected[token] * (1 - expected[token])) / 4000)
        assert abs(share(tokens, token) - expected[token]) < 4 * sigma


def test_a_seed_fixes_the_answer_and_other_sequences_do_not_touch_it():
    row = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    alone = draws(Sampling(seed=42), row, 50)
    one, other, output = Sampler(Sampling(seed=42), (0,)), Sampler(Sampling(seed=7), (0,)), []
    for _ in range(50):
        other.sample(row, output)
        torch.rand(3)
        output.append(one.sample(row, output).token)
    assert output == alone
    assert draws(Sampling(seed=43), row, 50) != alone
    assert draws(Sampling(), row, 50) != draws(Sampling(), row, 50)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=2, seed=0), {0, 1}),
        (Sampling(top_k=99, seed=0), {0, 1, 2, 3}),
        (Sampling(top_p=0.9, seed=0), {0, 1, 2}),  # 0.57 + 0.28 < 0.9
        (Sampling(top_p=0.5, seed=0), {0}),
        (Sampling(min_p=0.2, seed=0), {0, 1, 2}),
        (Sampling(min_p=0.4, seed=0), {0, 1}),
        (Sampling(logit_bias={0: -100, 1: -100}, seed=0), {2, 3}),
        (Sampling(logit_bias={3: 100}, seed=0), {3}),
        (Sampling(temperature=0, logit_bias={2: 5}), {2}),
    ],
)
def test_each_setting_leaves_just_its_tokens(sampling, allowed):
    row = torch.log(logits(0.56, 0.27, 0.13, 0.04))
    assert set(draws(sampling, row, 400)) == allowed


@pytest.mark.parametrize("vocab", [5, 1000, 5000])
@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_the_nucleus_is_transformers_own(vocab, top_p):
    for spread in (0.01, 1.0, 4.0, 12.0):  # from nearly even, where all must be sorted, to nearly certain
        row = spread * torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab))
        expected = TopPLogitsWarper(top_p)(None, row)
        left = Nucleus(top_p)(None, row)
        differing = left.isinf() != expected.isinf()  # a sum in another order may round otherwise at the edge
        assert row.softmax(-1)[differing].sum() < 1e-5
        kept = ~(left.isinf() | expected.isinf())
        assert torch.equal(left[kept], expected[kept])
        assert kept.any()


def test_a_token_without_probability_is_never_drawn():
    row = logits(-math.inf, 0.0, -math.inf, 0.0, -math.inf)
    assert set(draws(Sampling(seed=0), row, 500)) == {1, 3}


def test_presence_penalty_counts_a_token_of_the_answer_once():
    row = logits(1.0, 0.9, 0.0)
    assert draws(Sampling(temperature=0, presence_penalty=0.5), row, 4, prompt=(0,)) == [0, 1, 0, 0]


def test_frequency_penalty_counts_it_as_often_as_it_is_there():
    row = logits(1.0, 0.75, 0.0)
    assert draws(Sampling(temperature=0, frequency_penalty=0.5), row, 5, prompt=(0,)) == [0, 1, 0, 1, 0]


def test_repetition_penalty_counts_the_prompt_too():
    row = logits(1.0, 0.9, 0.4)
    assert draws(Sampling(temperature=0, repetition_penalty=2.0), row, 3, prompt=(0,)) == [1, 0, 0]


def test_logits_are_left_as_they_were():
    row = torch.randn(50)
    before = row.clone()
    draws(
        Sampling(presence_penalty=1, frequency_penalty=1, repetition_penalty=1.1, top_k=5, top_p=0.9, seed=1),
        row,
        5,
    )
    assert torch.equal(row, before)


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_nor_at_the_very_ends_of_the_random_numbers(monkeypatch, number, token):
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(number, dtype=torch.float64))
    row = logits(-math.inf, 0.0, 0.0, 0.0, -math.inf)
    assert draws(Sampling(seed=0), row, 1) == [token]


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_numbers_are_an_error_and_not_a_token(temperature):
    with pytest.raises(SamplingError, match="not numbers"):
        draws(Sampling(temperature=temperature, seed=0), logits(1.0, math.nan, 2.0), 1)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.3, top_k=2, seed=1)])
def test_logprobs_are_the_models_own_whatever_was_done_to_the_logits(sampling):
    row = torch.log(logits(0.5, 0.3, 0.15, 0.05))
    told = Sampler(replace(sampling, logit_bias={3: 100}, logprobs=2), (0,)).sample(row, [])
    assert told.token == 3
    assert told.logprobs.taken == pytest.approx(math.log(0.05))
    assert [token for token, _ in told.logprobs.top] == [0, 1]
    assert [each for _, each in told.logprobs.top] == pytest.approx([math.log(0.5), math.log(0.3)])
    assert Sampler(sampling, (0,)).sample(row, []).logprobs is None
    assert Sampler(replace(sampling, logprobs=0), (0,)).sample(row, []).logprobs.top == ()
