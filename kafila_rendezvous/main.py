"""The command ``kafila-rendezvous``: serves until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from pathlib import Path
from typing import Annotated

import typer

from kafila_proto.certificate import CertificateError
from kafila_proto.program import Ending, configure_logs
from kafila_proto.supervisor import Supervisor
from kafila_rendezvous.server import (
    DEFAULT_HOST,
    DEFAULT_METRICS_HOST,
    DEFAULT_METRICS_PORT,
    DEFAULT_PORT,
    MAX_STREAMS,
    Config,
    ConfigError,
    PortInUse,
    RendezvousServer,
    start_rendezvous,
)

_STATUS_S = 2.0

app = typer.Typer(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)


def default_state_dir() -> Path:
    """Where a rendezvous keeps its certificate: systemd's directory, or the user's own."""
    if under_systemd := os.environ.get("STATE_DIRECTORY"):
        return Path(under_systemd.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "kafila-rendezvous"


@app.command()
def serve(
    host: Annotated[
        list[str] | None,
        typer.Option(help=f"Address to serve on, {DEFAULT_HOST} if not given; once for each IP family."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port of the agents' streams.")
    ] = DEFAULT_PORT,
    udp_port: Annotated[
        int | None,
        typer.Option(min=0, max=65534, help="UDP port, with the next one; if not given, as --port."),
    ] = None,
    second_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A second address of this machine, to tell NATs apart fully; once for each --host."
        ),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where the certificate is kept.")] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of the metrics.")] = DEFAULT_METRICS_HOST,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port of the metrics.")
    ] = DEFAULT_METRICS_PORT,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Stop when standard input ends.")
    ] = False,
) -> None:
    """Introduce members to each other, plan, and relay what cannot go direct.

    Once it serves, one line of JSON on standard output says where, with the certificate's fingerprint. A port
    of 0 is chosen by the system. Needs the TCP port, the UDP port and the UDP port after it open to members.
    """
    configure_logs()
    _allow_open_files(MAX_STREAMS)
    hosts = host or [DEFAULT_HOST]
    config = Config(
        state_dir=state_dir or default_state_dir(),
        host=hosts[0],
        more_hosts=tuple(hosts[1:]),
        port=port,
        udp_port=udp_port,
        second_hosts=tuple(second_host or ()),
        metrics_host=metrics_host,
        metrics_port=metrics_port,
    )
    try:
        asyncio.run(_serve(config, until_stdin_closes))
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    except (PortInUse, CertificateError, OSError) as error:
        typer.echo(f"kafila-rendezvous: {error}", err=True)
        raise typer.Exit(1) from None


async def _serve(config: Config, until_stdin_closes: bool) -> None:
    ending = Ending(until_stdin_closes=until_stdin_closes)
    supervisor = Supervisor()
    server = await start_rendezvous(config)
    keeping = [
        asyncio.create_task(supervisor.keep_alive()),
        asyncio.create_task(_tell_status(server, supervisor)),
    ]
    try:
        supervisor.ready()
        print(json.dumps(_where(server)), flush=True)
        await ending.asked.wait()
        supervisor.stopping()
    finally:
        await server.close()
        for task in keeping:
            task.cancel()


async def _tell_status(server: RendezvousServer, supervisor: Supervisor) -> None:
    while True:
        registry = server.registry
        supervisor.status(f"{len(registry.attached)} agents, {len(registry.sessions)} sessions")
        await asyncio.sleep(_STATUS_S)


def _allow_open_files(connections: int) -> None:
    """Each connection is an open file, and many systems allow a program a thousand unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _where(server: RendezvousServer) -> dict[str, int | str]:
    return {
        "grpc_port": server.grpc_port,
        "udp_port": server.udp_port,
        "metrics_port": server.metrics_port,
        "fingerprint": server.certificate.fingerprint.hex(),
    }


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
