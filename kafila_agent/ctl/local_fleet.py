"""A rendezvous and several agents as processes on this machine, in one temporary directory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from kafila_proto import agent_pb2 as pb
from kafila_proto import agent_pb2_grpc

_START_S = 60.0
_STOP_S = 8.0


class FleetError(RuntimeError):
    """A process of the fleet did not start or went away; the message ends with the end of its log."""


class LocalFleet:
    """Processes end with this object, and with this process however it ends: each watches a pipe that we hold.

    ``agents`` maps names to further options of ``kafila-agent``.
    """

    def __init__(self, agents: Mapping[str, Sequence[str]]):
        self.names = list(agents)
        self._args = agents
        self._directory = tempfile.TemporaryDirectory(prefix="kafila-")
        # What libraries leave in the temporary directory goes with ours.
        self._environment = os.environ | {"TMPDIR": self._directory.name}
        self._programs: dict[str, subprocess.Popen[str]] = {}
        self._pids: dict[str, int] = {}  # of the agents that run
        self._agents: dict[str, dict[str, Any]] = {}  # as the program that forks them is asked
        self._lifeline: int | None = None  # the agents end when it closes
        self._ports: dict[str, Any] = {}  # what the rendezvous said of itself
        self._channels: dict[str, grpc.Channel] = {}

    def __enter__(self) -> LocalFleet:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Holds every file of the fleet."""
        return Path(self._directory.name)

    @property
    def rendezvous_metrics_port(self) -> int:
        """Where the rendezvous serves its metrics, at 127.0.0.1."""
        return int(self._ports["metrics_port"])

    def agent(self, name: str) -> agent_pb2_grpc.AgentStub:
        """A stub of the agent of that name."""
        return agent_pb2_grpc.AgentStub(self._channels[name])

    def pid(self, name: str) -> int:
        """Process id of an agent, or of ``rendezvous``."""
        return self._programs[name].pid if name in self._programs else self._pids[name]

    def log(self, name: str) -> Path:
        """Standard error of an agent, or of ``rendezvous``."""
        return self.directory / f"{name}.log"

    def check(self) -> None:
        """Raise FleetError if a process has ended."""
        for name, program in self._programs.items():
            if (status := program.poll()) is not None:
                raise FleetError(f"{name} ended with status {status}\n{self._log_tail(name)}")
        stdout = self._programs["agents"].stdout
        if stdout and self._pids and select.select([stdout], [], [], 0)[0]:
            for name, status in self._answer("agents").items():
                del self._pids[name]
                raise FleetError(f"{name} ended with status {status}\n{self._log_tail(name)}")

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End an agent by a signal, and wait until it is gone."""
        os.kill(self._pids[name], number)
        ended = self._answer("agents")
        if list(ended) != [name]:
            raise FleetError(f"{ended} ended, not {name}\n{self._log_tail(next(iter(ended)))}")
        del self._pids[name]

    def start_again(self, name: str) -> None:
        """Start an agent that was stopped, with what it had in its state directory."""
        self._fork([name])
        self._await_attached(name)

    def _start(self) -> None:
        watched, self._lifeline = os.pipe()
        # Imports while the rendezvous starts.
        self._spawn("agents", "kafila_agent.ctl.local_agents", str(watched), descriptors=(watched,))
        os.close(watched)
        self._spawn(
            "rendezvous",
            "kafila_rendezvous.main",
            *("--until-stdin-closes", "--host", "127.0.0.1", "--port", "0", "--metrics-port", "0"),
            *("--state-dir", str(self.directory / "rv")),
        )
        self._ports = self._answer("rendezvous")
        address = f"127.0.0.1:{self._ports['grpc_port']}#{self._ports['fingerprint']}"
        # One letter a directory: a Unix socket's path may hold 107 bytes, and TMPDIR may be long already.
        state_dirs = {name: self.directory / f"a{index}" for index, name in enumerate(self.names)}
        self._agents = {
            name: {"log": str(self.log(name)), "arguments": self._arguments(name, state_dirs[name], address)}
            for name in self.names
        }
        self._fork(self.names)
        for name in self.names:
            self._channels[name] = grpc.insecure_channel(
                f"unix:{state_dirs[name] / 'control.sock'}",
                options=[("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)],
            )
        for name in self.names:
            self._await_attached(name)

    def _fork(self, names: Iterable[str]) -> None:
        wanted = {name: self._agents[name] for name in names}
        print(json.dumps(wanted), file=self._programs["agents"].stdin, flush=True)
        self._pids |= self._answer("agents")

    def _arguments(self, name: str, state_dir: Path, rendezvous: str) -> list[str]:
        return [
            *("--name", name, "--state-dir", str(state_dir), "--rendezvous", rendezvous),
            *("--udp-host", "127.0.0.1", "--api-port", "0", "--metrics-port", "0"),
            *self._args[name],
        ]

    def _spawn(self, name: str, module: str, *args: str, descriptors: Sequence[int] = ()) -> None:
        with self.log(name).open("wb") as log:
            self._programs[name] = subprocess.Popen(
                [sys.executable, "-m", module, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends them in order
                env=self._environment,
                pass_fds=descriptors,
            )

    def _answer(self, name: str) -> dict[str, Any]:
        """The next line of a program's standard output."""
        stdout = self._programs[name].stdout
        assert stdout is not None
        if not (line := stdout.readline()):
            raise FleetError(f"{name}: no start\n{self._log_tail(name)}")
        return dict(json.loads(line))

    def _await_attached(self, name: str) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            self.check()
            try:
                snapshots = self.agent(name).WatchStatus(pb.StatusRequest(), wait_for_ready=True, timeout=1.0)
                if any(status.attached for status in snapshots):
                    return
            except grpc.RpcError:
                continue  # not listening yet, or not attached within this second
        raise FleetError(f"{name} did not reach the rendezvous in {_START_S:.0f} s\n{self._log_tail(name)}")

    def _log_tail(self, name: str, lines: int = 12) -> str:
        log = self.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def close(self) -> None:
        """End every process (agents before the rendezvous), then remove the directory."""
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for channel in self._channels.values():
                channel.close()
            for name in ("agents", "rendezvous"):
                self._stop(name)
            self._directory.cleanup()
        finally:
            signal.signal(signal.SIGINT, previous)

    def _stop(self, name: str) -> None:
        """End a program; that of the agents ends when they have."""
        program = self._programs.get(name)
        if program is None:
            return
        pids = list(self._pids.values()) if name == "agents" and self._pids else [program.pid]
        if name == "agents" and self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        try:
            _signal(pids, signal.SIGTERM)
            program.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            _signal(pids, signal.SIGKILL)
            program.communicate()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
