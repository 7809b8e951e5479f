"""From one row of logits to one token: greedy, or drawn with the request's own random numbers.

Order: penalties, bias, grammar, temperature, min-p, top-k, top-p, draw. Repetition penalty counts prompt and answer;
presence and frequency penalties count the answer only, as OpenAI's API defines them. A draw takes exactly one
random number from the request's own generator, so it depends on the seed and the tokens so far and on nothing
else: neither on other sequences nor on how the model is divided. A sampler is called once for each token that is
kept, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from kafila_agent.head.errors import SamplingError
from kafila_agent.head.grammar import Grammar, GrammarMask
from kafila_agent.head.logprobs import Logprobs, measure_logprobs

CANDIDATES = 1024


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. ``temperature`` 0 is greedy; ``top_k`` 0 and ``top_p`` 1 leave every token in.

    ``logprobs``: of how many of the likeliest tokens, beside the one taken, the probability is told; None: of none.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token taken, and how likely the model found it, if that was asked."""

    token: int
    logprobs: Logprobs | None = None


class AnswerPenalties(LogitsProcessor):
    """OpenAI's: logit -= presence x [token in the answer] + frequency x (times it is there)."""

    def __init__(self, presence: float, frequency: float, prompt_tokens: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``input_ids`` [1, tokens], ``scores`` [1, vocab]."""
        tokens, counts = torch.unique(input_ids[0, self._prompt_tokens :], return_counts=True)
        penalties = self._presence + self._frequency * counts.to(scores.dtype)
        return scores.index_add(1, tokens, -penalties[None])


class Nucleus(LogitsProcessor):
    """Top-p: the likeliest tokens that together reach ``top_p``, at least one.

    It leaves what transformers' TopPLogitsWarper leaves, but that one sorts the whole vocabulary (19 ms of a CPU core
    for 150 000 tokens, on the way of every token); nearly always the first CANDIDATES tell.
    """

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``scores`` [1, vocab]."""
        total = scores.logsumexp(-1, keepdim=True)
        for candidates in (CANDIDATES, scores.shape[-1]):
            best, tokens = scores.topk(min(candidates, scores.shape[-1]))
            shares = (best - total).exp()
            mass_before = shares.cumsum(-1) - shares
            if mass_before[0, -1] >= self._top_p:
                break
        beyond = mass_before >= self._top_p
        beyond[0, 0] = False
        return torch.full_like(scores, -math.inf).scatter(1, tokens, best.masked_fill(beyond, -math.inf))


class Sampler:
    """One request's: its processors, its generator, and nothing shared. Not for two threads at once."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], grammar: Grammar | None = None) -> None:
        self._greedy = sampling.greedy
        self._logprobs = sampling.logprobs
        self._prompt = list(prompt)
        self._needs_history = _penalises(sampling) or grammar is not None
        mask = None if grammar is None else grammar.start_answer(len(prompt))
        self._processors = _processors(sampling, len(prompt), mask)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def sample(self, logits: torch.Tensor, output: Sequence[int]) -> Sampled:
        """The next token, from ``logits`` (float32 [vocab]) and the ids of the answer so far.

        Raises SamplingError.
        """
        if logits.device.type == "mps":
            logits = logits.cpu()  # it knows no double precision
        scores = logits
        if self._processors:
            history = self._prompt + list(output) if self._needs_history else []
            ids: Any = torch.tensor([history], dtype=torch.long, device=logits.device)
            scores = self._processors(ids, logits[None])[0]
        token = _best(scores) if self._greedy else _draw(scores, self._generator)
        told = None if self._logprobs is None else measure_logprobs(logits, token, self._logprobs)
        return Sampled(token, told)


def _best(logits: torch.Tensor) -> int:
    token = int(logits.argmax())  # a NaN, if there is one, counts as the greatest
    if torch.isnan(logits[token]):
        raise SamplingError("the model gave logits that are not numbers")
    return token


def _draw(logits: torch.Tensor, generator: torch.Generator) -> int:
    """Inverse transform sampling: the first token whose cumulative probability passes a uniform number."""
    cumulative = torch.softmax(logits.double(), -1).cumsum(-1)
    point = torch.rand((), generator=generator, dtype=torch.float64).to(logits.device) * cumulative[-1]
    if torch.isnan(point):
        raise SamplingError("the model gave logits that are not numbers")
    token = int(torch.searchsorted(cumulative, point, right=True))
    return min(token, len(logits) - 1)


def _penalises(sampling: Sampling) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)


def _processors(sampling: Sampling, prompt_tokens: int, mask: GrammarMask | None) -> LogitsProcessorList:
    """Those that do something; an empty list leaves the logits alone."""
    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.presence_penalty or sampling.frequency_penalty:
        chain.append(AnswerPenalties(sampling.presence_penalty, sampling.frequency_penalty, prompt_tokens))
    if sampling.logit_bias:
        biases: list[Any] = [[[token], float(bias)] for token, bias in sampling.logit_bias.items()]
        chain.append(SequenceBiasLogitsProcessor(biases))
    if mask is not None:
        chain.append(mask)
    if sampling.greedy:
        return chain
    if sampling.temperature != 1:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.min_p > 0:
        chain.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k > 0:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(Nucleus(sampling.top_p))
    return chain
