"""The laboratory in small: two emulated machines, a session for each division, the page written from what was seen."""

from __future__ import annotations

import json

import pytest

from tests.lab.figures import Served, served
from tests.lab.fleets import SMOKE
from tests.lab.laboratory import Laboratory
from tests.lab.measure import run_patiently
from tests.lab.report import write
from tests.lab.trials import DIVISIONS, Trial
from tests.natlab.lab import why_not

REASON = why_not()
pytestmark = [
    pytest.mark.natlab,
    pytest.mark.skipif(bool(REASON), reason=REASON),
    pytest.mark.timeout(300),  # processes that import torch, on as few cores as there may be
]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lab")
    with Laboratory(SMOKE, directory / "agents", directory / "models") as lab:
        trials = [Trial("division", SMOKE.models[0], division, is_framed=True) for division in DIVISIONS]
        return [run_patiently(lab, trial) for trial in trials]


@pytest.fixture(scope="module")
def sessions(records) -> dict[str, Served]:
    return {
        division: served(SMOKE, records, purpose="division", division=division)[0] for division in DIVISIONS
    }


def test_divisions_are_those_asked_for_and_take_no_less_than_the_machines_stood_for(sessions):
    """No upper bound: what else runs here makes any stage slower. How close they come is what `make lab` measures.

    A paced stage allows for the lateness with which its thread is woken, and may have allowed too much.
    """
    planner, memory, uniform = (sessions[division] for division in DIVISIONS)
    assert max(planner.predicted_s) < max(memory.predicted_s) < max(uniform.predicted_s)
    assert [stage["blocks"] for stage in uniform.record["stages"]] == [18, 18]
    for session in sessions.values():
        assert all(m >= 0.97 * p for m, p in zip(session.stages_s, session.predicted_s, strict=True))
        assert session.circuit_s >= 0.97 * sum(session.predicted_s)


def test_every_division_says_the_same(records):
    assert len({tuple(answer["token_ids"]) for record in records for answer in record["one_user"]}) == 1
    first = [user["token_ids"] for user in records[0]["many_users"]["users"]]
    assert all([u["token_ids"] for u in record["many_users"]["users"]] == first for record in records)


def test_the_page_holds_what_was_seen(records, tmp_path, monkeypatch):
    build = tmp_path / "build"
    build.mkdir()
    (build / "smoke.json").write_text(json.dumps(dict(enumerate(records))))
    monkeypatch.setattr("tests.lab.report.FLEETS", {"smoke": SMOKE})
    write(build, tmp_path / "EVALUATION.md")
    page = (tmp_path / "EVALUATION.md").read_text()
    planner = served(SMOKE, records, division="planner")[0]
    assert f"| {planner.bottleneck_s * 1e3:.1f} |" in page
    assert "| **not met** |" in page or "| met |" in page
    assert (tmp_path / "evaluation/stages.svg").read_text().startswith("<?xml")
