"""Requests made from our own OpenAPI document, and bodies that break it, against the application in this process."""

from __future__ import annotations

import schemathesis
from hypothesis import settings

from kafila_agent.api.openai_routes import Service
from kafila_agent.api.server import create_app

MODEL = "smollm2"
PLAIN = {"host": "localhost"}
# OpenAI's own statuses stand in no document of ours; what must hold is that each is an answer and none a fault.
EXPECTED = {200, 400, 401, 403, 404, 405, 413, 415, 422, 503}

app = create_app(lambda: Service("forming", "the session does not serve yet", MODEL))
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@settings(max_examples=max(10, settings().max_examples // 5), deadline=None)
def test_every_request_is_answered_with_a_status_of_openais(case):
    response = case.call(headers=PLAIN)
    assert response.status_code in EXPECTED, response.text
    if response.status_code >= 400:
        assert set(response.json()) <= {"error", "status", "model", "message"}


def test_the_document_has_our_routes():
    assert {operation.ok().path for operation in schema.get_all_operations()} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
    }
