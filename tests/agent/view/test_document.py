"""What the page may show of a status, and what it is told beside it."""

from __future__ import annotations

import json

import pytest

from kafila_agent.view.document import page_document, status_json
from kafila_proto import agent_pb2 as pb
from tests.agent.view.sessions import PLAN, serving_session, session

SECRET = "482913-otter-lamp"


def status(about: pb.SessionStatus) -> pb.Status:
    return pb.Status(
        name="desk",
        fingerprint="f00d" * 16,
        version="1",
        rendezvous="rendezvous.example:7470",
        attached=True,
        api_url="http://127.0.0.1:7480/v1",
        metrics_url="http://127.0.0.1:7481/metrics",
        session=about,
    )


def test_it_says_what_the_status_says():
    about = serving_session()
    about.measured.tokens_per_s = 12.5
    shown = page_document(status(about))
    whole = json.loads(status_json(status(about)))
    assert {name: shown[name] for name in ("name", "version", "attached")} == {
        "name": "desk",
        "version": "1",
        "attached": True,
    }
    for name, value in shown["session"].items():
        if name not in ("predicted_tokens_per_s", "lines", "causes"):
            assert value == whole["session"][name], name
    assert shown["session"]["plan"] == PLAN
    assert shown["session"]["predicted_tokens_per_s"] > 0
    assert [line for line in shown["session"]["lines"] if line.startswith("not guessing ahead")]
    assert shown["session"]["causes"] == []


@pytest.mark.parametrize("state", ["FORMING", "HELD", "SERVING"])
def test_no_code_and_no_address_is_in_it(state):
    host = status(session(state, code=SECRET, reason="waiting for tower"))
    said = json.dumps(page_document(host))
    for secret in (SECRET, "otter", host.fingerprint, "rendezvous.example", "127.0.0.1"):
        assert secret not in said
    assert host.session.code == SECRET  # of the status itself nothing was taken


def test_what_holds_it_back_comes_with_the_next_step():
    held = page_document(status(session("HELD", reason="waiting for tower")))["session"]
    assert held["causes"] == [
        {
            "finding": "the session waits: waiting for tower",
            "next_step": "start the agent there, or give the session up with kafila-ctl session leave",
        }
    ]
    forming = page_document(status(pb.SessionStatus(state="FORMING", code=SECRET, expected_members=2)))
    assert "kafila-ctl session code" in forming["session"]["causes"][0]["next_step"]


def test_without_a_session_there_is_nothing_to_tell():
    shown = page_document(status(pb.SessionStatus()))["session"]
    assert (shown["state"], shown["plan"], shown["lines"], shown["causes"]) == ("none", None, [], [])
    assert shown["predicted_tokens_per_s"] is None
