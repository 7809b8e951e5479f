"""OpenAI's own client against a server that really listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import openai
import pytest

from tests.agent.api.conftest import MODEL, Api

SAID = "Hello 👩‍👩‍👧, 漢字 and\n\n“quotes”."
MESSAGES = [{"role": "user", "content": "Say it."}]


@pytest.fixture
async def client_of() -> AsyncIterator[Callable[[Api], openai.AsyncOpenAI]]:
    clients = []

    def make(api: Api) -> openai.AsyncOpenAI:
        clients.append(openai.AsyncOpenAI(base_url=api.url, api_key="none", max_retries=0))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


async def test_a_whole_chat_answer(make_api, client_of, text):
    api = await make_api(SAID)
    answer = await client_of(api).chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == SAID
    prompt = len(text.encode_chat(MESSAGES))
    completion = len(text.encode(SAID)) + 1
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_streamed_chat_answer_is_the_whole_one_in_pieces(make_api, client_of):
    api = await make_api(SAID)
    stream = await client_of(api).chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    *content, usage = chunks
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"
    assert content[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in content[1:])
    assert [chunk.choices[0].finish_reason for chunk in content] == [None] * (len(content) - 1) + ["stop"]
    pieces = [chunk.choices[0].delta.content or "" for chunk in content]
    assert "".join(pieces) == SAID
    assert len(pieces) > 5
    assert not any("\ufffd" in piece for piece in pieces)
    assert usage.choices == []
    assert usage.usage.completion_tokens > len(content) - 2
    assert all(chunk.usage is None for chunk in content)


async def test_plain_completions_whole_and_streamed(make_api, client_of):
    api = await make_api(SAID)
    client = client_of(api)
    whole = await client.completions.create(model=MODEL, prompt="Once", max_tokens=4)
    assert (whole.object, whole.choices[0].finish_reason) == ("text_completion", "length")
    assert whole.usage.completion_tokens == 4
    assert SAID.startswith(whole.choices[0].text.rstrip("\ufffd"))
    stream = await client.completions.create(model=MODEL, prompt="Once", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == SAID
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]], ["Once"]])
async def test_a_prompt_may_be_token_ids_or_a_list_of_one(make_api, client_of, prompt, text):
    api = await make_api(SAID)
    whole = await client_of(api).completions.create(model=MODEL, prompt=prompt)
    assert whole.choices[0].text == SAID
    assert whole.usage.prompt_tokens == (len(text.encode("Once")) if "Once" in prompt else 3)


async def test_the_models_are_listed_and_found(make_api, client_of):
    client = client_of(await make_api(SAID))
    (listed,) = (await client.models.list()).data
    assert (listed.id, listed.object, listed.created) == (MODEL, "model", 17)
    assert (await client.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError) as refusal:
        await client.models.retrieve("owner/other")
    assert refusal.value.code == "model_not_found"


async def test_errors_arrive_as_the_clients_own_exceptions(make_api, client_of):
    client = client_of(await make_api(SAID))
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError, match="'gpt-x' does not exist") as missing:
        await create(model="gpt-x", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(
        openai.BadRequestError, match=r"maximum context length is 256 tokens.*\(\d+ in the"
    ) as long:
        await create(model=MODEL, messages=[{"role": "user", "content": "word " * 300}])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError, match="tools"):
        await create(model=MODEL, messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}])


async def test_a_seed_repeats_an_answer_and_another_does_not(make_api, client_of):
    create = client_of(await make_api()).chat.completions.create

    async def said(seed: int) -> str:
        answer = await create(model=MODEL, messages=MESSAGES, seed=seed, max_tokens=12)
        return answer.choices[0].message.content

    assert await said(4) == await said(4)
    assert await said(4) != await said(5)


async def test_many_clients_at_once_get_what_each_gets_alone(make_api, client_of):
    api = await make_api(slots=3)
    create = client_of(api).chat.completions.create

    async def said(words: str) -> str:
        answer = await create(
            model=MODEL, messages=[{"role": "user", "content": words}], temperature=0, max_tokens=10
        )
        return answer.choices[0].message.content

    words = [f"question {i} " * (i + 1) for i in range(8)]
    alone = [await said(each) for each in words]
    assert await asyncio.gather(*(said(each) for each in words)) == alone
    assert len(set(alone)) == len(alone)


async def test_an_answer_that_breaks_off_raises_and_never_looks_whole(make_api, client_of):
    api = await make_api(SAID, held=8)
    stream = await client_of(api).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    chunks = [await anext(stream) for _ in range(2)]
    api.engine.fail("lap left the session")
    with pytest.raises(openai.APIError, match="lap left the session"):
        chunks.extend([chunk async for chunk in stream])
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks)


async def test_before_its_first_text_a_broken_answer_is_a_503(make_api, client_of):
    api = await make_api(SAID, held=1)
    for stream in (False, True):
        create = client_of(api).chat.completions.create
        waiting = asyncio.create_task(create(model=MODEL, messages=MESSAGES, stream=stream))
        if not stream:
            await api.until(lambda: api.requests == 1)
            api.engine.fail("lap left the session")
        with pytest.raises(openai.InternalServerError, match="lap left the session") as broken:
            await waiting
        assert broken.value.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_shown_when_asked_for(make_api, client_of, text, stream):
    api = await make_api(SAID)
    answer = await client_of(api).chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=stream, extra_body={"return_token_ids": True}
    )
    chunks = [chunk async for chunk in answer] if stream else [answer]
    shown = [chunk.model_dump() for chunk in chunks]
    assert [chunk["prompt_token_ids"] for chunk in shown if "prompt_token_ids" in chunk] == [
        text.encode_chat(MESSAGES)
    ]
    ids = [id_ for chunk in shown for choice in chunk["choices"] for id_ in choice.get("token_ids", [])]
    assert ids == [*text.encode(SAID), 2]  # to the model's own end, which has no text
