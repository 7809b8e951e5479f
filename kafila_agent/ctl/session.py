"""``kafila-ctl session``: create, join, status, leave."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.code_completion import ask_for_code, complete_code
from kafila_agent.ctl.exit_status import FAILURE, NOT_FOUND, fail
from kafila_agent.ctl.follow import follow
from kafila_agent.ctl.options import AsJson, Concurrency, Context, Draft, Dtype, Quant, StateDir, from_here
from kafila_agent.ctl.render import page_url, print_status
from kafila_agent.view.document import status_json
from kafila_proto import agent_pb2 as pb

app = typer.Typer(help="Create, join, watch and leave a session.", no_args_is_help=True)


@app.command()
def create(
    model: Annotated[str, typer.Option("--model", help="A model's directory, GGUF file or hub id.")],
    members: Annotated[int, typer.Option("--members", min=1, max=64, help="Machines, this one included.")],
    context: Context = 4096,
    concurrency: Concurrency = 4,
    dtype: Dtype = "bfloat16",
    quant: Quant = "none",
    objective: Annotated[str, typer.Option(help="throughput, latency or mixed:L.")] = "throughput",
    division: Annotated[str, typer.Option(help="planner, or for comparison uniform or memory.")] = "planner",
    draft: Draft = "",
    as_json: AsJson = False,
    *,
    state_dir: StateDir,
) -> None:
    """Open a session, print the code to read out to the others, and follow it until it serves."""
    request = pb.CreateRequest(
        model=from_here(model),
        members=members,
        context_tokens=context,
        concurrency=concurrency,
        dtype=dtype,
        quant=quant,
        objective=objective,
        division=division,
        draft=from_here(draft),
    )
    with local_agent(state_dir) as agent:
        status = agent.CreateSession(request)
        if status.session.code:
            if not as_json:
                typer.echo(status.session.code)
            typer.echo(f"Others join with: kafila-ctl session join {status.session.code}", err=True)
        _until_serving(agent, as_json)


@app.command()
def join(
    code: Annotated[
        str,
        typer.Argument(
            help="The code the host read out; asked for when left out.", autocompletion=complete_code
        ),
    ] = "",
    as_json: AsJson = False,
    *,
    state_dir: StateDir,
) -> None:
    """Join the session of CODE and follow it until it serves."""
    if not code:
        # Asked for rather than given, the code never shows in the list of processes.
        code = ask_for_code()
    with local_agent(state_dir) as agent:
        agent.JoinSession(pb.JoinRequest(code=code))
        _until_serving(agent, as_json)


@app.command()
def code(state_dir: StateDir) -> None:
    """Make a new code for the session that this machine hosts: the old one admits nobody any more."""
    with local_agent(state_dir) as agent:
        typer.echo(agent.RenewCode(pb.RenewRequest()).session.code)


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the session ends.")] = False,
    as_json: AsJson = False,
    *,
    state_dir: StateDir,
) -> None:
    """Show the session this machine is in: members, plan, edges, measured against predicted."""
    with local_agent(state_dir) as agent:
        if not watch:
            snapshot = agent.GetStatus(pb.StatusRequest())
            if snapshot.session.state == pb.SessionStatus.NONE and not as_json:
                what_next = snapshot.session.reason or "`kafila-ctl session create` or `join`"
                fail(NOT_FOUND, f"this machine is in no session: {what_next}")
            print_status(snapshot, as_json)
            return
        for snapshot in agent.WatchStatus(pb.StatusRequest()):
            print_status(snapshot, as_json, redraw=sys.stdout.isatty())
            if snapshot.session.state in (pb.SessionStatus.NONE, pb.SessionStatus.CLOSED):
                return


@app.command()
def leave(state_dir: StateDir) -> None:
    """Leave the session; the others are told."""
    with local_agent(state_dir) as agent:
        agent.LeaveSession(pb.LeaveRequest())


def _until_serving(agent, as_json: bool) -> None:
    try:
        snapshot = follow(agent)
    except KeyboardInterrupt:
        typer.echo("\nThe session goes on without this view: `kafila-ctl session status` shows it,", err=True)
        typer.echo("`kafila-ctl session leave` ends it.", err=True)
        raise
    if as_json:
        typer.echo(status_json(snapshot))
    ended = snapshot.session
    if ended.state == pb.SessionStatus.CLOSED:
        fail(NOT_FOUND if ended.refused else FAILURE, ended.reason)
    if not as_json and snapshot.api_url:
        typer.echo(snapshot.api_url)
        typer.echo(f"Chat in a browser: {page_url(snapshot)}", err=True)
