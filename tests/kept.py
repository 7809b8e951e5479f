"""What long runs have seen, kept so that one that was stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Kept:
    """Records by key in one file of JSON, written anew at each addition."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.records: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def add(self, key: str, record: Any) -> None:
        """Keep a record."""
        self.records[key] = record
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self.records, indent=1))
