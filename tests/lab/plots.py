"""The plots of docs/EVALUATION.md, from records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.lab.figures import Record, Served, served, spread
from tests.lab.fleets import FleetFacts
from tests.lab.trials import DIVISIONS

_COLOURS = {"planner": "#1b7837", "memory": "#9970ab", "uniform": "#bf812d"}


def draw(seen: Sequence[tuple[FleetFacts, Sequence[Record]]], directory: Path) -> list[str]:
    """Write the plots into ``directory``; their names."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "kafila"  # the same figures make the same file
    directory.mkdir(parents=True, exist_ok=True)
    names = []
    for name, title, one, many in (
        ("stages", "Slowest stage, ms", lambda s: s.bottleneck_s * 1e3, None),
        (
            "users",
            "Tokens per second: one user, and all together",
            lambda s: s.one_user,
            lambda s: s.many_users,
        ),
    ):
        _bars(seen, title, one, many, directory / f"{name}.svg")
        names.append(f"{name}.svg")
    return names


def _bars(seen, title, one, many, file: Path) -> None:
    import matplotlib.pyplot as plt

    groups = []
    for fleet, records in seen:
        for model in fleet.models:
            wanted = {"purpose": "division", "model": model}
            sessions = {
                division: served(fleet, records, division=division, **wanted) for division in DIVISIONS
            }
            if any(sessions.values()):
                groups.append((f"{fleet.name}\n{model}", sessions))
    figure, axes = plt.subplots(figsize=(2 + 1.5 * len(groups), 3.6), layout="constrained")
    for place, division in enumerate(DIVISIONS):
        for group, (_, sessions) in enumerate(groups):
            if not sessions[division]:
                continue
            at = group + (place - 1) * 0.27
            _bar(axes, at, sessions[division], many or one, _COLOURS[division], 0.45 if many else 1.0)
            if many:
                _bar(axes, at, sessions[division], one, _COLOURS[division], 1.0)
    axes.set_xticks(range(len(groups)), [label for label, _ in groups], fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.legend(
        [plt.Rectangle((0, 0), 1, 1, color=_COLOURS[division]) for division in DIVISIONS],
        DIVISIONS,
        fontsize=8,
    )
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def _bar(axes, at: float, sessions: Sequence[Served], figure, colour: str, alpha: float) -> None:
    values = spread(sessions, figure)
    reach = [[values.median - min(values.values)], [max(values.values) - values.median]]
    axes.bar(at, values.median, 0.25, color=colour, alpha=alpha, yerr=reach, ecolor="#444444", capsize=2)
