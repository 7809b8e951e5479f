"""Grafana's dashboards as code: ``python -m deploy.grafana.dashboards`` writes the JSON beside this file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, heatmap, timeseries
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus as queries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LineInterpolation, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    DynamicConfigValue,
    VariableRefresh,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.boards import BOARDS, Board, Graph, Heat

HERE = Path(__file__).parent
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT = 8
_DASHED = DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]})


def build(board: Board) -> str:
    """The dashboard's JSON."""
    made = (
        dashboards.Dashboard(board.title)
        .uid(f"kafila-{board.name}")
        .description(board.about)
        .tags(["kafila"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, values in board.variables:
        made.with_variable(
            dashboards.QueryVariable(name)
            .datasource(_SOURCE)
            .query(values)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    numbers = itertools.count(1)
    for title, panels in board.rows:
        made.with_row(dashboards.Row(title).id(next(numbers)))
        for panel in panels:
            shown = _graph(panel) if isinstance(panel, Graph) else _heat(panel)
            made.with_panel(shown.id(next(numbers)))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _graph(panel: Graph) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.about)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .span(panel.columns)
        .height(_HEIGHT)
        .min(0)
        .line_interpolation(LineInterpolation.STEP_AFTER)
        .show_points(VisibilityMode.NEVER)
        .legend(common.VizLegendOptions().show_legend(True))
    )
    for target in _targets(panel.queries):
        made.with_target(target)
    if panel.dashed:
        made.override_by_regexp(f".*{panel.dashed}.*", [_DASHED])
    return made


def _heat(panel: Heat) -> heatmap.Panel:
    (target,) = _targets([(panel.expression, "{{le}}")])
    return (
        heatmap.Panel()
        .title(panel.title)
        .description(panel.about)
        .datasource(_SOURCE)
        .span(panel.columns)
        .height(_HEIGHT)
        .repeat(panel.repeat)
        .repeat_direction("h")
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .show_tooltip()
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .with_target(target.format(PromQueryFormat.HEATMAP))
    )


def _targets(asked: Iterable[tuple[str, str]]) -> list[Any]:
    return [
        queries.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + number)).range()
        for number, (expression, legend) in enumerate(asked)
    ]


def files() -> dict[Path, str]:
    """Every dashboard's file and what belongs into it."""
    return {HERE / f"{board.name}.json": build(board) for board in BOARDS}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
