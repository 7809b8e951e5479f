"""``kafila-ctl diagnostics``: one file to paste into a bug report, without anything that is anybody's business."""

from __future__ import annotations

import getpass
import importlib.metadata
import json
import platform
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer

from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.doctor import check_json, examine
from kafila_agent.ctl.exit_status import FAILURE, fail
from kafila_agent.ctl.options import StateDir
from kafila_agent.view.document import to_dict
from kafila_proto import VERSION
from kafila_proto import agent_pb2 as pb

_PACKAGES = (
    "torch",
    "transformers",
    "aioquic",
    "grpcio",
    "protobuf",
    "cryptography",
    "numpy",
    "prometheus-client",
)
# What tells where or who somebody is; ``nat`` and ``site`` tell who lives together.
_LEFT_OUT = {"fingerprint", "code", "rendezvous", "api_url", "metrics_url", "nat", "site"}
_PATTERNS = (
    (re.compile(r"\b\d{6}(-[a-z]+){1,4}\b"), "<code>"),
    (re.compile(r"(?<![\w.>])/(?:[\w.+@-]+/)+[\w.+@-]+"), "<path>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (
        re.compile(r"(?<![\w:.])(?:(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}|::[0-9a-fA-F]{1,4})(?![\w:.])"),
        "<address>",
    ),
    (re.compile(r"\b[0-9a-f]{16,}\b"), "<hex>"),
)


def diagnostics(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write; - is standard output.")
    ] = Path("kafila-diagnostics.json"),
    *,
    state_dir: StateDir,
) -> None:
    """Write what a bug report needs: versions, the doctor's findings, the session, the metrics.

    It holds no code, address, prompt or path, and neither machines' nor people's names: members are called member-1
    and so on. Look through it before you publish it all the same.
    """
    with local_agent(state_dir) as agent:
        status = agent.GetStatus(pb.StatusRequest())
    report = collect(
        status, [check_json(check) for check in examine(state_dir, "")], _metrics(status.metrics_url)
    )
    text = json.dumps(redact(report, private_words(status)), indent=1, ensure_ascii=False) + "\n"
    if str(output) == "-":
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(FAILURE, f"{output} cannot be written: {error.strerror}")
    typer.echo(f"{output}: look through it, then attach it to the report", err=True)


def collect(status: pb.Status, checks: list[dict[str, str]], metrics: list[str]) -> dict[str, Any]:
    """Everything, as it is."""
    return {
        "kafila": VERSION,
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "checks": checks,
        "status": to_dict(status),
        "metrics": metrics,
    }


def private_words(status: pb.Status) -> dict[str, str]:
    """What must not be told, and what is said instead: members', this machine's and this user's names and places."""
    fleet = json.loads(status.session.fleet_json) if status.session.fleet_json else {"members": []}
    names = [m.name for m in status.session.members] + [m["name"] for m in fleet["members"]] + [status.name]
    words = {name: f"member-{number}" for number, name in enumerate(dict.fromkeys(names), start=1)}
    host, _, _ = status.rendezvous.rpartition(":")
    ours = {
        str(Path.home()): "<home>",
        _user(): "<user>",
        socket.gethostname(): "<host>",
        host: "<rendezvous>",
    }
    return words | {word: instead for word, instead in ours.items() if len(word) > 1 and word not in words}


def redact(value: Any, words: Mapping[str, str]) -> Any:
    """``value`` without the fields that are nobody's business, and with ``words`` replaced wherever they stand."""
    if isinstance(value, dict):
        return {
            redact(key, words): redact(item, words) for key, item in value.items() if key not in _LEFT_OUT
        }
    if isinstance(value, list):
        return [redact(item, words) for item in value]
    return _redacted(value, words) if isinstance(value, str) else value


def _redacted(text: str, words: Mapping[str, str]) -> str:
    for word in sorted(words, key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", words[word], text)
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _metrics(url: str) -> list[str]:
    """The samples that say something; none if the agent's metrics cannot be read."""
    try:
        text = httpx2.get(url, trust_env=False, timeout=5).text if url else ""
    except httpx2.HTTPError as error:
        return [f"not read: {type(error).__name__}"]
    return [line for line in _samples(text.splitlines()) if not line.endswith(" 0.0")]


def _samples(lines: Iterable[str]) -> Iterable[str]:
    return (
        line
        for line in lines
        if line and not line.startswith("#") and "_bucket" not in line and "_created" not in line
    )
