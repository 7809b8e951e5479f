"""Every test that docs/SECURITY.md leans on is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = (TESTS.parent / "docs/SECURITY.md").read_text()
CELLS = [
    row.rsplit("|", 2)[1] for row in PAGE.split("## How each line is held")[1].splitlines() if "|" in row
][2:]


def cited() -> list[str]:
    """Citations such as ``folder/test_x.py::test_begin…``; within a cell a folder or file carries on."""
    found = []
    for cell in CELLS:
        folder = file = ""
        for name in re.findall(r"`([^`]+)`", cell):
            if name.startswith("…"):
                name = f"{file}::{name}"
            elif "/" not in name:
                name = f"{folder}/{name}"
            file = name.split("::")[0]
            folder = file.rpartition("/")[0]
            found.append(name)
    return found


@pytest.mark.parametrize("citation", cited())
def test_a_cited_test_is_there(citation):
    path, _, name = citation.partition("::")
    assert (TESTS / path).exists()
    if name:
        words = re.escape(name.strip("…"))
        assert re.search(rf"def (test_\w*)?{words}", (TESTS / path).read_text())


def test_every_line_has_a_test():
    assert len(CELLS) > 30
    assert all("`" in cell for cell in CELLS)
