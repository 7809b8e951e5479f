"""Answers of a form that was asked for: a grammar says at each position which tokens may come next.

The library's own kernels do the work; here are what a request may ask for, and the mask as one more step of the
sampler. A mask is a function of the answer so far: the matcher follows the tokens that are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers.generation.logits_process import LogitsProcessor

from kafila_agent.head.errors import SamplingError

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

# As a language model has seen most JSON written; free white space would let it write nothing else for ever.
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# What may come may come, however sure the model is that it will not.
_IMPROBABLE = -1e9


class GrammarError(ValueError):
    """A form that cannot be asked for; the message says what is wrong with it."""


class Grammar:
    """A form, checked. One for all answers to a request; ``start_answer`` for each."""

    def __init__(self, lexicon: LLTokenizer, lark: str) -> None:
        self._lexicon = lexicon
        self._source = LLMatcher.grammar_from_lark(lark)
        if error := LLMatcher.validate_grammar(self._source, lexicon):
            raise GrammarError(error)

    def start_answer(self, prompt_tokens: int) -> GrammarMask:
        """The mask of one answer, to a prompt of so many tokens."""
        return GrammarMask(
            LLMatcher(self._lexicon, self._source, log_level=0), self._lexicon.vocab_size, prompt_tokens
        )


class GrammarMask(LogitsProcessor):
    """Leaves the tokens that may come next; when the answer is complete, only its end."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, prompt_tokens: int) -> None:
        self._matcher = matcher
        self._bits = allocate_token_bitmask(1, vocab_size)
        self._followed = prompt_tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """``input_ids`` [1, tokens], ``scores`` [1, vocab]. Raises SamplingError where the form is lost."""
        for token in input_ids[0, self._followed :].tolist():
            if not self._matcher.is_stopped():
                self._matcher.consume_token(token)
        self._followed = input_ids.shape[1]
        fill_next_token_bitmask(self._matcher, self._bits)
        if self._matcher.is_error():  # it has limits; the mask allows the end alone then, as if all were well
            raise SamplingError(f"the answer's form cannot be followed further: {self._matcher.get_error()}")
        allowed = np.zeros(scores.shape[1], dtype=bool)
        known = np.unpackbits(self._bits[0].view(np.uint8), bitorder="little")[: len(allowed)]
        allowed[: len(known)] = known
        mask: torch.Tensor = torch.from_numpy(~allowed).to(scores.device)
        return scores.clamp(min=_IMPROBABLE).masked_fill(mask, -math.inf)


def json_grammar(schema: Mapping[str, Any]) -> str:
    """One JSON value of ``schema``, in Lark."""
    return f"start: answer\nanswer: {json_rule(schema)}\n"


def json_rule(schema: Mapping[str, Any]) -> str:
    """The right-hand side of a rule."""
    return "%json " + json.dumps({**schema, "x-guidance": _WRITING})


def after_thought(lark: str, end: str) -> str:
    """``lark``, whose start is ``answer``, behind a thought that ``end`` ends (a terminal)."""
    body = lark.removeprefix("start: answer\n")
    return f"start: thought /\\n*/ answer\nthought[lazy]: /(.|\\n)*/ {end}\n{body}"


def literal(text: str) -> str:
    """``text`` as a Lark terminal."""
    return json.dumps(text)


def one_of(rules: Sequence[str]) -> str:
    """Any of these."""
    return " | ".join(rules)
