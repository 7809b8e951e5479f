"""What .ci/audit.py makes of each thing that pip-audit may say; the tool itself is no part of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parents[2] / ".ci" / "audit.py"
WEAK = {"name": "old", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
SOUND = {"name": "good", "version": "1", "vulns": []}
SKIPPED = {"name": "odd", "skip_reason": "Dependency not found"}


@pytest.fixture
def audit(tmp_path):
    """``audit(about_one, about_all)``: its status and words where pip-audit prints these documents, or dies."""

    def run(about_one, about_all) -> tuple[int, str]:
        answers = {"True": about_one, "False": about_all}
        (tmp_path / "pip_audit.py").write_text(
            "import json, sys\n"
            f"answer = {answers!r}[str('--no-deps' in sys.argv)]\n"
            "if answer is None: sys.exit('no such host')\n"
            "print(json.dumps({'dependencies': answer}))\n"
        )
        done = subprocess.run(
            [sys.executable, str(AUDIT)],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_nothing_is_known(audit):
    assert audit([WEAK], [SOUND, SOUND]) == (0, "audit: 2 packages, 0 known weaknesses\n")


def test_what_is_known_is_named_with_what_mends_it(audit):
    status, words = audit([WEAK], [SOUND, WEAK])
    assert status == 1
    assert "old 1: PYSEC-1; mended in: 2" in words


@pytest.mark.parametrize(
    ("about_one", "about_all", "why"),
    [
        (None, [SOUND], "no such host"),
        ([SKIPPED], [SOUND], "Dependency not found"),  # a mirror that answers so to everything
        ([SOUND], [SOUND], "it knows nothing of"),
        ([WEAK], [SOUND, SKIPPED], "Dependency not found"),
        ([WEAK], None, "no such host"),
        ([WEAK], [], "no package was asked about"),
    ],
)
def test_a_database_that_does_not_answer_is_no_good_news(audit, about_one, about_all, why):
    status, words = audit(about_one, about_all)
    assert status == 2
    assert f"could not be asked: {why}" in words


def test_there_is_something_to_ask_about():
    files = sorted(path.name for path in (AUDIT.parents[1] / "deploy").glob("*-requirements.txt"))
    assert files == ["agent-requirements.txt", "rendezvous-requirements.txt"]
