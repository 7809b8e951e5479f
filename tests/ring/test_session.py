"""A session between real processes: what goes wrong is said by name, to everyone, and nothing is left half-done."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx2
import pytest

from kafila_agent.ctl.local_fleet import FleetError, LocalFleet
from kafila_proto import agent_pb2 as pb

WAIT_S = 60
OVER = (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED)


@pytest.fixture(scope="module")
def fleet(smollm2):
    models = ["--model-dir", str(smollm2.parent)]
    with LocalFleet(
        {
            "desk": models,
            "laptop": models,
            "tower": [*models, "--relay-only"],
            "bare": ["--model-dir", "/nowhere"],
            "tiny": [*models, "--memory", "20M"],
        }
    ) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def left_afterwards(fleet):
    yield
    for name in fleet.names:
        # Who has left a moment ago, because the host did, has nothing to leave.
        with contextlib.suppress(grpc.RpcError):
            fleet.agent(name).LeaveSession(pb.LeaveRequest())


def create(fleet, model, members, **changes):
    request = {
        "model": str(model),
        "members": members,
        "context_tokens": 512,
        "concurrency": 2,
        "dtype": "bfloat16",
    }
    return fleet.agent("desk").CreateSession(pb.CreateRequest(**request | changes)).session.code


def join(fleet, name, code):
    return fleet.agent(name).JoinSession(pb.JoinRequest(code=code))


def until(fleet, name, *states):
    for status in fleet.agent(name).WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
        if status.session.state in states:
            return status
    raise AssertionError("the stream ended")


def ctl(fleet, name, *args, **options):
    state_dir = fleet.directory / f"a{fleet.names.index(name)}"
    return subprocess.run(
        [sys.executable, "-m", "kafila_agent.ctl.main", "--state-dir", str(state_dir), *args],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
        **options,
    )


def ask(status, text, tokens=16):
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    reply = httpx2.post(f"{status.api_url}/chat/completions", json=body, trust_env=False, timeout=WAIT_S)
    return reply.json()["choices"][0]["message"]["content"]


def test_a_mixed_ring_serves_and_shows_it_and_conversations_at_once_get_their_own_answers(fleet, smollm2):
    code = create(fleet, smollm2, 3)
    join(fleet, "laptop", code)
    join(fleet, "tower", code)
    head = json.loads(until(fleet, "desk", *OVER).session.plan_json)["head"]
    status = until(fleet, head, *OVER)
    assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
    assert ask(status, "Hi", 8)

    shown = ctl(fleet, head, "session", "status")
    assert shown.returncode == 0, shown.stderr
    for word in ("desk", "laptop", "tower", "serving", "relayed", "measured stage", "tokens/s"):
        assert word in shown.stdout
    assert f"chat in a browser: {status.api_url.removesuffix('v1')}\n" in shown.stdout
    session = json.loads(ctl(fleet, head, "session", "status", "--json").stdout)["session"]
    assert {member["name"] for member in session["members"]} == {"desk", "laptop", "tower"}
    assert all(member["measured_stage_s"] > 0 for member in session["members"])
    assert session["plan"]["head"] == head
    assert session["code"] == ""  # everyone is in: it is used up

    replayed = ctl(fleet, head, "plan", "-", "--json", input=json.dumps(session["fleet"]))
    assert json.loads(replayed.stdout) == session["plan"]

    metrics = httpx2.get(status.metrics_url, trust_env=False).text
    for name in (
        'kafila_stage_seconds{kind="measured",member="tower"}',
        'kafila_stage_seconds{kind="predicted",member="desk"}',
        "kafila_edge_rtt_seconds{",
        "kafila_network_share_ratio",
        "kafila_generation_tokens_total 8.0",
        "kafila_time_to_first_token_seconds_count 1.0",
    ):
        assert name in metrics, name
    words = code.split("-", 1)[1]
    assert words not in metrics
    for name in [*fleet.names, "rendezvous"]:
        assert words not in fleet.log(name).read_text()

    chat = ctl(fleet, head, "chat", "--max-tokens", "4", input="Say hello.")
    assert (chat.returncode, bool(chat.stdout.strip())) == (0, True), chat.stderr

    questions = ["Name three colours.", "What is the capital of France?", "Write a haiku about rain."]
    alone = [ask(status, question) for question in questions]
    with ThreadPoolExecutor(len(questions)) as pool:
        assert list(pool.map(lambda question: ask(status, question), questions)) == alone


def test_a_wrong_code_is_told_the_right_one_still_works_and_one_too_many_is_turned_away(fleet, smollm2):
    code = create(fleet, smollm2, 2)
    number, word, *rest = code.split("-")
    wrong = "-".join([number, "otter" if word != "otter" else "lamp", *rest])
    refused = ctl(fleet, "laptop", "session", "join", wrong)
    assert refused.returncode == 3
    assert "no session admits this code" in refused.stderr
    other = ctl(fleet, "laptop", "session", "join", "000000-" + code.split("-", 1)[1])
    assert (other.returncode, other.stderr) == (3, refused.stderr)  # wrong number and wrong words look alike
    nonsense = ctl(fleet, "laptop", "session", "join", "hello")
    assert nonsense.returncode == 2
    join(fleet, "laptop", code)
    late = ctl(fleet, "tower", "session", "join", code)
    assert late.returncode == 3
    assert "2 members already" in late.stderr
    for name in ("desk", "laptop"):
        assert until(fleet, name, *OVER).session.state == pb.SessionStatus.SERVING


def test_a_member_without_the_model_is_named_with_what_to_do(fleet, smollm2):
    join(fleet, "bare", create(fleet, smollm2, 2))
    ended = until(fleet, "desk", *OVER).session
    assert ended.state == pb.SessionStatus.CLOSED
    assert "bare cannot take part: has no SmolLM2" in ended.reason
    assert "--model-dir" in ended.reason
    assert "has no SmolLM2" in until(fleet, "bare", *OVER).session.reason


def test_a_model_that_does_not_fit_is_refused_by_name(fleet, smollm2):
    code = create(fleet, smollm2, 1, context_tokens=512)
    assert code == ""  # alone: nobody to read it out to
    assert until(fleet, "desk", *OVER).session.state == pb.SessionStatus.SERVING
    fleet.agent("desk").LeaveSession(pb.LeaveRequest())
    refused = fleet.agent("tiny").CreateSession(
        pb.CreateRequest(model=str(smollm2), members=1, context_tokens=512, concurrency=2)
    )
    assert refused.name == "tiny"
    ended = until(fleet, "tiny", *OVER).session
    assert (ended.state, ended.refused) == (pb.SessionStatus.CLOSED, True)
    assert "tiny" in ended.reason
    refusal = json.loads(ended.plan_json)["refused"]
    assert refusal[0]["member"] == "tiny"
    assert refusal[0]["needs_bytes"] > refusal[0]["room_bytes"]


def test_who_leaves_is_named_to_the_others(fleet, smollm2):
    join(fleet, "laptop", create(fleet, smollm2, 2))
    assert until(fleet, "laptop", *OVER).session.state == pb.SessionStatus.SERVING
    assert ctl(fleet, "laptop", "session", "leave").returncode == 0
    ended = until(fleet, "desk", pb.SessionStatus.CLOSED).session
    assert "laptop left the session" in ended.reason
    assert ctl(fleet, "laptop", "session", "leave").returncode == 3


@pytest.mark.parametrize(
    ("changes", "fault", "words"),
    [
        ({"context_tokens": 100_000}, grpc.StatusCode.INVALID_ARGUMENT, ["100000", "8192"]),
        ({"dtype": "int3"}, grpc.StatusCode.INVALID_ARGUMENT, ["int3", "bfloat16"]),
        ({"model": "no/such/model"}, grpc.StatusCode.NOT_FOUND, ["no/such/model"]),
        ({"members": 65}, grpc.StatusCode.FAILED_PRECONDITION, ["65"]),
        ({"objective": "fastest"}, grpc.StatusCode.INVALID_ARGUMENT, ["fastest", "throughput"]),
        ({"division": "fair"}, grpc.StatusCode.INVALID_ARGUMENT, ["fair", "uniform"]),
    ],
)
def test_what_cannot_be_created_is_named_and_leaves_nothing(fleet, smollm2, changes, fault, words):
    request = {"model": smollm2, "members": 2} | changes
    with pytest.raises(grpc.RpcError) as refused:
        create(fleet, request.pop("model"), request.pop("members"), **request)
    assert refused.value.code() is fault
    assert all(word in refused.value.details() for word in words), refused.value.details()
    state = fleet.agent("desk").GetStatus(pb.StatusRequest()).session.state
    assert state in (pb.SessionStatus.NONE, pb.SessionStatus.CLOSED)


def test_a_second_session_is_refused_while_in_one(fleet, smollm2):
    create(fleet, smollm2, 2)
    with pytest.raises(grpc.RpcError) as refused:
        create(fleet, smollm2, 2)
    assert "in a session already" in refused.value.details()


def test_an_unreachable_rendezvous_is_named(tmp_path):
    agent = subprocess.Popen(
        [
            sys.executable,
            *("-m", "kafila_agent.main", "--until-stdin-closes", "--name", "lone"),
            *("--state-dir", str(tmp_path / "s"), "--rendezvous", "127.0.0.1:9"),
            *("--api-port", "0", "--metrics-port", "0"),
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = next(line for line in agent.stderr if "not attached" in line)
        assert "127.0.0.1:9" in line
        result = subprocess.run(
            [sys.executable, "-m", "kafila_agent.ctl.main", "session", "join", "123456-otter-lamp"],
            env=os.environ | {"KAFILA_STATE_DIR": str(tmp_path / "s")},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert result.returncode == 1
        assert "127.0.0.1:9" in result.stderr
    finally:
        agent.stdin.close()
        assert agent.wait(20) == 0
        agent.stderr.close()


def test_a_taken_port_is_named_with_its_option(tmp_path, fleet):
    port = fleet.agent("desk").GetStatus(pb.StatusRequest()).api_url.split(":")[2].split("/")[0]
    agent = subprocess.run(
        [
            sys.executable,
            *("-m", "kafila_agent.main", "--state-dir", str(tmp_path / "s"), "--rendezvous", "127.0.0.1:9"),
            *("--api-port", port, "--metrics-port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert agent.returncode == 1
    assert port in agent.stderr
    assert "--api-port" in agent.stderr
    assert "not attached" not in agent.stderr  # at once: nothing else was tried before
    assert "Traceback" not in agent.stderr


def test_no_agent_is_said_with_how_to_start_one(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "kafila_agent.ctl.main", "session", "status", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == 3
    assert "kafila-agent --state-dir" in result.stderr


def test_a_killed_member_ends_a_streaming_answer_with_its_name(fleet, smollm2):
    """The last, as one of the fleet is gone then."""
    join(fleet, "laptop", create(fleet, smollm2, 2))
    status = until(fleet, "desk", *OVER)
    head = json.loads(status.session.plan_json)["head"]
    victim = "laptop" if head == "desk" else "desk"
    status = until(fleet, head, *OVER)
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": "Count to one thousand."}],
        "max_tokens": 400,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx2.stream(
        "POST", f"{status.api_url}/chat/completions", json=body, trust_env=False, timeout=WAIT_S
    ) as response:
        lines = response.iter_lines()
        next(line for line in lines if line.startswith("data:"))
        os.kill(fleet.pid(victim), signal.SIGKILL)
        killed = time.monotonic()
        rest = [line for line in lines if line.startswith("data:")]
    assert time.monotonic() - killed < 15
    assert "error" in json.loads(rest[-1].removeprefix("data:"))
    held = until(fleet, head, pb.SessionStatus.HELD).session
    assert held.reason == f"waiting for {victim}"
    with pytest.raises(FleetError, match=f"{victim} ended with status -9"):
        fleet.check()
