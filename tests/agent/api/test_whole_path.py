"""From OpenAI's client over HTTP, the engine and real stages back to the text: what transformers itself would say."""

from __future__ import annotations

import asyncio

import openai
import pytest

from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer
from tests.agent.head.models import TINY_TEMPLATE, give_tokenizer
from tests.agent.head.real_ring import RealRing, WholeModel


@pytest.fixture
async def session(checkpoint, tmp_path):
    """(client, ring, the model's directory) of a two-stage ring."""
    directory = give_tokenizer(checkpoint("llama"), tmp_path / "llama", template=TINY_TEMPLATE)
    ring = RealRing(directory, [(0, 2), (2, 6)], slots=2)
    server = ApiServer("127.0.0.1", 0, lambda: Service("serving", "", "tiny", ring.engine))
    await server.start()
    async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client, ring, directory
    await server.close()
    await ring.close()


async def test_whole_and_streamed_answers_of_several_users_are_transformers_own(session):
    client, ring, directory = session
    model, text = WholeModel(directory), ring.engine.text

    def expected(prompt: list[int]) -> str:
        ids = model.greedy(tuple(prompt), 16)
        detokenizer = text.detokenizer(prompt)
        return "".join(detokenizer.push(i) for i in ids if i != 2) + detokenizer.flush()

    async def whole(words: str) -> str:
        answer = await client.completions.create(model="tiny", prompt=words, max_tokens=16, temperature=0)
        return answer.choices[0].text

    async def streamed(words: str) -> str:
        turns = [{"role": "user", "content": words}]
        stream = await client.chat.completions.create(
            model="tiny", messages=turns, max_tokens=16, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    words = ["a", "Once upon a time", "ring " * 7]
    answers = await asyncio.gather(*map(whole, words), *map(streamed, words))
    prompts = [text.encode(each) for each in words]
    prompts += [text.encode_chat([{"role": "user", "content": each}]) for each in words]
    assert answers == [expected(prompt) for prompt in prompts]
    assert ring.errors == []
