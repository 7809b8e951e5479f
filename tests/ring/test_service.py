"""An agent as somebody runs it: looked over by the doctor, written up for a bug report, stopped while it answers."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_agent.session.last import recall
from kafila_proto import agent_pb2 as pb

pytestmark = pytest.mark.timeout(240)
WAIT_S = 90
PROMPT = "Say something about the lighthouse keeper's secret"


@pytest.fixture(scope="module")
def fleet(smollm2):
    options = ["--model-dir", str(smollm2.parent), "--threads", "1"]
    with LocalFleet({"annas-desk": options, "bertslaptop": options}) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def session(fleet, smollm2) -> tuple[str, pb.Status]:
    """The code, and the status of the head once it serves."""
    request = pb.CreateRequest(
        model=str(smollm2), members=2, context_tokens=512, concurrency=2, dtype="bfloat16"
    )
    code = fleet.agent("annas-desk").CreateSession(request).session.code
    fleet.agent("bertslaptop").JoinSession(pb.JoinRequest(code=code))
    status = serving(fleet, "annas-desk")
    return code, serving(fleet, json.loads(status.session.plan_json)["head"])


def serving(fleet: LocalFleet, name: str) -> pb.Status:
    for status in fleet.agent(name).WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
        if status.session.state in (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED):
            break
    assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
    return status


def ctl(state_dir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kafila_agent.ctl.main", "--state-dir", str(state_dir), *command],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )


def dir_of(fleet: LocalFleet, name: str) -> Path:
    return fleet.directory / f"a{fleet.names.index(name)}"


def test_the_doctor_says_that_there_is_no_agent(tmp_path):
    said = ctl(tmp_path, "doctor")
    assert said.returncode == 3
    assert f"kafila-agent --state-dir {tmp_path}" in said.stderr


def test_the_doctor_goes_through_what_a_session_needs(fleet, smollm2):
    said = ctl(dir_of(fleet, "annas-desk"), "doctor", "--json", "--model", str(smollm2))
    assert said.returncode == 0, said.stdout + said.stderr
    checks = {check["name"]: check for check in json.loads(said.stdout)["checks"]}
    assert list(checks) == [
        *("agent", "rendezvous (TCP)", "rendezvous (UDP)", "NAT", "clock", "disk", "room", "GPU", "model")
    ]
    assert {name for name, check in checks.items() if check["verdict"] == "bad"} == set()
    assert "answers at UDP port" in checks["rendezvous (UDP)"]["finding"]


def test_a_model_that_is_not_here_is_bad_and_comes_with_what_to_do(fleet):
    said = ctl(dir_of(fleet, "annas-desk"), "doctor", "--model", "no/such-model")
    assert said.returncode == 1
    assert "no/such-model" in said.stdout
    assert "→ put the host's files there" in said.stdout


def test_the_doctor_of_a_session_at_work(fleet, session):
    said = ctl(dir_of(fleet, session[1].name), "doctor", "--json")
    assert said.returncode == 0, said.stdout
    found = [check for check in json.loads(said.stdout)["checks"] if check["name"] == "session"]
    assert found
    assert all(check["verdict"] in ("ok", "doubtful") for check in found)


def test_diagnostics_of_a_session_at_work_hold_nothing_private(fleet, session, tmp_path):
    code, status = session
    ask(status, PROMPT, tokens=4)
    file = tmp_path / "report.json"
    written = ctl(dir_of(fleet, status.name), "diagnostics", "--output", str(file))
    assert written.returncode == 0, written.stderr
    text = file.read_text()
    report = json.loads(text)
    assert report["status"]["session"]["state"] == "serving"
    assert len(report["status"]["session"]["fleet"]["members"]) == 2
    assert any(line.startswith("kafila_generation_tokens_total") for line in report["metrics"])
    number, *words = code.split("-")
    rendezvous = status.rendezvous
    private = [
        *(
            code,
            number,
            "-".join(words),
            PROMPT,
            "lighthouse",
            "127.0.0.1",
            rendezvous,
            "annas-desk",
            "bertslaptop",
        ),
        *(
            status.fingerprint,
            str(fleet.directory),
            str(Path.home()),
            getpass.getuser(),
            socket.gethostname(),
        ),
    ]
    assert [word for word in private if word in text] == []


def ask(status: pb.Status, prompt: str, *, tokens: int) -> httpx2.Response:
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    return httpx2.post(f"{status.api_url}/chat/completions", json=body, trust_env=False, timeout=WAIT_S)


def test_sigterm_lets_an_answer_come_to_its_end(fleet, session):
    _, status = session
    body = {
        "model": status.session.model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": 12,
        "ignore_eos": True,
        "stream": True,
    }
    with httpx2.stream(
        "POST", f"{status.api_url}/chat/completions", json=body, trust_env=False, timeout=WAIT_S
    ) as answer:
        events = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        first = next(events)
        os.kill(fleet.pid(status.name), signal.SIGTERM)
        rest = list(events)
    assert json.loads(first)["choices"][0]["finish_reason"] is None
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "length"
    assert rest[-1] == "[DONE]"
    other = next(name for name in fleet.names if name != status.name)
    for seen in fleet.agent(other).WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
        if seen.session.state == pb.SessionStatus.CLOSED:
            break
    assert f"{status.name}" in seen.session.reason
    assert "its agent was stopped" in seen.session.reason
    # Whoever was stopped says after its next start what became of it; for the others it is over, and they know why.
    assert recall(dir_of(fleet, status.name)).startswith(
        f"its session of {status.session.model} ended when this"
    )
    assert recall(dir_of(fleet, other)) == ""


def lines(fleet: LocalFleet, name: str) -> list[dict]:
    return [json.loads(line) for line in fleet.log(name).read_text().splitlines()]


def test_logs_are_one_event_a_line_and_tell_the_sessions_story(fleet, session):
    for name in fleet.names:
        told = lines(fleet, name)
        assert all({"event", "level", "timestamp"} <= set(line) and line["member"] == name for line in told)
        (label,) = {line["session"] for line in told if line["event"] == "member"}
        states = [line["state"] for line in told if line["event"] == "member"]
        assert states == ["probing", "waiting", "connecting", "loading", "ready", "serving", "left"]
        assert any(line["event"] == "edge open" and line["path"] == "direct" for line in told)
    (over,) = [line for line in lines(fleet, "rendezvous") if line["event"] == "session over"]
    assert over["session"] == label  # the same session, at every member and at the rendezvous
