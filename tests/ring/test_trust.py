"""What trust means between real processes: codes, secrets that show nowhere, who comes in and how fast."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import httpx2
import pytest

from kafila_agent.control.introduction import ATTEMPT_S
from kafila_agent.control.link import LinkRefused, RendezvousLink
from kafila_agent.ctl.local_fleet import LocalFleet
from kafila_agent.identity import load_identity
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState
from kafila_proto.session_code import parse_session_code, word_list
from tests.agent.head.models import give_tokenizer

WAIT_S = 60
KEY = "a-key-that-must-show-nowhere-0123456789"
PROMPT = "The zanzibar quokka sings to its xylophone"
OVER = (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED)


@pytest.fixture(scope="module")
def tiny(checkpoint, tmp_path_factory):
    """A model for the sessions of which no answer is wanted."""
    return give_tokenizer(checkpoint("llama"), tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def fleet(smollm2, tiny, tmp_path_factory):
    """One for all tests: the last of them breaks it."""
    key = tmp_path_factory.mktemp("key") / "api.key"
    key.write_text(KEY)
    key.chmod(0o600)
    options = ["--model-dir", str(smollm2.parent), "--model-dir", str(tiny.parent), "--log-level", "debug"]
    options += ["--api-key-file", str(key)]
    with LocalFleet({"desk": options, "laptop": options, "tower": options}) as fleet:
        yield fleet


@pytest.fixture(autouse=True)
def left_afterwards(fleet):
    yield
    for name in fleet.names:
        # Who has left a moment ago, because the host did, has nothing to leave.
        with contextlib.suppress(grpc.RpcError):
            fleet.agent(name).LeaveSession(pb.LeaveRequest())


def create(fleet, model, members) -> str:
    request = pb.CreateRequest(model=str(model), members=members, context_tokens=256, concurrency=1)
    return fleet.agent("desk").CreateSession(request).session.code


def join(fleet, name: str, code: str) -> pb.Status:
    return fleet.agent(name).JoinSession(pb.JoinRequest(code=code))


def until(fleet, name: str, condition) -> pb.Status:
    for status in fleet.agent(name).WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
        if condition(status.session):
            return status
    raise AssertionError("the stream ended")


def ctl(fleet, name: str, *args: str) -> list[str]:
    state_dir = fleet.directory / f"a{fleet.names.index(name)}"
    return [sys.executable, "-m", "kafila_agent.ctl.main", "--state-dir", str(state_dir), *args]


def wrong(code: str) -> str:
    parsed = parse_session_code(code)
    other = next(word for word in word_list() if word != parsed.words[0])
    return "-".join([parsed.number, other, *parsed.words[1:]])


def everything_seen(fleet) -> dict[str, str]:
    """What a neighbour or an operator can see, or finds on the disk: command lines, logs and metrics of every process
    of the fleet, what each keeps in its state directory, and what it would publish in a bug report.
    """
    seen = {f"log of {name}": fleet.log(name).read_text() for name in [*fleet.names, "rendezvous"]}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                seen[f"command line of {entry.name}"] = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
    for name in fleet.names:
        url = fleet.agent(name).GetStatus(pb.StatusRequest()).metrics_url
        seen[f"metrics of {name}"] = httpx2.get(url, trust_env=False).text
        for file in (fleet.directory / f"a{fleet.names.index(name)}").rglob("*"):
            if file.is_file():
                seen[f"{file.name} of {name}"] = file.read_text(errors="replace")
    report = ctl(fleet, "desk", "diagnostics", "--output", "-")
    seen["diagnostics"] = subprocess.run(
        report, capture_output=True, text=True, timeout=WAIT_S, check=True
    ).stdout
    served = next(e for e in logged(fleet, "rendezvous") if e["event"] == "serving")
    url = f"http://127.0.0.1:{served['metrics_port']}/metrics"
    seen["metrics of rendezvous"] = httpx2.get(url, trust_env=False).text
    return seen


def logged(fleet, name: str) -> list[dict]:
    """The events in a process's log."""
    return [json.loads(line) for line in fleet.log(name).read_text().splitlines() if line.startswith("{")]


