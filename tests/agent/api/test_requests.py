"""What is refused, and how it is said."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from tests.agent.api.conftest import MODEL

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": MODEL, "prompt": "hi"}
TOOL = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
BAD = {"name": "weather", "arguments": "[1]"}


def schema_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.fixture
def make_api(make_api):
    """In memory: these requests need no socket."""
    return functools.partial(make_api, listen=False)


def error_of(response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL]}, "tools"),  # this model's template has no place for them
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.json_schema"),
        (schema_format({"type": "objekt"}), "response_format.json_schema.schema"),
        (schema_format({"not": {"type": "string"}}), "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"best_of": 1}, "best_of"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stop": ""}, "stop[0]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_cost": True}}, "stream_options.include_cost"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": BAD}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"chat_template_kwargs": {"tokenize": False}}, "messages"),
    ],
)
async def test_each_argument_that_cannot_be_honoured_is_refused_by_name(make_api, change, param):
    api = await make_api("yes")
    error = error_of(await api.http.post("chat/completions", json=CHAT | change), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"] or param == "messages"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 99999999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"messages": []}, "messages"),
    ],
)
async def test_plain_completions_refuse_theirs(make_api, change, param):
    api = await make_api("yes")
    error = error_of(await api.http.post("completions", json=TEXT | change), 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    "change",
    [
        {
            "user": "u",
            "metadata": {"a": "b"},
            "store": True,
            "service_tier": "auto",
            "parallel_tool_calls": True,
        },
        {"n": 1, "logprobs": False, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}},
        {
            "max_tokens": None,
            "temperature": None,
            "top_p": None,
            "stop": None,
            "seed": None,
            "logit_bias": None,
        },
        {"max_tokens": 50, "max_completion_tokens": 50},
        {
            "temperature": 0,
            "top_p": 0,
            "top_k": -1,
            "min_p": 0,
            "presence_penalty": 0,
            "frequency_penalty": 2,
        },
        {
            "messages": [
                {
                    "role": "developer",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                }
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "hi", "name": "ann"},
                {
                    "role": "assistant",
                    "content": "yo",
                    "refusal": None,
                    "tool_calls": None,
                    "annotations": [],
                },
            ]
        },
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
async def test_what_asks_for_nothing_special_is_answered(make_api, change):
    api = await make_api("yes")
    response = await api.http.post("chat/completions", json=CHAT | change)
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"] == "yes"


async def test_missing_arguments_are_named(make_api):
    api = await make_api("yes")
    for missing in ("model", "messages"):
        body = {key: value for key, value in CHAT.items() if key != missing}
        error = error_of(await api.http.post("chat/completions", json=body), 400)
        assert (error["param"], error["message"]) == (missing, f"Missing required parameter: '{missing}'.")


@pytest.mark.parametrize(
    "content",
    [
        '{"model": "smollm2", "messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "\\ud800": 1}',
        '{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "stop": "\\udfff"}',
        '{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        '{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "logit_bias": {"1": Infinity}}',
        '{"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "seed": 1' + "0" * 400 + "}",
        '{"model": ' + "[" * 100_000,
    ],
)
async def test_hostile_json_is_a_400_too(make_api, content):
    api = await make_api("yes")
    headers = {"content-type": "application/json"}
    error_of(await api.http.post("chat/completions", content=content.encode(), headers=headers), 400)


async def test_half_a_surrogate_pair_is_refused_wherever_it_is(make_api):
    api = await make_api("yes")
    headers = {"content-type": "application/json"}
    content = r'{"model": "\ud800", "prompt": "hi"}'
    error_of(await api.http.post("completions", content=content, headers=headers), 404)
    content = r'{"model": "smollm2", "prompt": "\ud800"}'
    error_of(await api.http.post("completions", content=content, headers=headers), 400)


@pytest.mark.parametrize("content", [b"{", b"", b"[1", b"nonsense", b"\xff\xfe", b'{"a": NaN, }'])
async def test_what_is_not_json_is_a_400(make_api, content):
    api = await make_api("yes")
    headers = {"content-type": "application/json"}
    error_of(await api.http.post("chat/completions", content=content, headers=headers), 400)


@pytest.mark.parametrize("content", [b"[]", b"7", b'"x"', b"null"])
async def test_json_that_is_no_object_is_a_400(make_api, content):
    api = await make_api("yes")
    headers = {"content-type": "application/json"}
    error = error_of(await api.http.post("chat/completions", content=content, headers=headers), 400)
    assert "JSON object" in error["message"]


async def test_a_body_of_another_type_is_not_read(make_api):
    """A page of another origin may post text/plain without asking first: it must not reach the model."""
    api = await make_api("yes")
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = await api.http.post(
            "chat/completions", content=json.dumps(CHAT), headers={"content-type": kind}
        )
        assert "application/json" in error_of(response, 400)["message"]
    assert not api.ring.launched


async def test_a_body_beyond_reason_is_refused(make_api):
    api = await make_api("yes")
    body = CHAT | {"messages": [{"role": "user", "content": "x" * (33 << 20)}]}
    error_of(await api.http.post("chat/completions", json=body), 413)


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
async def test_a_prompt_beyond_any_context_is_not_even_tokenized(make_api, monkeypatch, route):
    api = await make_api("yes")
    monkeypatch.setattr(type(api.engine.text), "encode", lambda *_: pytest.fail("tokenized"))
    monkeypatch.setattr(type(api.engine.text), "encode_chat", lambda *_: pytest.fail("tokenized"))
    long = "word " * (256 * 256)
    prompt = {"prompt": long} if route == "completions" else {"messages": [{"role": "user", "content": long}]}
    response = await api.http.post(route, json={"model": MODEL} | prompt)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_unknown_paths_and_methods_are_error_objects_too(make_api):
    api = await make_api("yes")
    error_of(await api.http.get("nothing"), 404)
    error_of(await api.http.get("chat/completions"), 405)


async def test_differing_limits_are_not_guessed_between(make_api):
    api = await make_api("yes")
    response = await api.http.post(
        "chat/completions", json=CHAT | {"max_tokens": 5, "max_completion_tokens": 6}
    )
    assert "max_completion_tokens differ" in error_of(response, 400)["message"]


async def test_stream_options_need_a_stream(make_api):
    api = await make_api("yes")
    response = await api.http.post(
        "chat/completions", json=CHAT | {"stream_options": {"include_usage": True}}
    )
    assert "only allowed when stream is true" in error_of(response, 400)["message"]


async def test_a_prompt_that_leaves_no_room_names_both_numbers(make_api, text):
    api = await make_api("yes", context_tokens=40)
    prompt = list(range(20, 60))
    error = error_of(await api.http.post("completions", json=TEXT | {"prompt": prompt}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "40 tokens" in error["message"]
    assert "(40 in the prompt" in error["message"]
    assert error["param"] == "prompt"
    assert (await api.http.post("completions", json=TEXT | {"prompt": prompt[:39]})).status_code == 200
    response = await api.http.post("completions", json=TEXT | {"prompt": prompt[:30], "max_tokens": 11})
    assert error_of(response, 400)["code"] == "context_length_exceeded"


async def test_an_answer_without_a_limit_fills_the_context(make_api):
    api = await make_api("word " * 100, context_tokens=60)
    for limit in ({}, {"max_tokens": None}):
        body = (await api.http.post("completions", json=TEXT | {"prompt": [5] * 20} | limit)).json()
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 40
    for limit in ({"max_tokens": 1}, {"max_completion_tokens": 1}):
        body = (
            (await api.chat(**limit)).json()
            if "max_tokens" not in limit
            else (await api.http.post("completions", json=TEXT | limit)).json()
        )
        assert body["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("stop", ["three", ["nine", "three"]])
async def test_stop_strings_end_the_answer_streamed_or_not(make_api, stop):
    api = await make_api("one two three four")
    body = (await api.chat(stop=stop)).json()
    assert body["choices"][0]["message"]["content"] == "one two "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert "three" not in (await api.chat(stop=stop, stream=True)).text


async def test_a_full_house_says_when_to_come_back(make_api):
    api = await make_api("yes", held=1, slots=1, waiting_limit=0)
    first = asyncio.create_task(api.chat())
    await api.until(lambda: api.requests == 1)
    response = await api.chat()
    error = error_of(response, 503)
    assert error["code"] == "busy"
    assert int(response.headers["retry-after"]) >= 1
    api.ring.release()
    assert (await first).status_code == 200
    assert (await api.chat()).status_code == 200
