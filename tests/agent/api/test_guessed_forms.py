"""Guesses ahead, forms and tools together, several users at once: every answer is what plain decoding gives."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from kafila_agent.head.speculation import Speculation
from tests.agent.api.test_choices import CLOCK, SCHEMA, WEATHER, calling  # noqa: F401
from tests.agent.head.guessers import FixedWindow, Guesser, sometimes

DRAWN = {"temperature": 1.0, "top_p": 0.95, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
LISTS = {"type": "array", "items": {"enum": ["sun", "rain", "snow"]}, "minItems": 9, "maxItems": 9}
TOOLS = {"tools": [CLOCK, WEATHER]}
REQUESTS = {
    "a form": FORM,
    "a drawn form": FORM | {"seed": 1, **DRAWN},
    "a long form": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": LISTS}}
    },
    "a call": TOOLS | {"tool_choice": "required", "parallel_tool_calls": False, "seed": 2, **DRAWN},
    "tools and words": TOOLS | {"seed": 3, "stop": ["ab"], "max_tokens": 40, **DRAWN},
}


async def answers_of(api) -> dict[str, dict]:
    """All requests at once; what each was answered."""

    async def answer(words: str) -> dict:
        options = {"return_token_ids": True, **REQUESTS[words]}
        response = await api.chat(words, **options)
        assert response.status_code == 200, response.text
        return response.json()

    answers = await asyncio.gather(*map(answer, REQUESTS))
    return dict(zip(REQUESTS, answers, strict=True))


@pytest.mark.parametrize("rows", [2, 8])
async def test_answers_of_a_form_are_plain_decodings(make_api, calling, rows):  # noqa: F811
    options = {"text": calling, "wide": True, "context_tokens": 512, "listen": False}
    plain = await answers_of(await make_api(**options, slots=2, speculation=Speculation(most_rows=0)))
    assert json.loads(plain["a form"]["choices"][0]["message"]["content"])["city"] in ("Oslo", "Rome")
    assert json.loads(plain["a drawn form"]["choices"][0]["message"]["content"])["days"] in (1, 2)
    assert plain["a call"]["choices"][0]["finish_reason"] == "tool_calls"
    truth = {
        tuple(answer["prompt_token_ids"]): answer["choices"][0]["token_ids"] for answer in plain.values()
    }
    guesser = Guesser(truth, sometimes(random.Random(rows), 0.7))
    guessed = await answers_of(await make_api(**options, slots=3, speculation=FixedWindow(rows, guesser)))
    for words in REQUESTS:
        [choice], [expected] = guessed[words]["choices"], plain[words]["choices"]
        assert (words, choice["token_ids"]) == (words, expected["token_ids"])
        assert choice["message"]["content"] == expected["message"]["content"]
        assert choice["finish_reason"] == expected["finish_reason"]
    assert sum(answer["kafila"]["guesses"] for answer in guessed.values()) > 40
    assert sum(answer["kafila"]["right_guesses"] for answer in guessed.values()) > 0
    assert all(answer["kafila"]["guesses"] == 0 for answer in plain.values())
