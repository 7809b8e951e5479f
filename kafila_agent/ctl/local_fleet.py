"""A rendezvous and several agents as processes on this machine, in one temporary directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import grpc

from kafila_proto import agent_pb2 as pb
from kafila_proto import agent_pb2_grpc

_START_S = 60.0
_STOP_S = 8.0


class FleetError(RuntimeError):
    """A process of the fleet did not start or went away; the message ends with the end of its log."""


class LocalFleet:
    """Processes end with this object, and with this process however it ends: each watches its stdin.

    ``agents`` maps names to further options of ``kafila-agent``.
    """

    def __init__(self, agents: Mapping[str, Sequence[str]]):
        self.names = list(agents)
        self._args = agents
        self._directory = tempfile.TemporaryDirectory(prefix="kafila-")
        self._processes: dict[str, subprocess.Popen] = {}
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

    def agent(self, name: str) -> agent_pb2_grpc.AgentStub:
        """A stub of the agent of that name."""
        return agent_pb2_grpc.AgentStub(self._channels[name])

    def pid(self, name: str) -> int:
        """Process id of an agent, or of ``rendezvous``."""
        return self._processes[name].pid

    def log(self, name: str) -> Path:
        """Standard error of an agent, or of ``rendezvous``."""
        return self.directory / f"{name}.log"

    def check(self) -> None:
        """Raise FleetError if a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise FleetError(f"{name} ended with status {process.returncode}\n{self._log_tail(name)}")

    def _start(self) -> None:
        ports = json.loads(self._start_rendezvous())
        address = f"127.0.0.1:{ports['grpc_port']}#{ports['fingerprint']}"
        for name in self.names:
            # One letter a directory: a Unix socket's path may hold 107 bytes, and TMPDIR may be long already.
            state_dir = self.directory / f"a{self.names.index(name)}"
            self._spawn(
                name,
                "kafila_agent.main",
                *("--name", name, "--state-dir", str(state_dir), "--rendezvous", address),
                *("--udp-host", "127.0.0.1", "--api-port", "0", "--metrics-port", "0"),
                *self._args[name],
            )
            self._channels[name] = grpc.insecure_channel(
                f"unix:{state_dir / 'control.sock'}",
                options=[("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", 200)],
            )
        for name in self.names:
            self._await_attached(name)

    def _start_rendezvous(self) -> str:
        process = self._spawn(
            "rendezvous",
            "kafila_rendezvous.main",
            *("--host", "127.0.0.1", "--port", "0", "--metrics-port", "0"),
            *("--state-dir", str(self.directory / "rv")),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise FleetError(f"the rendezvous did not start\n{self._log_tail('rendezvous')}")
        return line.decode()

    def _spawn(
        self, name: str, module: str, *args: str, stdout: int = subprocess.DEVNULL
    ) -> subprocess.Popen:
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, "--until-stdin-closes", *args],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends them in order
                env=os.environ | {"TMPDIR": str(self.directory)},  # what libraries leave there goes with it
            )
        return self._processes[name]

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
            for name in [*self.names, "rendezvous"]:
                if process := self._processes.get(name):
                    process.terminate()
            deadline = time.monotonic() + _STOP_S
            for process in self._processes.values():
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
            self._directory.cleanup()
        finally:
            signal.signal(signal.SIGINT, previous)
