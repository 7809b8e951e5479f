"""Options that several commands share, each defined once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

import typer

from kafila_agent.config import default_control_dir

StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="KAFILA_STATE_DIR",
        default_factory=default_control_dir,
        help="State directory of the agent to talk to; /run/kafila for the service.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Dtype = Annotated[
    Literal["bfloat16", "float16", "float32"], typer.Option("--dtype", help="What it is computed in.")
]
Quant = Annotated[
    Literal["none", "int8", "int4"],
    typer.Option("--quant", help="What matrices are held in: less memory, faster, less exact."),
]
Draft = Annotated[str, typer.Option("--draft", help="A small model of the same tokens, to guess ahead with.")]
Context = Annotated[int, typer.Option("--context", min=1, help="Tokens a conversation may hold.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, max=1024, help="Conversations at once.")]


def from_here(model: str) -> str:
    """What names a model, for an agent that runs in another directory: a path that is one here, as it is there."""
    path = Path(model).expanduser()
    with contextlib.suppress(OSError):  # the agent may be let in where we are not
        if model and path.exists():
            return str(path.absolute())
    return model
