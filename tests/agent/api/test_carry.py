"""A client of a member that is not the head: the head answers, over a real edge, as if it had been asked itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx2
import pytest

from kafila_agent.api import carry
from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.session import EdgeSession
from tests.agent.api.conftest import MODEL, Api
from tests.agent.edge.conftest import SESSION_ID, make_member

HOST = "127.0.0.1"


@dataclass
class Carried:
    """The head's Api, and a member's server that an edge joins to it."""

    head: Api
    edge: Edge
    http: httpx2.AsyncClient

    async def chat(self, **options) -> httpx2.Response:
        return await self.http.post("chat/completions", json=question(**options))


def question(**options):
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "temperature": 0} | options


async def connected(answer) -> tuple[list[EdgeEndpoint], Edge]:
    """Two endpoints, and the first one's edge to the second, which answers with ``answer``."""
    two = [make_member("lap"), make_member("desk")]
    endpoints = [EdgeEndpoint.open(member, HOST) for member in two]
    roster = {member.fingerprint: member.name for member in two}
    for endpoint, member in zip(endpoints, two, strict=True):
        endpoint.enter(EdgeSession(SESSION_ID, 1, member.name, roster), answer)
    edge, _ = await asyncio.gather(
        endpoints[0].connect(two[1].fingerprint, await endpoints[1].candidates()),
        endpoints[1].connect(two[0].fingerprint, await endpoints[0].candidates()),
    )
    return endpoints, edge


@pytest.fixture
async def carried(make_api, request):
    head = await make_api(**getattr(request, "param", {}))
    endpoints, edge = await connected(head.server.answer)

    async def reach_head() -> Edge:
        return edge

    service = Service("serving", "", MODEL, reach_head=reach_head)
    server = ApiServer(HOST, 0, lambda: service)
    await server.start()
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=20) as http:
        yield Carried(head, edge, http)
    for endpoint in endpoints:
        await endpoint.close()
    await server.close()


def same(one: httpx2.Response, other: httpx2.Response) -> bool:
    """Whether two answers differ in nothing but their ids, times, measures and what was computed before."""

    def plain(response):
        lines = [line for line in response.text.splitlines() if line]
        parsed = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
        for each in parsed:
            each.pop("id", None), each.pop("created", None), each.pop("kafila", None)
            (each.get("usage") or {}).pop("prompt_tokens_details", None)
        return response.status_code, response.headers["content-type"], parsed, len(lines)

    return plain(one) == plain(other)


@pytest.mark.parametrize("carried", [{"reply": "Good morning 👩‍👩‍👧."}], indirect=True)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_heads_answer_is_the_members(carried, stream):
    ours, theirs = await carried.chat(stream=stream), await carried.head.chat(stream=stream)
    assert ours.status_code == 200
    assert same(ours, theirs)
    assert ours.headers["x-request-id"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}',
        json.dumps(question(temperature=9)).encode(),
        json.dumps(question(max_tokens=100_000)).encode(),
    ],
)
async def test_so_are_its_errors(carried, body):
    headers = {"content-type": "application/json"}
    ours = await carried.http.post("chat/completions", content=body, headers=headers)
    theirs = await carried.head.http.post("chat/completions", content=body, headers=headers)
    assert ours.status_code in (400, 404)
    assert same(ours, theirs)


@pytest.mark.parametrize("path", ["models", f"models/{MODEL}", "models/other", "nonsense"])
async def test_and_everything_else_under_v1(carried, path):
    assert same(await carried.http.get(path), await carried.head.http.get(path))


