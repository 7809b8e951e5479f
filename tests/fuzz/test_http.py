"""Requests made from our own OpenAPI document, and bodies that break it, over real sockets: to a member that serves a
tiny model, whose every answer is computed, and to one that does not serve yet."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st

from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import ApiServer, create_app
from tests.agent.head.models import TINY_TEMPLATE, give_tokenizer
from tests.agent.head.real_ring import RealRing
from tests.fuzz.values import JSON, spoilt

MODEL = "tiny"
BLOCKS = [(0, 3), (3, 6)]
# OpenAI's own statuses stand in no document of ours; what must hold is that each is an answer and none a fault.
EXPECTED = {200, 400, 401, 403, 404, 405, 413, 415, 422, 503}
PATIENCE_S = 30
CHAT = {
    "model": MODEL,
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ],
    "max_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["a", "b"],
    "stream": True,
    "stream_options": {"include_usage": True},
}
COMPLETION = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 2, "echo": False, "logit_bias": None}
ROUTES = [("/chat/completions", CHAT), ("/completions", COMPLETION)]


class Head:
    """A server and a ring of two stages on an event loop in a thread of their own."""

    def __init__(self, directory) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._do(self._open(directory))

    def _do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    async def _open(self, directory) -> None:
        self.ring = RealRing(directory, BLOCKS, slots=2)
        self.service = Service("serving", "", MODEL, self.ring.engine, 17)
        self.server = ApiServer("127.0.0.1", 0, lambda: self.service)
        await self.server.start()

    def requests(self) -> int:
        """How many the engine still has to do with."""

        async def count() -> int:
            measured = self.ring.engine.measured()
            return measured.running + measured.waiting

        return self._do(count())

    def close(self) -> None:
        async def end() -> None:
            await self.server.close()
            await self.ring.close()

        self._do(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@pytest.fixture(scope="module")
def head(checkpoint, tmp_path_factory):
    directory = tmp_path_factory.mktemp("head") / "llama"
    made = Head(give_tokenizer(checkpoint("llama"), directory, template=TINY_TEMPLATE))
    yield made
    made.close()


@pytest.fixture(params=["serving", "forming"])
def base_url(head, request, monkeypatch):
    """Of a member in that state."""
    if request.param == "forming":
        monkeypatch.setattr(head, "service", Service("forming", "the session does not serve yet", MODEL))
    return head.server.url.removesuffix("/v1")


@pytest.fixture(scope="module")
def http(head):
    with httpx2.Client(base_url=head.server.url, trust_env=False, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="module")
def connection():
    """One for all requests, which looks for no proxy: else most of the time goes there."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


schema = schemathesis.openapi.from_dict(create_app(lambda: Service("forming")).openapi())


@schema.parametrize()
@settings(max_examples=max(10, settings().max_examples // 5), deadline=None)
def test_every_request_is_answered_with_a_status_of_openais(case, base_url, connection):
    response = case.call(base_url=base_url, session=connection, timeout=PATIENCE_S)
    assert response.status_code in EXPECTED, response.text
    if response.status_code >= 400:
        assert set(response.json()) <= {"error", "status", "model", "message"}


def test_a_body_that_is_almost_right_is_answered_or_refused_and_leaves_no_sequence(head, http):
    """One value of a good request spoilt: most of the way to the engine, and often all of it."""
    served = set()

    @given(st.one_of(*(st.tuples(st.just(path), spoilt(good) | JSON) for path, good in ROUTES)))
    def run(asked):
        path, body = asked
        response = http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert response.status_code in EXPECTED, response.text
        served.add(response.status_code)
        if response.status_code != 200:
            assert response.json()["error"]["message"]

    run()
    assert served >= {200, 400}
    assert head.requests() == 0
    assert not head.ring.errors


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"\0" * 1000, b"1" * 5000, b"NaN"]
)
def test_a_body_that_is_no_json_is_refused(http, body):
    response = http.post("/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_the_document_has_our_routes():
    assert {operation.ok().path for operation in schema.get_all_operations()} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
    }
