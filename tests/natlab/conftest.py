"""Tests in the laboratory run where there can be one, and say why where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SHOWN
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
def show(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A table for the end of the run, whether or not the test passes."""
    return lambda text: record_property(SHOWN, text)
