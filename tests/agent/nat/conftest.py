from __future__ import annotations

from pathlib import Path

import pytest

from kafila_agent.identity import Identity, load_identity


@pytest.fixture(scope="session")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    """One identity."""
    directory: Path = tmp_path_factory.mktemp("identity")
    return [load_identity(directory, "member")]
