"""Several choices, probabilities, forms, tools and thoughts, as the ``openai`` package sees them."""

from __future__ import annotations

import copy
import json
import math

import openai
import pytest

from kafila_agent.head.text import Text
from tests.agent.api.conftest import MODEL
from tests.agent.head.simulated_ring import next_logits

MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATE = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}
Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}({{ c.function.arguments.city }}){%
endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if think %}<think>
{% endif %}"""  # </think> ends a thought
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": NOTHING}}
SCHEMA = WEATHER["function"]["parameters"]


@pytest.fixture(scope="module")
def calling(text) -> Text:
    """A text side whose template knows tools and thoughts."""
    tokenizer = copy.deepcopy(text._tokenizer)
    tokenizer.chat_template = TEMPLATE
    return Text(tokenizer, text.eos_ids)


@pytest.fixture
async def client_of():
    clients = []

    def make(api) -> openai.AsyncOpenAI:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        clients.append(openai.AsyncOpenAI(base_url=api.url, api_key="x", max_retries=0, http_client=http))
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
def ask(make_api, client_of):
    """One chat, whole and streamed: the message, which must be the same either way, and the last choice."""

    async def ask(reply=None, text=None, **options):
        texts = {} if text is None else {"text": text}
        api = await make_api(reply, wide=True, context_tokens=512, **texts)
        create = client_of(api).chat.completions.create
        options = {"model": MODEL, "messages": MESSAGES, "temperature": 0} | options
        whole = (await create(**options)).choices[0]
        chunks = [chunk async for chunk in await create(**options, stream=True)]
        assert streamed(chunks) == plain(whole.message)
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
        assert reasons == [None] * (len(reasons) - 1) + [whole.finish_reason]
        return whole

    return ask


def plain(message):
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return message.content or "", getattr(message, "reasoning_content", None) or "", calls


def streamed(chunks):
    content, reasoning, calls = "", "", []
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            calls += [(call.function.name, call.function.arguments) for call in choice.delta.tool_calls or []]
    return content, reasoning, calls


async def test_several_choices_are_each_drawn_with_a_seed_of_their_own(make_api, client_of):
    api = await make_api(slots=2)
    create = client_of(api).chat.completions.create
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    alone = [(await create(**options, seed=seed)).choices[0].message.content for seed in (5, 6, 7)]
    together = await create(**options, seed=5, n=3)
    assert [choice.message.content for choice in together.choices] == alone
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    assert together.usage.completion_tokens == 18
    said = ["", "", ""]
    async for chunk in await create(**options, seed=5, n=3, stream=True):
        for choice in chunk.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == alone
    assert api.requests == 0


async def test_choices_that_find_no_room_leave_none_behind(make_api):
    api = await make_api("yes", slots=1, waiting_limit=1)
    refused = await api.chat(n=4)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert api.requests == 0


async def test_probabilities_are_the_models_own(make_api, client_of, text):
    api = await make_api()
    client = client_of(api)
    reply = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=3,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )
    choice, prompt = reply.choices[0], reply.model_extra["prompt_token_ids"]
    assert len(choice.logprobs.content) == len(choice.model_extra["token_ids"]) == 5
    for place, told in enumerate(choice.logprobs.content):
        history = (*prompt, *choice.model_extra["token_ids"][:place])
        expected = next_logits(history).log_softmax(-1)
        best = expected.topk(3)
        assert told.logprob == pytest.approx(float(best.values[0]), abs=1e-4)
        assert [top.logprob for top in told.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert [bytes(top.bytes) for top in told.top_logprobs] == [
            text.token_bytes(token) for token in best.indices.tolist()
        ]


async def test_bytes_of_a_broken_character_make_it_whole(ask):
    choice = await ask("x 👩‍👩‍👧 漢", logprobs=True)
    data = b"".join(bytes(told.bytes) for told in choice.logprobs.content)
    assert data.decode() == choice.message.content == "x 👩‍👩‍👧 漢"
    assert not any(told.top_logprobs for told in choice.logprobs.content)


async def test_plain_completions_tell_them_in_their_own_way(make_api, client_of):
    client = client_of(await make_api("one two"))
    options = {"model": MODEL, "prompt": "hi", "logprobs": 2, "temperature": 0}
    told = (await client.completions.create(**options, best_of=1)).choices[0].logprobs
    assert told.tokens == ["one", " two"]
    assert told.text_offset == [0, 3]
    assert told.token_logprobs == pytest.approx([0.0, 0.0], abs=1e-4)
    assert all(len(top) == 2 for top in told.top_logprobs)
    chunks = [chunk async for chunk in await client.completions.create(**options, stream=True)]
    tokens = [token for c in chunks if c.choices[0].logprobs for token in c.choices[0].logprobs.tokens]
    assert tokens == told.tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strict", [True, None])
async def test_an_answer_of_a_schema_is_one_whatever_the_model_would_say(ask, seed, strict):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": strict}}
    choice = await ask(response_format=form, temperature=1.5, seed=seed)
    assert choice.finish_reason == "stop"
    answer = json.loads(choice.message.content)
    assert set(answer) == {"city", "days"}
    assert answer["city"] in ("Oslo", "Rome")


async def test_a_json_object_is_one(ask):
    choice = await ask('{"a": [1, 2, {"b": null}]} and more', response_format={"type": "json_object"})
    assert (choice.message.content, choice.finish_reason) == ('{"a": [1, 2, {"b": null}]}', "stop")


async def test_a_call_is_told_as_such_and_its_arguments_are_json(ask, calling):
    said = 'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    choice = await ask(said, calling, tools=[WEATHER])
    assert plain(choice.message) == ("I look.", "", [("weather", '{"city": "Oslo", "days": 2}')])
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].id.startswith("call_")


async def test_without_tools_the_same_text_is_text(ask, calling):
    said = 'I look.\n<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    assert (await ask(said, calling)).message.content == said
    assert (await ask(said, calling, tools=[WEATHER], tool_choice="none")).message.content == said


async def test_what_looks_like_a_call_and_is_none_stays_text(ask, calling):
    choice = await ask("See <tool_call>nonsense</tool_call> 👍🏽", calling, tools=[WEATHER])
    assert plain(choice.message)[2] == []
    assert "nonsense" in choice.message.content
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
async def test_a_call_that_must_be_made_is_made(ask, calling, seed, choice):
    made = await ask(
        None,
        calling,
        tools=[CLOCK, WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
        seed=seed,
        temperature=1.0,
    )
    content, _, calls = plain(made.message)
    assert (content, made.finish_reason, len(calls)) == ("", "tool_calls", 1)
    name, arguments = calls[0]
    if choice != "required":
        assert name == "weather"
    if name == "weather":
        assert json.loads(arguments)["city"] in ("Oslo", "Rome")


async def test_strict_keeps_a_free_call_to_its_schema(ask, calling):
    strict = copy.deepcopy(WEATHER)
    strict["function"]["strict"] = True
    said = 'Well. <tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    assert plain((await ask(said, calling, tools=[strict])).message)[2] == [
        ("weather", '{"city": "Oslo", "days": 2}')
    ]
    assert (await ask("Just text.", calling, tools=[strict])).message.content == "Just text."


async def test_a_thought_is_told_apart_wherever_it_began(ask, calling):
    opened = await ask("<think>Let me see.</think>\n\nHello.", calling)
    assert plain(opened.message) == ("Hello.", "Let me see.", [])
    begun = await ask(
        "Let me see.\n</think>\n\nHello.", calling, extra_body={"chat_template_kwargs": {"think": True}}
    )
    assert plain(begun.message) == ("Hello.", "Let me see.\n", [])


async def test_a_form_is_for_what_follows_the_thought(ask, calling):
    choice = await ask(
        'Hm, {"a".</think>\n\n{"city": "Rome", "days": 1}',
        calling,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        extra_body={"chat_template_kwargs": {"think": True}},
    )
    assert plain(choice.message) == ('{"city": "Rome", "days": 1}', 'Hm, {"a".', [])


async def test_calls_and_their_answers_go_back_into_the_template(make_api, client_of, calling, monkeypatch):
    api = await make_api("It rains.", text=calling)
    asked = []
    generate = api.engine.generate
    monkeypatch.setattr(api.engine, "generate", lambda request: asked.append(request) or generate(request))
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    await client_of(api).chat.completions.create(
        model=MODEL,
        tools=[WEATHER],
        messages=[
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ],
    )
    prompt = calling.decode(asked[0].prompt)
    assert "<tool_call>weather(Oslo)" in prompt
    assert "<|im_start|>tool\nrain" in prompt
    assert '"days"' in prompt


async def test_how_the_answer_was_made_is_told(make_api, client_of):
    api = await make_api("one two three")
    api.service.__dict__["ring"] = ("desk", "lap")
    whole = await api.chat()
    assert whole.headers["x-kafila-members"] == "desk,lap"
    made = whole.json()["kafila"]
    assert made["members"] == ["desk", "lap"]
    assert made["ttft_s"] > 0
    assert made["tokens_per_s"] > 0
    assert 0 < made["network_share"] < 1
    assert float(whole.headers["x-kafila-ttft-s"]) == pytest.approx(made["ttft_s"], abs=1e-4)
    assert math.isclose(float(whole.headers["x-kafila-network-share"]), made["network_share"], abs_tol=1e-4)
    for options in ({}, {"stream_options": {"include_usage": True}}):
        stream = await client_of(api).chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, stream=True, **options
        )
        chunks = [chunk async for chunk in stream]
        assert [bool(chunk.model_extra.get("kafila")) for chunk in chunks[-2:]] == [False, True]
