"""Real processes: whoever is in the session uses the model at an address of its own machine, after a restart too."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time

import httpx2
import openai
import pytest
from playwright.async_api import expect

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb
from tests.browser import PATIENCE_MS, open_page
from tests.ports import free_port

WAIT_S = 120
pytestmark = pytest.mark.timeout(300)  # four processes form a session and load a model
NAMES = ("desk", "laptop", "tower", "attic")
OVER = (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED)
WATCH_ANSWER = """() => {
    window.seen = new Set();
    new MutationObserver(() => {
        const text = document.querySelector(".message:not(.own) > .text")?.textContent;
        if (text) seen.add(text);
    }).observe(document.getElementById("talk"), {childList: true, subtree: true, characterData: true});
}"""
QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def fleet(smollm2, tmp_path_factory):
    """Four in a ring: the one opposite the head has no edge to it until it asks something.

    They are told how fast they are: measuring that four times, and again after each return, is not what is tried here.
    """
    pace = tmp_path_factory.mktemp("pace") / "fast.json"
    pace.write_text(json.dumps({"bandwidth_bytes_per_s": 1e12, "flops_per_s": 1e15}))
    options = ["--model-dir", str(smollm2.parent), "--pace", str(pace)]
    with LocalFleet({name: [*options, "--api-port", str(free_port())] for name in NAMES}) as fleet:
        request = pb.CreateRequest(
            model=str(smollm2), members=4, context_tokens=512, concurrency=3, dtype="bfloat16"
        )
        code = fleet.agent("desk").CreateSession(request).session.code
        for name in NAMES[1:]:
            fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
        yield fleet


@pytest.fixture(scope="module")
def served(fleet):
    """Every member's status, and the ring from the head on, as they were at first."""
    by_name = {name: until(fleet, name, *OVER) for name in NAMES}
    for name, status in by_name.items():
        assert status.session.state == pb.SessionStatus.SERVING, f"{name}: {status.session.reason}"
    return by_name, json.loads(by_name["desk"].session.plan_json)["ring"]


@pytest.fixture(scope="module")
def first_answer(served) -> str:
    """What the question is answered with before anything has happened to the session."""
    return answer_of(served[0]["desk"])


def until(fleet, name, *states, after_epoch=0):
    watching = fleet.agent(name).WatchStatus(pb.StatusRequest(), wait_for_ready=True, timeout=WAIT_S)
    for status in watching:
        if status.session.state in states and status.session.epoch > after_epoch:
            return status
    raise AssertionError("the stream ended")


def client_of(status) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(
        base_url=status.api_url, api_key="unused", timeout=WAIT_S, max_retries=0, http_client=http
    )


def answer_of(status) -> str:
    whole = client_of(status).chat.completions.create(
        model=status.session.model, messages=QUESTION, temperature=0, max_tokens=16
    )
    return whole.choices[0].message.content or ""


def wait_for_running(status, count: int, within_s: float = 30) -> None:
    """Until the head, whose ``status`` this is, has so many requests in its slots."""
    deadline = time.monotonic() + within_s
    while (
        f"\nkafila_num_requests_running {count:.1f}\n"
        not in httpx2.get(status.metrics_url, trust_env=False).text
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_all_get_the_same_answer_at_the_same_kind_of_address(served, first_answer):
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
        answers[name] = whole.choices[0].message.content or ""
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=model, messages=QUESTION, max_tokens=100_000)
        assert refused.value.code == "context_length_exceeded"
    assert set(answers.values()) == {first_answer}, answers


async def test_the_page_on_a_member_that_is_not_the_head(served, first_answer):
    """The question is typed, the answer comes piece by piece, and the session stands beside it."""
    by_name, ring = served
    name, plan = ring[2], json.loads(by_name[ring[0]].session.plan_json)
    url = by_name[name].api_url.removesuffix("v1")
    async with open_page(url) as watched:
        page = watched.page
        session = page.get_by_role("complementary", name="Session")
        await expect(session.locator("strong")).to_have_text(ring, timeout=PATIENCE_MS)
        for stage, edge in zip(plan["stages"], plan["edges"], strict=True):
            card = session.locator(".member", has_text=f"→ {edge['to']}:")
            start, end = stage["blocks"]
            await expect(card).to_contain_text(f"blocks {start}–{end - 1} of 30 ({end - start})")
            await expect(card.locator(".edge")).to_contain_text(re.compile(r": direct, [\d.]+\s[mµ]?s there"))
        await page.get_by_text("Settings").click()
        await page.get_by_label("Temperature").fill("0")
        await page.get_by_label("Tokens at most").fill("16")
        await page.get_by_label("Message", exact=True).fill(QUESTION[0]["content"])
        await page.evaluate(WATCH_ANSWER)
        await page.keyboard.press("Enter")
        answer = page.locator(".message:not(.own)")
        await expect(answer).to_contain_text("tokens/s", timeout=PATIENCE_MS)
        await expect(answer).to_contain_text(first_answer.removeprefix("1. "))  # which a list's item has
        assert await page.evaluate("seen.size") > 4, "it comes piece by piece"
        assert watched.complaints == []
        assert watched.origins == {url.rstrip("/")}


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


def test_a_lost_head_is_told_to_a_members_client(fleet, served, first_answer):
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
    fleet.stop(ring[0], signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(openai.APIError, match="head"):
        for _ in stream:
            pass
    assert time.monotonic() - killed < 20
    assert until(fleet, ring[2], pb.SessionStatus.HELD).session.reason == f"waiting for {ring[0]}"
    with pytest.raises(openai.InternalServerError, match=ring[0]):
        client.models.list()


def test_the_head_that_was_killed_is_started_again_and_the_answer_is_the_same(fleet, served, first_answer):
    by_name, ring = served
    fleet.start_again(ring[0])
    for name in NAMES:
        status = until(fleet, name, *OVER, after_epoch=1)
        assert status.session.state == pb.SessionStatus.SERVING, f"{name}: {status.session.reason}"
        assert status.api_url == by_name[name].api_url
        assert answer_of(status) == first_answer


def test_who_was_stopped_the_host_too_is_back_with_its_next_start(fleet, first_answer):
    """Two at once: the others wait for both, and keep their blocks."""
    before = until(fleet, "desk", *OVER).session
    others = [name for name in json.loads(before.plan_json)["ring"][1:] if name != "desk"]
    gone, stays = ["desk", others[0]], others[1]
    for name in gone:
        fleet.stop(name, signal.SIGTERM)
    held = until(fleet, stays, pb.SessionStatus.HELD)
    while held.session.reason != f"waiting for {' and '.join(sorted(gone, key=NAMES.index))}":
        held = until(fleet, stays, pb.SessionStatus.HELD)
    with pytest.raises(openai.InternalServerError, match="waiting for") as refused:
        answer_of(held)
    assert refused.value.response.headers["retry-after"] == "15"
    for name in gone:
        fleet.start_again(name)
    for name in NAMES:
        status = until(fleet, name, *OVER, after_epoch=before.epoch)
        assert status.session.state == pb.SessionStatus.SERVING, f"{name}: {status.session.reason}"
        assert answer_of(status) == first_answer
