"""Real processes: a member that is away is waited for, and comes back into the session by itself."""

import json
import signal
import socket

import grpc
import httpx2
import pytest

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_proto import agent_pb2 as pb

WAIT_S = 90
pytestmark = pytest.mark.timeout(300)
NAMES = ("desk", "laptop", "tower")
SERVING, HELD, CLOSED = pb.SessionStatus.SERVING, pb.SessionStatus.HELD, pb.SessionStatus.CLOSED


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def fleet(smollm2):
    agents = {
        name: ["--model-dir", str(smollm2.parent), "--api-port", str(port)]
        for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)
    }
    with LocalFleet(agents) as fleet:
        request = pb.CreateRequest(
            model=str(smollm2), members=3, context_tokens=512, concurrency=2, dtype="float32"
        )
        code = fleet.agent("desk").CreateSession(request).session.code
        for name in NAMES[1:]:
            fleet.agent(name).JoinSession(pb.JoinRequest(code=code))
        for name in NAMES:
            assert until(fleet, name, lambda s: s.state in (SERVING, CLOSED)).session.state == SERVING
        yield fleet


def until(fleet, name, is_so):
    for _ in range(3):  # an agent that has just started may not listen yet
        try:
            for status in fleet.agent(name).WatchStatus(
                pb.StatusRequest(), wait_for_ready=True, timeout=WAIT_S
            ):
                if is_so(status.session):
                    return status
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
    raise AssertionError("the stream ended")


def ask(status, **changes):
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": "Name three colours."}],
        "max_tokens": 12,
        "temperature": 0,
    }
    url = f"{status.api_url}/chat/completions"
    return httpx2.post(url, json=body | changes, trust_env=False, timeout=WAIT_S)


def answer(status) -> str:
    reply = ask(status)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def ring_of(status) -> list[str]:
    return list(json.loads(status.session.plan_json)["ring"])


@pytest.mark.parametrize(
    ("who", "how"),
    [("not the head", signal.SIGTERM), ("the head", signal.SIGKILL), ("the host", signal.SIGTERM)],
)
def test_who_is_started_again_is_back_and_the_answer_is_the_same(fleet, who, how):
    before = {name: until(fleet, name, lambda s: s.state == SERVING) for name in NAMES}
    ring, epoch = ring_of(before["desk"]), before["desk"].session.epoch
    others = [name for name in ring[1:] if name != "desk"]
    gone = {"not the head": others[0], "the head": ring[0], "the host": "desk"}[who]
    staying = next(name for name in NAMES if name != gone)
    expected = answer(before[staying])

    fleet.stop(gone, how)
    held = until(fleet, staying, lambda s: s.state == HELD)
    assert held.session.reason == f"waiting for {gone}"
    refused = ask(held)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "15")
    assert f"waiting for {gone}" in refused.json()["error"]["message"]

    fleet.start_again(gone)
    for name in NAMES:
        after = until(fleet, name, lambda s: s.state == SERVING and s.epoch > epoch)
        assert after.api_url == before[name].api_url
        assert answer(after) == expected