@pytest.mark.parametrize("path", ["models", "nonsense"])
async def test_an_answer_given_before_the_request_has_ended_arrives_whole(carried, path):
    stream = carried.edge.streams.open()
    stream.send(carry._encode_head({"method": "GET", "path": f"/v1/{path}", "query": "", "headers": []}))
    head, rest = await carry._read_head(stream)
    rest += await carry._read_rest(stream)
    theirs = await carried.head.http.get(path)
    assert (head["status"], json.loads(rest)) == (theirs.status_code, theirs.json())
    assert (await carried.http.get(path)).json() == theirs.json(), "what was sent before this has arrived too"
    assert not stream.is_over, "it is not broken off"
    stream.send(b"nobody needs it", end=True)
    assert stream.is_over


async def test_the_head_knows_whose_request_it_is(carried, monkeypatch):
    asked = []
    generate = carried.head.engine.generate
    monkeypatch.setattr(carried.head.engine, "generate", lambda r: asked.append(r) or generate(r))
    await carried.chat(max_tokens=1)
    await carried.head.chat(max_tokens=1)
    assert [request.member for request in asked] == ["lap", ""]


async def test_a_body_that_is_too_long_never_leaves_the_member(carried, monkeypatch):
    monkeypatch.setattr(carry, "MAX_BODY_BYTES", 1000)

    async def chunks():
        for _ in range(3):
            yield b"x" * 600

    refused = await carried.http.post("chat/completions", content=chunks())
    assert refused.status_code == 413
    assert "1000 bytes" in refused.json()["error"]["message"]


@pytest.mark.parametrize("carried", [{"held": 6}], indirect=True)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_slot_at_the_head(carried, stream):
    asking = asyncio.create_task(carried.chat(stream=stream, max_tokens=100))
    await carried.head.until(lambda: carried.head.requests == 1 and len(carried.head.ring.launched) >= 6)
    asking.cancel()
    await carried.head.until(lambda: carried.head.requests == 0)


@pytest.mark.parametrize("carried", [{"held": 6}], indirect=True)
async def test_a_lost_head_ends_a_stream_in_an_error_and_not_like_a_whole_answer(carried):
    async with carried.http.stream("POST", "chat/completions", json=question(stream=True)) as response:
        lines = response.aiter_lines()
        assert json.loads((await anext(lines)).removeprefix("data: "))["choices"]
        carried.edge.end("no answer for 8 s", lost=True)
        rest = [line async for line in lines if line]
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert "no answer for 8 s" in error["message"]
    assert error["code"] == "service_unavailable"


@pytest.mark.parametrize("carried", [{"held": 1}], indirect=True)
async def test_and_a_whole_answer_in_a_503(carried):
    asking = asyncio.create_task(carried.chat())
    await carried.head.until(lambda: carried.head.requests == 1)
    carried.edge.end("no answer for 8 s", lost=True)
    failed = await asking
    assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
    assert "no answer for 8 s" in failed.json()["error"]["message"]


async def test_a_head_that_cannot_be_reached_is_a_503_that_says_why():
    async def reach_head():
        raise EdgeError("no edge to desk: no path to this member within 30 s")

    service = Service("serving", "", MODEL, reach_head=reach_head)
    server = ApiServer(HOST, 0, lambda: service)
    transport = httpx2.ASGITransport(server.app)
    async with httpx2.AsyncClient(base_url=server.url, transport=transport) as http:
        failed = await http.post("chat/completions", json=question())
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "service_unavailable")
        assert "no edge to desk" in failed.json()["error"]["message"]
        healthy = await http.get(server.url.replace("/v1", "/health"))
        assert healthy.json()["status"] == "serving"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x05nope!",
        carry._encode_head({"method": "GET", "path": "/metrics", "query": "", "headers": []}),
        carry._encode_head({"method": "GET", "path": "/v1/models", "query": "", "headers": [["a"]]}),
        carry._encode_head({"method": "GET", "path": "/v1/models", "query": "", "headers": 7}),
    ],
)
async def test_what_is_no_request_is_broken_off(carried, sent):
    stream = carried.edge.streams.open()
    stream.send(sent, end=True)
    with pytest.raises(EdgeError, match="broke it off"):
        await stream.receive()
