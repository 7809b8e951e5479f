import tomllib
from pathlib import Path

from kafila_proto import VERSION


def test_one_version():
    root = Path(__file__).resolve().parents[2]
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"] == VERSION
