"""From a charter and the members' reports to a fleet and its plan: one way, for rendezvous and host alike.

The planner is pure, so both must come to the same plan; the host signs what it computed itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from kafila_planner.division import DivisionRule
from kafila_planner.facts import FleetError, parse_fleet, parse_member, parse_model
from kafila_planner.objective import parse_objective
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_to_json
from kafila_proto.rendezvous_pb2 import Charter, Report

DEFAULT_OBJECTIVE = "throughput"

_REL_TOLERANCE = 1e-9  # predicted seconds: unlike machines may round the last bit differently


def check_charter_facts(charter: Charter) -> None:
    """Raise FleetError naming the field unless a fleet can be made of ``charter`` and fitting reports."""
    parse_model(_parse_object(charter.model.facts_json, "model"))
    if not charter.context_tokens or not charter.concurrency:
        raise FleetError("context_tokens, concurrency: must be 1 or more")
    try:
        parse_objective(charter.objective or DEFAULT_OBJECTIVE)
    except ValueError as error:
        raise FleetError(f"objective: {error}") from error
    check_division(charter.division)


def check_division(name: str) -> None:
    """Raise FleetError unless blocks can be divided by the rule of that name, the planner's if it is empty."""
    if name and name not in list(DivisionRule):
        raise FleetError(f"division: must be {', '.join(DivisionRule)}, not {name[:40]!r}")


def check_member_json(text: str, name: str) -> None:
    """Raise FleetError naming the field unless ``text`` is a "members" object of the member ``name``."""
    _parse_member_object(text, name)


def compose_fleet(charter: Charter, reports: Sequence[Report]) -> dict[str, Any]:
    """The fleet, as a planning file says it, of a charter whose roster's ``reports`` come in its order.

    Raises FleetError naming what is missing or wrong.
    """
    if len(reports) != len(charter.roster):
        raise FleetError(f"{len(reports)} reports for {len(charter.roster)} members")
    return {
        "model": _parse_object(charter.model.facts_json, "model"),
        "context_tokens": charter.context_tokens,
        "concurrency": charter.concurrency,
        "anchor": charter.roster[0].name,
        "members": [
            _parse_member_object(report.member_json, entry.name)
            for entry, report in zip(charter.roster, reports, strict=True)
        ],
    }


def plan_fleet(charter: Charter, reports: Sequence[Report]) -> tuple[str, str]:
    """The fleet and its plan (or refusal), both as canonical JSON. Raises FleetError naming the field."""
    fleet = compose_fleet(charter, reports)
    division = charter.division or DivisionRule.PLANNER
    plan = plan_ring(parse_fleet(fleet), division=division, objective=charter.objective or DEFAULT_OBJECTIVE)
    return canonical_json(fleet), canonical_json(plan_to_json(plan))


def canonical_json(value: object) -> str:
    """One text for one value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse_json(text: str | bytes) -> Any:
    """The value that JSON from elsewhere stands for. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def first_difference(theirs: object, ours: object, at: str = "") -> str | None:
    """Where two JSON values differ first and how, as words; None if they say the same."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted(theirs.keys() | ours.keys())
        pairs = [(f"{at}.{key}".lstrip("."), theirs.get(key), ours.get(key)) for key in keys]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = [(f"{at}[{i}]", *pair) for i, pair in enumerate(zip(theirs, ours, strict=True))]
    else:
        return None if _same_value(theirs, ours) else f"{at or 'it'} is {theirs!r} there, {ours!r} here"
    found = (first_difference(there, here, place) for place, there, here in pairs)
    return next((difference for difference in found if difference is not None), None)


def _same_value(theirs: object, ours: object) -> bool:
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(theirs, ours, rel_tol=_REL_TOLERANCE)
    return type(theirs) is type(ours) and theirs == ours


def _parse_object(text: str, what: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise FleetError(f"{what}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FleetError(f"{what}: not a JSON object")
    return value


def _parse_member_object(text: str, name: str) -> dict[str, Any]:
    value = _parse_object(text, f"report of {name}")
    if value.get("name") != name:
        raise FleetError(f"report of {name}: it is about {value.get('name')!r}")
    parse_member(value, f"report of {name}")
    return value
