"""The exit statuses of ``kafila-ctl`` and the one way of leaving with a message."""

from __future__ import annotations

from typing import NoReturn

import typer

FAILURE = 1
USAGE = 2
NOT_FOUND = 3  # or refused
INTERRUPTED = 130


def fail(status: int, message: str) -> NoReturn:
    """Say ``message`` on stderr and leave with ``status``."""
    typer.echo(f"kafila-ctl: {message}", err=True)
    raise typer.Exit(status)