def test_no_secret_shows_in_command_lines_logs_or_metrics(fleet, smollm2):
    code = create(fleet, smollm2, 2)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ctl(fleet, "laptop", "session", "join"), stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        os.write(ours, f"{code}\n".encode())
        until(fleet, "desk", lambda session: len(session.members) == 2)
        while_joining = everything_seen(fleet)
        status = until(fleet, "desk", lambda session: session.state in OVER)
        os.close(ours)
    head = json.loads(status.session.plan_json)["head"]
    status = until(fleet, head, lambda session: session.state in OVER)
    assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
    asked = subprocess.run(
        ctl(fleet, head, "chat", "--max-tokens", "4"),
        input=PROMPT,
        env=os.environ | {"KAFILA_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    refused = httpx2.get(f"{status.api_url}/models", trust_env=False)
    assert refused.status_code == 401
    words = re.compile(
        r"\W{1,6}".join(parse_session_code(code).words), re.IGNORECASE
    )  # however they are joined
    assert words.search(code)
    for seen in (while_joining, everything_seen(fleet)):
        assert len(seen) > 2 * (len(fleet.names) + 1)
        assert json.loads(seen["diagnostics"])["status"]["session"]["members"]
        for where, text in seen.items():
            assert not words.search(text), where
            for secret in (KEY, "quokka", asked.stdout.strip() or PROMPT):
                assert secret not in text, where
    for name in fleet.names:
        state_dir = fleet.directory / f"a{fleet.names.index(name)}"
        assert (state_dir / "identity.pem").stat().st_mode & 0o777 == 0o600
        assert (state_dir / "control.sock").stat().st_mode & 0o777 == 0o600


def test_after_three_failures_the_host_says_so_and_offers_a_new_code(fleet, tiny):
    code = create(fleet, tiny, 2)
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="no session admits this code"):
            join(fleet, "laptop", wrong(code))
    stopped = until(fleet, "desk", lambda session: not session.code)
    assert "3 attempts with this code failed" in stopped.session.reason
    assert "kafila-ctl session code" in stopped.session.reason
    with pytest.raises(grpc.RpcError, match="no session admits this code"):
        join(fleet, "tower", code)
    made = subprocess.run(ctl(fleet, "desk", "session", "code"), capture_output=True, text=True, check=True)
    assert made.stdout.strip() == fleet.agent("desk").GetStatus(pb.StatusRequest()).session.code != code
    join(fleet, "tower", made.stdout.strip())
    assert (
        until(fleet, "desk", lambda session: session.state in OVER).session.state == pb.SessionStatus.SERVING
    )
    late = subprocess.run(
        ctl(fleet, "desk", "session", "code"), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert late.returncode == 3
    assert "everyone is in already" in late.stderr
    other = subprocess.run(
        ctl(fleet, "tower", "session", "code"), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert other.returncode == 3
    assert "hosts no session" in other.stderr


def test_who_leaves_before_the_plan_makes_room_for_another(fleet, tiny):
    code = create(fleet, tiny, 3)
    join(fleet, "laptop", code)
    until(fleet, "desk", lambda session: len(session.members) == 2)
    fleet.agent("laptop").LeaveSession(pb.LeaveRequest())
    alone = until(fleet, "desk", lambda session: len(session.members) == 1).session
    assert alone.state == pb.SessionStatus.FORMING
    assert "laptop is gone" in alone.reason
    assert alone.code == code  # it has not admitted everyone yet
    join(fleet, "tower", code)
    join(fleet, "laptop", code)
    status = until(fleet, "desk", lambda session: session.state in OVER)
    assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
    assert sorted(member.name for member in status.session.members) == ["desk", "laptop", "tower"]


def join_time_s(fleet, model) -> float:
    """From the command to serving, without the loading."""
    code = create(fleet, model, 2)
    until(fleet, "desk", lambda s: any(m.state == MemberState.WAITING for m in s.members))
    started = time.monotonic()
    with subprocess.Popen(ctl(fleet, "laptop", "session", "join", code)) as command:
        times: dict[int, float] = {}
        for status in fleet.agent("laptop").WatchStatus(pb.StatusRequest(), timeout=WAIT_S):
            if status.session.state in OVER and not times:
                continue  # the session before
            for member in status.session.members:
                if member.name == "laptop":
                    times.setdefault(member.state, time.monotonic())
            if status.session.state in OVER:
                break
        assert command.wait(WAIT_S) == 0
    fleet.agent("desk").LeaveSession(pb.LeaveRequest())
    until(fleet, "laptop", lambda session: session.state == pb.SessionStatus.CLOSED)
    served = times[MemberState.SERVING]
    ready = times.get(MemberState.READY, served)
    loading_s = ready - times.get(MemberState.LOADING, ready)  # states that pass quickly are not all seen
    return served - started - loading_s


def test_joining_is_one_command_and_waits_for_no_timeout(fleet, tiny):
    took_s = join_time_s(fleet, tiny)
    print(f"joined, beside loading, in {took_s:.2f} s")
    assert took_s < ATTEMPT_S


async def test_a_copied_identity_and_ghosts_are_known_by_name(fleet, tiny):
    """Last: two of the fleet do not survive it. One stops answering without a word, the other is killed."""
    code = create(fleet, tiny, 4)
    for name in ("laptop", "tower"):
        join(fleet, name, code)
    until(fleet, "desk", lambda session: len(session.members) == 3)
    copied = fleet.directory / "copied"
    shutil.copytree(fleet.directory / f"a{fleet.names.index('laptop')}", copied, ignore=only_the_identity)
    double = RendezvousLink(
        fleet.agent("desk").GetStatus(pb.StatusRequest()).rendezvous, load_identity(copied, "double"), copied
    )
    with pytest.raises(LinkRefused, match="laptop is attached already"):
        await double.attach()
    assert len(fleet.agent("desk").GetStatus(pb.StatusRequest()).session.members) == 3

    os.kill(fleet.pid("laptop"), signal.SIGSTOP)  # its connection stays up, and nobody answers there
    os.kill(fleet.pid("tower"), signal.SIGKILL)
    gone = time.monotonic()
    try:
        alone = until(fleet, "desk", lambda session: len(session.members) == 1).session
        print(f"a member that stopped answering was noticed after {time.monotonic() - gone:.1f} s")
        assert alone.state == pb.SessionStatus.FORMING
        assert alone.code == code  # and their places are free
        await double.attach()  # whoever has the key is that member, once the other is gone
    finally:
        await double.close()
        os.kill(fleet.pid("laptop"), signal.SIGKILL)


def only_the_identity(_: str, names: list[str]) -> set[str]:
    return set(names) - {"identity.pem"}
