"""``kafila-ctl doctor``: what a session needs, checked step by step, and what holds a running one back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kafila_agent.ctl.client import local_agent
from kafila_agent.ctl.exit_status import FAILURE
from kafila_agent.ctl.options import AsJson, StateDir, from_here
from kafila_agent.ctl.render import console
from kafila_agent.view.causes import causes
from kafila_proto import VERSION
from kafila_proto import agent_pb2 as pb

_SIGNS = {
    pb.Check.OK: "[green]ok[/]",
    pb.Check.DOUBTFUL: "[yellow]doubtful[/]",
    pb.Check.BAD: "[red]bad[/]",
    pb.Check.UNKNOWN: "unknown",
}


def doctor(
    model: Annotated[
        str, typer.Option(help="Is this model here and readable? The session's, if left out.")
    ] = "",
    as_json: AsJson = False,
    *,
    state_dir: StateDir,
) -> None:
    """Check what a session needs of this machine, and name what holds a running session back.

    Each finding comes with its next step. Exit status 0 if a session can work here, 1 if not, 3 without an agent.
    """
    checks = examine(state_dir, model)
    if as_json:
        typer.echo(json.dumps({"checks": [check_json(check) for check in checks]}))
    else:
        _print(checks)
    if any(check.verdict == pb.Check.BAD for check in checks):
        raise typer.Exit(FAILURE)


def examine(state_dir: Path, model: str) -> list[pb.Check]:
    """The agent's checks, with those that are made from outside it."""
    with local_agent(state_dir) as agent:
        status = agent.GetStatus(pb.StatusRequest())
        reply = agent.Examine(pb.ExamineRequest(model=from_here(model)))
    return [_agent(status), *reply.checks, *_session(status.session)]


def check_json(check: pb.Check) -> dict[str, str]:
    """As ``--json`` prints it."""
    return {
        "name": check.name,
        "verdict": pb.Check.Verdict.Name(check.verdict).lower(),
        "finding": check.finding,
        "next_step": check.next_step,
    }


def _agent(status: pb.Status) -> pb.Check:
    finding = f"{status.name} runs Kafila {status.version}"
    if status.version == VERSION:
        return pb.Check(name="agent", finding=finding)
    return pb.Check(
        name="agent",
        verdict=pb.Check.DOUBTFUL,
        finding=f"{finding}, and this kafila-ctl is {VERSION}",
        next_step="restart the agent, so that both are the version that is installed",
    )


def _session(session: pb.SessionStatus) -> list[pb.Check]:
    if session.state == pb.SessionStatus.NONE:
        return []
    found = [
        pb.Check(name="session", verdict=pb.Check.DOUBTFUL, finding=finding, next_step=next_step)
        for finding, next_step in causes(session)
    ]
    state = pb.SessionStatus.State.Name(session.state).lower()
    return found or [pb.Check(name="session", finding=f"{state}, and nothing holds it back")]


def _print(checks: list[pb.Check]) -> None:
    out = console(stderr=False)
    for check in checks:
        out.print(f"{check.name:18}{_SIGNS[check.verdict]}", end="  ", highlight=False)
        out.print(check.finding, highlight=False, markup=False)
        if check.next_step:
            out.print(f"{'':18}→ {check.next_step}", highlight=False, markup=False)
