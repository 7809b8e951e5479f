"""Tests in the laboratory run where there can be one, and say why where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.natlab.lab import why_not

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    reason = why_not() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.natlab)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a table whether or not the test passes."""

    def print_table(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", flush=True)

    return print_table
