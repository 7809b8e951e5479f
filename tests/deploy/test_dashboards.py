"""Dashboards and alerts ask only for what there is, and are what their code makes."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.boards import BOARDS, Graph
from deploy.grafana.dashboards import files
from tests.deploy.queries import DASHBOARDS, DEPLOY, grouped_by, panel_queries, rule_queries, selectors
from tests.tidy.metrics_table import agent_registry, families, rendezvous_registry

OF_PROMETHEUS = {"up": set()}
EVERYWHERE = {"instance", "job"}
needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is not installed (make tools)"
)


def known() -> dict[str, set[str]]:
    """Every series that is served, with its labels."""
    found = dict(OF_PROMETHEUS)
    for registry in (agent_registry(), rendezvous_registry()):
        for family in families(registry):
            for series in family.series:
                labels = {*family.labels} | ({"le"} if series.endswith("_bucket") else set())
                found[series] = found.get(series, set()) | labels
    return found


@pytest.mark.parametrize(("where", "expression"), panel_queries() + rule_queries())
def test_every_query_asks_for_metrics_and_labels_that_there_are(where, expression):
    series = known()
    asked = list(selectors(expression))
    assert asked, where
    for name, labels in asked:
        assert name in series, where
        assert labels <= series[name] | EVERYWHERE, where
    everything = set().union(*(series[name] for name, _ in asked)) | EVERYWHERE
    assert grouped_by(expression) <= everything, where


def test_legends_name_labels_that_there_are():
    series = known()
    for board in BOARDS:
        for panel in [panel for _, panels in board.rows for panel in panels if isinstance(panel, Graph)]:
            for expression, legend in panel.queries:
                kept = grouped_by(expression) or set().union(
                    *(series[name] | EVERYWHERE for name, _ in selectors(expression))
                )
                assert set(re.findall(r"{{(\w+)}}", legend)) <= kept, panel.title


def test_the_json_is_what_the_code_makes():
    made = files()
    assert set(made) == set(DASHBOARDS)
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name} is stale: make generated"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafanas_own_types_read_it(path):
    import json

    board = json.loads(path.read_text())
    Dashboard.from_json(board)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]


@needs_promtool
def test_promtool_takes_the_rules_and_the_configuration():
    directory = DEPLOY / "prometheus"
    promtool("check", "rules", str(directory / "rules.yml"))
    promtool("check", "config", str(directory / "prometheus.yml"))


@needs_promtool
def test_every_alert_fires_when_it_should_and_not_when_it_should_not():
    promtool("test", "rules", "rules_test.yml")
    tested = re.findall(r"alertname: (\w+)", (DEPLOY / "prometheus/rules_test.yml").read_text())
    assert {alert for alert, _ in rule_queries()} == set(tested)


def promtool(*command: str) -> None:
    result = subprocess.run(
        ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
