"""A unit at work where no systemd runs: its command, environment and directories, notify socket and end, on a node."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.natlab.lab import Lab

START_S = 90.0
_DIRECTORIES = ("StateDirectory", "CacheDirectory", "RuntimeDirectory")


class Service:
    """``unit`` from ``prefix`` on ``node``; ``variables`` are what its EnvironmentFile holds."""

    def __init__(
        self, lab: Lab, node: str, unit: Path, prefix: Path, directory: Path, variables: Mapping[str, str]
    ):
        self.heard: list[str] = []
        self._lab, self._node, self._directory = lab, node, directory
        self._keys = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.M))
        written = " ".join(re.findall(r"^Environment=(.*)$", unit.read_text(), re.M))
        self._variables = dict(item.split("=", 1) for item in shlex.split(written)) | dict(variables)
        self._variables["PATH"] = self._variables["PATH"].replace("/opt/kafila", str(prefix))
        self._process: subprocess.Popen[bytes] | None = None
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def directory(self, kind: str) -> Path:
        """Where StateDirectory, CacheDirectory or RuntimeDirectory is here."""
        return self._directory / kind[0].lower()

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self._directory / "log").read_text()

    def __enter__(self) -> Service:
        self._directory.mkdir(parents=True, exist_ok=True)
        environment = dict(self._variables)
        for kind in [kind for kind in _DIRECTORIES if kind in self._keys]:
            self.directory(kind).mkdir(exist_ok=True)
            environment[re.sub(r"(?<!^)(?=[A-Z])", "_", kind).upper()] = str(self.directory(kind))
        address = self._directory / "n"
        self._notified.bind(str(address))
        listening = threading.Thread(target=self._listen, daemon=True)
        listening.start()
        environment["NOTIFY_SOCKET"] = str(address)
        environment["WATCHDOG_USEC"] = str(int(self._keys["WatchdogSec"]) * 1_000_000)
        with (self._directory / "log").open("wb") as log:
            self._process = self._lab.popen(
                self._node, self._command(), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._notified.shutdown(socket.SHUT_RDWR)
        self._notified.close()

    def hear(self, line: str) -> None:
        """Wait until it has told ``line`` (the beginning is enough)."""
        deadline = time.monotonic() + START_S
        while not any(each.startswith(line) for each in list(self.heard)):
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"{line} was not told: {self.heard}\n{self.log}"
            time.sleep(0.05)

    def _listen(self) -> None:
        """As systemd does: always, for a socket holds only a few datagrams."""
        while line := self._notified.recv(1000):
            self.heard.append(line.decode())

    def stop(self) -> int:
        """As `systemctl stop` does; the exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        return self._process.wait(int(self._keys["TimeoutStopSec"]))

    def _command(self) -> list[str]:
        words: list[str] = []
        for word in self._keys["ExecStart"].split():
            words += self._variables.get(word[1:], "").split() if word.startswith("$") else [word]
        return words
