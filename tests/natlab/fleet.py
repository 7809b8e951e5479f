"""A real rendezvous and real agents as processes in a laboratory."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import grpc

from kafila_proto import agent_pb2 as pb
from kafila_proto import agent_pb2_grpc
from tests.natlab.lab import RENDEZVOUS, RENDEZVOUS_2, RENDEZVOUS_2_IPV6, RENDEZVOUS_IPV6, Lab

_START_S = 150.0
_ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[2], "prompt": "ab", "max_tokens": int(sys.argv[3]), "temperature": 0, "ignore_eos": True}
headers = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/completions", json.dumps(body).encode(), headers)
answer = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request))
print(json.dumps([answer["usage"]["completion_tokens"], answer["choices"][0]["text"]]))
"""
_OVER = (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED)


class LabFleet:
    """``agents`` maps names to further options of ``kafila-agent``; each runs on the node of its name."""

    def __init__(self, lab: Lab, directory: Path, agents: Mapping[str, Sequence[str]]):
        self._lab, self._directory, self._agents = lab, directory, agents
        self._rendezvous: subprocess.Popen[bytes] | None = None
        self._forker: subprocess.Popen[str] | None = None  # of the agents, and ends with the last of them
        self._lifeline: int | None = None  # the agents end when it closes
        self._channels: list[grpc.Channel] = []
        self._stubs: dict[str, agent_pb2_grpc.AgentStub] = {}

    def __enter__(self) -> LabFleet:
        with contextlib.ExitStack() as stack:
            stack.push(self)
            forker = self._import()
            address = self._start_rendezvous()
            wanted = {name: self._wanted(name, address, *options) for name, options in self._agents.items()}
            assert forker.stdin is not None
            print(json.dumps(wanted), file=forker.stdin, flush=True)
            for name in self._agents:
                self._await_attached(name)
            stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for channel in self._channels:
            channel.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        for process in (self._forker, self._rendezvous):
            if process is not None:
                process.communicate()  # it ends when its standard input does

    def agent(self, name: str) -> agent_pb2_grpc.AgentStub:
        """What ``kafila-ctl`` talks to."""
        return self._stubs[name]

    def state_dir(self, name: str) -> Path:
        """The state directory of an agent."""
        return self._directory / f"a{list(self._agents).index(name)}"

    def log(self, node: str) -> str:
        """Standard error of a process."""
        return (self._directory / f"{node}.log").read_text()

    def session(self, names: Sequence[str], model: Path, **options: object) -> pb.Status:
        """One session of these members, the first its host: its status on the host once it serves or is over."""
        *_, status = self.form(names, model, **options)
        return status

    def form(self, names: Sequence[str], model: Path, **options: object) -> Iterator[pb.Status]:
        """The host's statuses from the creation of such a session until it serves or is over."""
        asked = {"model": str(model), "members": len(names), "context_tokens": 128, "concurrency": 1}
        asked |= {"dtype": "float32"} | options
        status = self.agent(names[0]).CreateSession(pb.CreateRequest(**asked))
        yield status
        for name in names[1:]:
            self.agent(name).JoinSession(pb.JoinRequest(code=status.session.code))
        for status in self.agent(names[0]).WatchStatus(pb.StatusRequest(), timeout=_START_S):
            yield status
            if status.session.state in _OVER:
                return
        raise AssertionError("the stream of the status ended")

    def serve(self, names: Sequence[str], model: Path, **options: object) -> pb.Status:
        """Form a session that must come to serve; its status on the head, once that serves."""
        status = self.session(names, model, **options)
        assert status.session.state == pb.SessionStatus.SERVING, status.session.reason
        head = json.loads(status.session.plan_json)["head"]
        for status in self.agent(head).WatchStatus(pb.StatusRequest(), timeout=_START_S):
            if status.session.state == pb.SessionStatus.SERVING:
                return status
        raise AssertionError("the stream of the status ended")

    def leave(self, names: Sequence[str]) -> None:
        """End the session; done when every member is out of it."""
        self.agent(names[0]).LeaveSession(pb.LeaveRequest())
        for name in names:
            for status in self.agent(name).WatchStatus(pb.StatusRequest(), timeout=_START_S):
                if status.session.state == pb.SessionStatus.CLOSED:
                    break

    def ask(self, head: str, tokens: int) -> tuple[int, str]:
        """How many tokens the model answers a prompt with, at most ``tokens``, and the text; asked at the head."""
        status = self.agent(head).GetStatus(pb.StatusRequest())
        script = [sys.executable, "-c", _ASK, status.api_url, status.session.model, str(tokens)]
        count, text = json.loads(self._lab.run(head, script))
        return count, text

    def events(self, node: str) -> list[dict[str, str]]:
        """What a process has logged."""
        lines = (line for line in self.log(node).splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines]

    def _import(self) -> subprocess.Popen[str]:
        """What will fork the agents; it imports while the rendezvous starts."""
        watched, self._lifeline = os.pipe()
        with (self._directory / "agents.log").open("wb") as log:
            self._forker = subprocess.Popen(
                [sys.executable, "-m", "tests.natlab.agents", str(watched)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=[watched],
            )
        os.close(watched)
        return self._forker

    def _start_rendezvous(self) -> str:
        """Its address and fingerprint, as an agent is told them."""
        first, second = (RENDEZVOUS, RENDEZVOUS_IPV6), (RENDEZVOUS_2, RENDEZVOUS_2_IPV6)
        where = [word for host in first for word in ("--host", host)]
        where += [word for host in second for word in ("--second-host", host)]
        options = ["--metrics-port", "0", "--state-dir", str(self._directory / "rv")]
        with (self._directory / "rv.log").open("wb") as log:
            self._rendezvous = self._lab.popen(
                "rv",
                [sys.executable, "-m", "kafila_rendezvous.main", "--until-stdin-closes", *where, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._rendezvous.stdout is not None
        ports = json.loads(self._rendezvous.stdout.readline())
        return f"rv:{ports['grpc_port']}#{ports['fingerprint']}"

    def _wanted(self, name: str, rendezvous: str, *options: str) -> dict[str, object]:
        """An agent, as the program that forks them is asked for it."""
        state_dir = self.state_dir(name)
        self._channels.append(
            grpc.insecure_channel(f"unix:{state_dir / 'control.sock'}", [("grpc.enable_http_proxy", 0)])
        )
        self._stubs[name] = agent_pb2_grpc.AgentStub(self._channels[-1])
        arguments = ["--name", name, "--state-dir", str(state_dir), "--rendezvous", rendezvous]
        arguments += ["--api-port", "0", "--metrics-port", "0", *options]
        log = str(self._directory / f"{name}.log")
        return {"arguments": arguments, "log": log, "namespace": self._lab.namespace(name)}

    def _await_attached(self, name: str) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                if self.agent(name).GetStatus(pb.StatusRequest(), wait_for_ready=True, timeout=5.0).attached:
                    return
            except grpc.RpcError:
                continue
            time.sleep(0.05)
        raise AssertionError(f"{name} did not attach\n{self.log(name)}")
