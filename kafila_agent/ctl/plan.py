"""`kafila-ctl plan`: a ring plan from a file of facts, without a session, a network or a model."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kafila_planner.facts import FleetError, parse_fleet
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json

EXIT_NOT_A_FLEET = 2
EXIT_REFUSED = 3


def plan(
    file: Annotated[str, typer.Argument(help="A fleet, or a list of fleets, as JSON; - is standard input.")],
    division: Annotated[str, typer.Option(help="planner, or for comparison uniform or memory.")] = "planner",
    objective: Annotated[str, typer.Option(help="throughput, latency or mixed:L.")] = "throughput",
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, in sentences.")] = False,
) -> None:
    """Plan a ring from measured facts: who sits where, with which blocks, and what to expect."""
    try:
        document = _read(file)
        if isinstance(document, list):
            answers = [_answer_or_error(fleet, division, objective) for fleet in document]
            status = 0
        else:
            answers = [_answer(document, division, objective)]
            status = EXIT_REFUSED if "refused" in answers[0] else 0
    except ValueError as error:
        print(f"kafila-ctl plan: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_NOT_A_FLEET) from None
    if json:
        print(json_format.dumps(answers if isinstance(document, list) else answers[0], indent=2))
    raise typer.Exit(status)


def _read(file: str) -> Any:
    """The JSON document; ValueError if it cannot be read as one."""
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return json_format.loads(text)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: is not JSON: {error}") from None


def _answer(document: object, division: str, objective: str) -> dict[str, Any]:
    return plan_to_json(plan_ring(parse_fleet(document), division=division, objective=objective))


def _answer_or_error(document: object, division: str, objective: str) -> dict[str, Any]:
    try:
        return _answer(document, division, objective)
    except FleetError as error:
        return {"error": str(error)}
