"""What the dashboards and the alerts ask, read from the files that are deployed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = DEPLOY / "prometheus/rules.yml"
_RATE_INTERVAL = "1m"
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def panel_queries() -> list[tuple[str, str]]:
    """(dashboard and panel, expression) of every target of every panel."""
    found = []
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            where = f"{path.stem}: {panel['title']}"
            found += [(where, target["expr"]) for target in panel.get("targets", [])]
    return found


def rule_queries() -> list[tuple[str, str]]:
    """(alert, expression)."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def filled(expression: str, rate_interval: str = _RATE_INTERVAL, **variables: str) -> str:
    """The expression as Grafana sends it; a variable that is not given matches anything."""
    values = {"__rate_interval": rate_interval, **variables}
    return _VARIABLE.sub(lambda match: values.get(match[1], ".+"), expression)


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels it is selected by) of each selector."""
    yield from _selectors(promql_parser.parse(filled(expression)))


def grouped_by(expression: str) -> set[str]:
    """Labels that sums are kept apart by."""
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


def _selectors(node: object) -> Iterator[tuple[str, set[str]]]:
    match node:
        case promql_parser.VectorSelector():
            yield node.name, {matcher.name for matcher in node.matchers.matchers}
        case promql_parser.MatrixSelector():
            yield from _selectors(node.vector_selector)
        case promql_parser.BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selectors(argument)
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            yield from _selectors(node.expr)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return
        case _:
            raise AssertionError(f"a kind of expression that nobody thought of: {type(node).__name__}")
