"""Real processes: whoever is in the session uses the model at an address of its own machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx2
import openai
import pytest

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb

WAIT_S = 120
pytestmark = pytest.mark.timeout(300)  # four processes form a session and load a model
NAMES = ("desk", "laptop", "tower", "attic")
OVER = (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED)
QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def fleet(smollm2):
    """Four in a ring: the one opposite the head has no edge to it until it asks something."""
    models = ["--model-dir", str(smollm2.parent)]
    with LocalFleet(dict.fromkeys(NAMES, models)) as fleet:
        request = pb.CreateRequest(
            model=str(smollm2), members=4, context_tokens=512, concurrency=3, dtype="bfloat16"
        )
        code = fleet.agent("desk").CreateSession(request).session.code
        for name in NAMES[1:]:
            fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
        yield fleet


@pytest.fixture(scope="module")
def served(fleet):
    """Every member's status, and the ring from the head on."""
    by_name = {name: until(fleet, name, *OVER) for name in NAMES}
    for name, status in by_name.items():
        assert status.session.state == pb.SessionStatus.SERVING, f"{name}: {status.session.reason}"
    return by_name, json.loads(by_name["desk"].session.plan_json)["ring"]


def until(fleet, name, *states):
    for status in fleet.agent(name).WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
        if status.session.state in states:
            return status
    raise AssertionError("the stream ended")


def client_of(status) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(
        base_url=status.api_url, api_key="unused", timeout=WAIT_S, max_retries=0, http_client=http
    )


def wait_for_running(status, count: int, within_s: float = 30) -> None:
    """Until the head, whose ``status`` this is, has so many requests in its slots."""
    deadline = time.monotonic() + within_s
    while (
        f"\nkafila_num_requests_running {count:.1f}\n"
        not in httpx2.get(status.metrics_url, trust_env=False).text
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_get_the_same_answer_at_the_same_kind_of_address(served):
    by_name, _ = served
    answers = {}
    for name, status in by_name.items():
        client = client_of(status)
        model = client.models.list().data[0].id
        whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=16)
        stream = client.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=16, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        assert "".join(pieces) == whole.choices[0].message.content
        assert len(pieces) > 4, "it comes token by token"
        answers[name] = whole.choices[0].message.content
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=model, messages=QUESTION, max_tokens=100_000)
        assert refused.value.code == "context_length_exceeded"
    assert len(set(answers.values())) == 1, answers


def test_chat_works_on_any(fleet, served):
    _, ring = served
    for name in ring[:2] + ring[2:3]:
        state_dir = fleet.directory / f"a{NAMES.index(name)}"
        chat = subprocess.run(
            [sys.executable, *("-m", "kafila_agent.ctl.main", "--state-dir", str(state_dir), "chat", "-v")],
            input="Say hello.",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (chat.returncode, bool(chat.stdout.strip())) == (0, True), chat.stderr
        assert "tokens/s" in chat.stderr


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_at_a_member_frees_the_slot_at_the_head(served, stream):
    by_name, ring = served
    head, opposite = by_name[ring[0]], by_name[ring[2]]
    body = {"model": opposite.session.model, "messages": QUESTION, "max_tokens": 450, "ignore_eos": True}
    url = httpx2.URL(f"{opposite.api_url}/chat/completions")
    data = json.dumps(body | {"stream": stream}).encode()
    with socket.create_connection((url.host, url.port), WAIT_S) as client:
        client.sendall(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (url.raw_path, len(data), data)
        )
        wait_for_running(head, 1)
        if stream:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for_running(head, 0)
    assert client_of(opposite).models.list().data


def test_a_lost_head_is_told_to_a_members_client(fleet, served):
    by_name, ring = served
    opposite = by_name[ring[2]]
    client = client_of(opposite)
    stream = client.chat.completions.create(
        model=opposite.session.model,
        messages=QUESTION,
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    os.kill(fleet.pid(ring[0]), signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(openai.APIError, match="head"):
        for _ in stream:
            pass
    assert time.monotonic() - killed < 20
    assert until(fleet, ring[2], pb.SessionStatus.HELD).session.reason == f"waiting for {ring[0]}"
    with pytest.raises(openai.InternalServerError, match=ring[0]):
        client.models.list()
