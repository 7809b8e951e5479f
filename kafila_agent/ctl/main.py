"""The command tree of ``kafila-ctl``."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

# Commands by name, with their modules. Only what is asked for is imported: `plan` need not wait for gRPC.
_NAMES = ("session", "plan", "probe", "chat", "demo", "doctor", "diagnostics")
_COMMANDS = {name: f"kafila_agent.ctl.{name}" for name in _NAMES}


def root(
    state_dir: Annotated[
        Path | None, typer.Option(help="State directory of the agent to talk to; every command takes it too.")
    ] = None,
) -> None:
    """Run a language model on a few trusted, unequal machines put together."""
    if state_dir is not None:
        os.environ["KAFILA_STATE_DIR"] = str(state_dir)


def build_app(words: list[str]) -> typer.Typer:
    """The tree with the commands that ``words`` name; with all of them if they name none."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in [name for name in _COMMANDS if name in words] or _COMMANDS:
        module = importlib.import_module(_COMMANDS[name])
        if isinstance(getattr(module, "app", None), typer.Typer):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def main() -> None:
    """Entry point."""
    build_app(sys.argv[1:])()


if __name__ == "__main__":
    main()
