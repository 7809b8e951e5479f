"""``kafila-agent``: the program on a member's machine."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import structlog
import typer

from kafila_agent.api_key import ApiKeyError, read_api_key, require_api_key
from kafila_agent.config import AgentConfig, default_model_dirs, default_state_dir
from kafila_proto.program import Ending, configure_logs
from kafila_proto.supervisor import Supervisor

if TYPE_CHECKING:
    from kafila_agent.agent import Agent

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30}

DRAIN_S = 20.0  # what the unit's TimeoutStopSec leaves room for

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def parse_bytes(text: str) -> int:
    """Bytes from "8G", "512MiB" or a plain number. Raises typer.BadParameter."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?i?|)B?\s*", text)
    unit = match[2].upper() if match else ""
    if not match or unit not in _UNITS or (size := int(float(match[1]) * _UNITS[unit])) <= 0:
        raise typer.BadParameter(f"{text!r} is not a size: write 8G, 512MiB or a number of bytes")
    return size


def parse_address(text: str) -> tuple[str, int]:
    """Host and port from "HOST:PORT" or "[IPV6]:PORT". Raises typer.BadParameter."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def default_name() -> str:
    """This machine's name, with what a member's name may not hold made into dashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().split(".")[0])[:32] or "member"


_Rendezvous = Annotated[
    str,
    typer.Option(
        envvar="KAFILA_RENDEZVOUS",
        help="HOST:PORT, or HOST:PORT#FINGERPRINT to pin its certificate from the start.",
    ),
]
_MetricsHost = Annotated[
    str, typer.Option(help="Address of the metrics, which name the members and nobody else.")
]
_StateDir = Annotated[
    Path,
    typer.Option(
        envvar="KAFILA_STATE_DIR",
        default_factory=default_state_dir,
        help="Where this machine's key lies, and the socket that kafila-ctl finds it by.",
    ),
]
_ModelDirs = Annotated[
    list[Path] | None,
    typer.Option(envvar="KAFILA_MODEL_DIR", help="Where models lie, beside the hub's cache; repeatable."),
]
_ApiKeyFile = Annotated[
    Path | None,
    typer.Option(help="Clients of the API must know the key in this file, or in KAFILA_API_KEY."),
]
_Upnp = Annotated[bool, typer.Option("--upnp/--no-upnp", help="Ask the router to let the other members in.")]
_StunServers = Annotated[
    list[str] | None,
    typer.Option(help="HOST:PORT of a STUN server to tell NATs apart by, beside the rendezvous; repeatable."),
]


@app.command()
def run(
    rendezvous: _Rendezvous,
    state_dir: _StateDir,
    name: Annotated[str, typer.Option(envvar="KAFILA_NAME", help="What the others call this machine.")] = "",
    model_dir: _ModelDirs = None,
    udp_host: Annotated[str, typer.Option(help="Address that other members reach.")] = "::",
    udp_port: Annotated[int, typer.Option(min=0, max=65535, help="Its UDP port; 0: any.")] = 0,
    api_host: Annotated[
        str, typer.Option(help="Address of the OpenAI API. Any but this machine's own needs an API key.")
    ] = "127.0.0.1",
    api_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the OpenAI API; 0: any.")] = 7480,
    api_key_file: _ApiKeyFile = None,
    control_group: Annotated[
        str, typer.Option(help="Members of this group may use kafila-ctl, beside this user.")
    ] = "",
    metrics_host: _MetricsHost = "127.0.0.1",
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the metrics; 0: any.")] = 9470,
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: one a core.")] = 0,
    memory: Annotated[str, typer.Option(help="Use at most this, such as 8G; else what is free.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0, mps.")] = "cpu",
    relay_only: Annotated[bool, typer.Option("--relay-only", help="Open no direct edge.")] = False,
    upnp: _Upnp = True,
    stun_server: _StunServers = None,
    pace: Annotated[Path | None, typer.Option(hidden=True, help="For the laboratory: see pace.py.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Run this machine's agent: it joins sessions as kafila-ctl tells it, holds its blocks and serves the API.

    SIGTERM lets answers under way come to their end, for at most 20 s; SIGINT and a second signal do not wait.
    """
    configure_logs(parse_level(log_level))
    config = AgentConfig(
        name=name or default_name(),
        state_dir=state_dir,
        rendezvous=rendezvous,
        udp_host=udp_host,
        udp_port=udp_port,
        api_host=api_host,
        api_port=api_port,
        api_key=_api_key(api_key_file, api_host),
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        threads=threads or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0]),
        memory_limit_bytes=parse_bytes(memory) if memory else None,
        device=device,
        relay_only=relay_only,
        control_group=control_group or None,
        upnp=upnp,
        stun_servers=tuple(parse_address(server) for server in stun_server or ()),
        pace=pace,
        model_dirs=tuple(model_dir) if model_dir else default_model_dirs(),
    )
    if missing := [module for module in ("torch", "transformers", "aioquic") if not _installed(module)]:
        _leave(f"{', '.join(missing)} not installed: pip install 'kafila[agent]'")
    raise typer.Exit(asyncio.run(_serve(config, until_stdin_closes)))


async def _serve(config: AgentConfig, until_stdin_closes: bool) -> int:
    gc.disable()  # until everything is imported (imports.py)
    from kafila_agent.agent import Agent
    from kafila_agent.control.local import AgentError

    structlog.contextvars.bind_contextvars(member=config.name)  # whatever runs later inherits it
    ending = Ending(until_stdin_closes=until_stdin_closes)
    supervisor = Supervisor()
    agent = Agent(config)
    keeping = [asyncio.create_task(supervisor.keep_alive())]
    try:
        await agent.start()
        supervisor.ready()
        keeping.append(asyncio.create_task(_tell_status(agent, supervisor)))
        await ending.asked.wait()
        supervisor.stopping()
        await ending.unless_hurried(agent.drain(DRAIN_S))
    except AgentError as error:
        print(f"kafila-agent: {error.detail}", file=sys.stderr)
        return 1
    finally:
        await agent.close()
        for task in keeping:
            task.cancel()
    return 0


async def _tell_status(agent: Agent, supervisor: Supervisor) -> None:
    from kafila_agent.status import status_line

    async for status in agent.watch():
        supervisor.status(status_line(status))


def parse_level(text: str) -> int:
    """A level of the log. Raises typer.BadParameter."""
    level = logging.getLevelNamesMapping().get(text.upper())
    if level is None:
        raise typer.BadParameter(f"{text!r} is not one of debug, info, warning, error")
    return level


def _api_key(file: Path | None, host: str) -> str | None:
    try:
        key = read_api_key(file)
        require_api_key(host, key)
    except ApiKeyError as error:
        _leave(str(error))
    return key


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _leave(message: str) -> NoReturn:
    typer.echo(f"kafila-agent: {message}", err=True)
    raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
