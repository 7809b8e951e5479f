"""`kafila-ctl plan`: a ring plan from a file of facts, without a session, a network or a model.

Exit status 0 for a plan, 3 for a refusal, 2 for input that is not a fleet. It starts in a fraction of a
second: nothing heavier than numpy is imported, and rich only for people.
"""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kafila_agent.ctl.exit_status import NOT_FOUND, USAGE
from kafila_planner.facts import Fleet, FleetError, parse_fleet
from kafila_planner.objective import parse_objective
from kafila_planner.planner import plan_ring
from kafila_planner.ring import Refusal, RingPlan, plan_to_json

Answer = tuple[Fleet, RingPlan | Refusal] | FleetError


def plan(
    file: Annotated[str, typer.Argument(help="A fleet, or a list of fleets, as JSON; - is standard input.")],
    division: Annotated[str, typer.Option(help="planner, or for comparison uniform or memory.")] = "planner",
    objective: Annotated[str, typer.Option(help="throughput, latency or mixed:L.")] = "throughput",
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why, in sentences.")] = False,
) -> None:
    """Plan a ring from measured facts: who sits where, with which blocks, and what to expect."""
    try:
        if division not in ("planner", "uniform", "memory"):
            raise ValueError(f"division: must be planner, uniform or memory, not {division!r}")
        parse_objective(objective)
        document = _read(file)
        answers, status = _answers(document, division, objective)
    except ValueError as error:
        print(f"kafila-ctl plan: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    if json:
        objects = [_to_json(answer, explain) for answer in answers]
        shown = objects if isinstance(document, list) else objects[0]
        print(json_format.dumps(shown, indent=2, allow_nan=False))
    else:
        from kafila_agent.ctl.plan_table import show

        for answer in answers:
            show(answer, explain)
    raise typer.Exit(status)


def _read(file: str) -> Any:
    """The JSON document; ValueError if it cannot be read as one."""
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return json_format.loads(text)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{file}: is not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{file}: is not JSON: {str(error).partition(';')[0]}") from None


def _answers(document: object, division: str, objective: str) -> tuple[list[Answer], int]:
    """An answer for the fleet, or one for each of a list, and the exit status."""
    if not isinstance(document, list):
        fleet = parse_fleet(document)
        answer = plan_ring(fleet, division=division, objective=objective)
        return [(fleet, answer)], NOT_FOUND if isinstance(answer, Refusal) else 0
    answers: list[Answer] = []
    for item in document:
        try:
            fleet = parse_fleet(item)
            answers.append((fleet, plan_ring(fleet, division=division, objective=objective)))
        except FleetError as error:
            answers.append(error)
    return answers, 0


def _to_json(answer: Answer, explained: bool) -> dict[str, Any]:
    """The answer's JSON contract, with everything that explains it if so asked."""
    if isinstance(answer, FleetError):
        return {"error": str(answer)}
    fleet, planned = answer
    return plan_to_json(planned) | (_explanation(fleet, planned) if explained else {})


def _explanation(fleet: Fleet, planned: RingPlan | Refusal) -> dict[str, Any]:
    from dataclasses import asdict

    from kafila_planner.advice import front, gains, outlooks, without_each
    from kafila_planner.explain import explain

    result: dict[str, Any] = {"explanation": explain(fleet, planned)}
    if isinstance(planned, RingPlan):
        result["without"] = [asdict(one) for one in without_each(fleet, planned)]
        result["gains"] = [asdict(gain) for gain in gains(fleet, planned)]
        result["outlooks"] = [asdict(outlook) for outlook in outlooks(fleet, planned)]
        result["front"] = [{"circuit_s": c, "bottleneck_s": b} for c, b in front(fleet)]
    return result
