"""The server itself: events on the wire, clients that leave, states, names, keys and ports."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx2
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from kafila_agent.api import responses
from kafila_agent.api.listening import ApiServerError, listen
from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer
from kafila_agent.edge.frame import Kind
from tests.agent.api.conftest import MODEL


async def raw_chat(api, **options) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A chat request sent over a plain socket, whose answer has not been read."""
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | options).encode()
    port = int(api.url.split(":")[2].removesuffix("/v1"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    return reader, writer


async def test_the_stream_on_the_wire(make_api):
    api = await make_api("Hi 漢")
    response = await api.chat(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    head = {key: chunks[0][key] for key in ("id", "created", "model", "object")}
    assert all({key: chunk[key] for key in head} == head for chunk in chunks)
    choices = [chunk["choices"] for chunk in chunks]
    assert choices[0] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert choices[1] == [{"index": 0, "delta": {"content": "Hi"}, "logprobs": None, "finish_reason": None}]
    assert choices[-2] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert choices[-1] == []
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert set(chunks[-1]["usage"]) == {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
    }
    plain = await api.chat(stream=True)
    assert "usage" not in plain.text


async def test_a_stream_that_breaks_off_ends_with_an_error_event_and_without_done(make_api):
    api = await make_api("one two three four", held=4)
    reader, writer = await raw_chat(api, stream=True)
    await reader.readuntil(b'"content":"one"')
    api.engine.fail("lap left the session")
    rest = (await reader.readuntil(b"0\r\n\r\n")).decode()
    assert '"error":{"message":"lap left the session","type":"server_error"' in rest
    assert "[DONE]" not in rest
    assert 'finish_reason":"' not in rest
    writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_and_the_next_is_served(make_api, stream):
    api = await make_api("word " * 200, held=6, slots=1)
    reader, writer = await raw_chat(api, stream=stream)
    if stream:
        await reader.readuntil(b"word")
    else:
        await api.until(lambda: len(api.ring.launched) == 6)
    writer.close()
    await writer.wait_closed()
    await api.until(lambda: not api.requests)
    assert api.ring.launched[-1].kind is Kind.RELEASE
    assert len(api.ring.launched) <= 8, "one step later at most"
    api.ring.release()
    assert (await api.chat(max_tokens=2)).status_code == 200
    await api.until(lambda: api.ring.idle)
    assert not api.ring.owned


async def test_twenty_that_leave_before_their_first_token_leave_nothing_behind(make_api):
    api = await make_api("word " * 200, held=2, slots=2, waiting_limit=40)
    connections = [await raw_chat(api, stream=bool(i % 2)) for i in range(20)]
    await api.until(lambda: api.requests == 20)
    for _, writer in connections[
        2:
    ]:  # those that wait leave first: a slot that comes free is for who is still there
        writer.close()
    await api.until(lambda: api.requests == 2)
    for _, writer in connections[:2]:
        writer.close()
    await api.until(lambda: not api.requests)
    api.ring.release()
    assert (await api.chat(max_tokens=2)).status_code == 200
    await api.until(lambda: api.ring.idle)
    computed = [frame.sequence for frame in api.ring.launched if frame.kind is Kind.TOKENS]
    assert set(computed) == {1, 2, 21}


async def test_a_long_silence_is_broken_by_comments(make_api, monkeypatch):
    monkeypatch.setattr(responses, "KEEP_ALIVE_S", 0.01)
    api = await make_api("Hi", held=1)
    reader, writer = await raw_chat(api, stream=True)
    head = await reader.readuntil(b": still working\n\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b'"role":"assistant"' in head
    api.ring.release()
    rest = await reader.readuntil(b"[DONE]")
    assert b'"content":"Hi"' in rest
    writer.close()


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (Service("loading", model=MODEL, retry_after_s=9), "does not serve yet: loading"),
        (Service("serving", "this member is not the head: ask desk's agent", MODEL), "ask desk's agent"),
    ],
)
async def test_without_an_engine_every_route_says_what_to_wait_for(make_api, service, words):
    api = await make_api("yes", service=service)
    for response in (await api.chat(), await api.chat(stream=True), await api.http.get("models")):
        assert response.status_code == 503
        assert words in response.json()["error"]["message"]
        assert response.headers["retry-after"] == str(service.retry_after_s)


async def test_health_and_version(make_api):
    api = await make_api("yes", service=Service("loading", "lap reads its blocks", MODEL))
    response = await api.http.get("http://localhost" + api.url[len("http://127.0.0.1") : -3] + "/health")
    assert response.status_code == 503
    assert response.json() == {"status": "loading", "model": MODEL, "message": "lap reads its blocks"}
    assert "retry-after" in response.headers
    api.service = Service("serving", "", MODEL, api.engine)
    response = await api.http.get(api.url[:-3] + "/health")
    assert (response.status_code, response.json()["status"]) == (200, "serving")
    assert set((await api.http.get(api.url[:-3] + "/version")).json()) == {"version"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:9", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
async def test_only_local_names_are_answered(make_api, host, status):
    api = await make_api("yes")
    response = await api.http.get("models", headers={"host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost"},  # another program's page on this machine: another port
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_no_page_of_another_origin_is_let_in(make_api, headers):
    api = await make_api("yes")
    preflight = {"access-control-request-method": "POST"}
    body = b'{"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}]}'
    for response in (
        await api.http.options("chat/completions", headers=headers | preflight),
        await api.http.post("chat/completions", headers=headers, content=body),
        await api.http.post(
            "chat/completions", headers=headers | {"content-type": "text/plain"}, content=body
        ),
        await api.http.get("models", headers=headers),
    ):
        assert (response.status_code, response.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_page_of_our_own_origin_is_served(make_api):
    api = await make_api("yes")
    headers = {"origin": api.url.removesuffix("/v1"), "sec-fetch-site": "same-origin"}
    assert (await api.http.get("models", headers=headers)).status_code == 200


async def test_a_request_keeps_its_id_or_gets_one(make_api):
    api = await make_api("yes")
    for response in (await api.http.get("models", headers={"x-request-id": "abc-1"}),):
        assert response.headers["x-request-id"] == "abc-1"
    for given in ("x" * 200, "with space", None):
        response = await api.http.get("nothing", headers={} if given is None else {"x-request-id": given})
        assert response.headers["x-request-id"].startswith("req_")


async def test_a_key_is_asked_for_where_one_is_set(make_api):
    api = await make_api("yes", server={"api_key": "s3cret"})
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic s3cret"}):
        response = await api.http.get("models", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert (await api.http.get("models", headers={"authorization": "Bearer s3cret"})).status_code == 200
    assert (await api.http.get(api.url[:-3] + "/health")).status_code == 200


def test_an_address_that_others_reach_needs_a_key():
    for host in ("0.0.0.0", "::", "192.0.2.1", "machine.example"):
        with pytest.raises(ApiServerError, match="--api-key-file"):
            ApiServer(host, 0, lambda: Service("forming"))


async def test_an_address_that_others_reach_answers_by_any_name_to_who_has_the_key(make_api):
    with capture_logs() as logs:
        api = await make_api("yes", server={"api_key": "s3cret", "host": "0.0.0.0"})
    assert [entry["event"] for entry in logs if "open to other machines" in entry["event"]]
    assert "s3cret" not in str(logs)
    assert api.url.startswith("http://127.0.0.1:")
    key = {"authorization": "Bearer s3cret"}
    assert (await api.http.get("models", headers=key | {"host": "desk.example:7480"})).status_code == 200
    assert (await api.http.get("models", headers={"host": "desk.example"})).status_code == 401
    rebound = {"host": "evil.example", "origin": "http://evil.example"}  # the page has no key
    assert (await api.http.get("models", headers=rebound)).status_code == 401


def test_what_is_sent_in_several_packets_waits_for_no_acknowledgement():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_port_in_use_is_named_with_the_option_that_changes_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ApiServer("127.0.0.1", port, lambda: Service("forming"))
        with pytest.raises(ApiServerError, match=rf"port {port} on 127.0.0.1 is in use: .* --api-port"):
            await server.start()
        await server.close()


async def test_the_url_is_the_address_and_the_port_is_free_again_after_closing():
    server = ApiServer("127.0.0.1", 0, lambda: Service("forming"))
    await server.start()
    port = int(server.url.removeprefix("http://127.0.0.1:").removesuffix("/v1"))
    await server.close()
    again = ApiServer("127.0.0.1", port, lambda: Service("forming"))
    await again.start()
    assert again.url == f"http://127.0.0.1:{port}/v1"
    async with httpx2.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{again.url}/models")).status_code == 503
    await again.close()


async def test_an_unforeseen_fault_is_an_error_object_without_its_insides(make_api, monkeypatch):
    api = await make_api("yes")

    def broken(request):
        raise RuntimeError("insides")

    monkeypatch.setattr(api.engine, "generate", broken)
    response = await api.chat()
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "internal error (RuntimeError)"


async def test_a_request_is_one_line_of_the_log_with_its_id_and_nothing_of_what_it_says(make_api):
    api = await make_api("yes")
    with capture_logs(processors=[merge_contextvars]) as logged:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "my secret"}]}
        await api.http.post("chat/completions", json=body, headers={"x-request-id": "abc-1"})
    (line,) = [line for line in logged if line["event"] == "request"]
    assert line.pop("took_s") >= 0
    assert line == {
        "event": "request",
        "log_level": "debug",
        "path": "/v1/chat/completions",
        "request": "abc-1",
        "status": 200,
    }
