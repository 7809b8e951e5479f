"""The wheel, built from this tree and installed where nothing else of it is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel; what the wheel depends on is borrowed from the tests' own."""

    wheel: Path
    prefix: Path

    def program(self, name: str) -> str:
        """A console script."""
        return str(self.prefix / "bin" / name)

    @property
    def environment(self) -> dict[str, str]:
        """This process's, without what would lead to the tree."""
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    @property
    def share(self) -> Path:
        """What comes beside the programs."""
        return self.prefix / "share/kafila"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("w")
    _run("hatchling", "build", "--target", "wheel", "--directory", str(directory))
    (wheel,) = directory.glob("*.whl")
    prefix = directory / "venv"
    _run("venv", "--without-pip", str(prefix))
    python = str(prefix / "bin/python")
    _run("pip", "--quiet", "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    # Its own site-packages come first; this path's .pth files, and so the tree itself, are not looked at.
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, prefix)


def _run(*module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *module], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
