"""The command tree of ``kafila-ctl``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from kafila_agent.ctl import chat, demo, plan, probe, session

app = typer.Typer(
    help="Run a language model on a few trusted, unequal machines put together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(session.app, name="session")
app.command("plan")(plan.plan)
app.command("probe")(probe.probe)
app.command("chat")(chat.chat)
app.command("demo")(demo.demo)


@app.callback()
def root(
    state_dir: Annotated[
        Path | None, typer.Option(help="State directory of the agent to talk to; every command takes it too.")
    ] = None,
) -> None:
    """Hand the choice of agent down to the command."""
    if state_dir is not None:
        os.environ["KAFILA_STATE_DIR"] = str(state_dir)


def main() -> None:
    """Entry point."""
    app()
