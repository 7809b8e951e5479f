"""The rows of a bench: each printed as it comes and kept, so that a bench that was stopped goes on where it was."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from tests.kept import Kept

BUILD = Path(__file__).resolve().parents[2] / "build"


def options_and_rows(name: str, parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Rows]:
    """What was asked for, ``--seconds`` too, and the bench's rows in build/NAME.json."""
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    options = parser.parse_args()
    return options, Rows(name, options.seconds)


class Rows:
    """``seconds``: begin nothing after. A row that is kept is not measured again: remove the file to measure anew."""

    def __init__(self, name: str, seconds: float) -> None:
        self._kept = Kept(BUILD / f"{name}.json")
        self._until_s = time.monotonic() + seconds

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """All that is kept, of earlier runs too."""
        return self._kept.records

    def are_due(self, *keys: Hashable) -> bool:
        """Whether any of these is to be measured now."""
        left = [key for key in keys if _text(key) not in self._kept.records]
        return bool(left) and time.monotonic() < self._until_s

    def measure(self, key: Hashable, do: Callable[[], dict[str, Any]]) -> None:
        """Measure what ``key`` names, unless it was or time is up. ``do`` gives figures, and the line ``row``."""
        if self.are_due(key):
            self.keep(key, do())
        else:
            self.show(key)

    def keep(self, key: Hashable, record: dict[str, Any]) -> None:
        """Keep and print what was measured."""
        self._kept.add(_text(key), record)
        self.show(key)

    def show(self, *keys: Hashable) -> None:
        """Print those that are kept."""
        for key in map(_text, keys):
            if key in self.records:
                print(self.records[key]["row"], flush=True)


def _text(key: Hashable) -> str:
    return ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
