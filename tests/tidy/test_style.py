"""Style as a test: formatter, linter, types, generated stubs, and words that do not belong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if result.returncode == 0 else result.stdout + result.stderr


def test_lint():
    assert run("ruff", "check", "--no-cache", ".") == ""


def test_format():
    assert run("ruff", "format", "--no-cache", "--check", ".") == ""


def test_types():
    assert run("mypy", "--no-error-summary", "--strict", "kafila_planner") == ""
    assert run("mypy", "--no-error-summary", "kafila_agent", "kafila_rendezvous", "proto/kafila_proto") == ""


def test_stubs_are_what_the_messages_say(tmp_path):
    protos = sorted(str(path) for path in (ROOT / "proto/kafila_proto").glob("*.proto"))
    flags = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    assert run("grpc_tools.protoc", "-I", str(ROOT / "proto"), *flags, *protos) == ""
    made = sorted(tmp_path.rglob("*_pb2*"))
    assert made
    for path in made:
        committed = ROOT / "proto" / path.relative_to(tmp_path)
        assert path.read_text() == committed.read_text(), f"run `make proto`: {committed.name} is stale"


@pytest.mark.parametrize("word", ["TODO", "FIXME", "trust_remote_code=True", "import pickle", "torch.load("])
def test_words_that_do_not_belong(word):
    here = Path(__file__)
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.proto"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [
        name
        for name in listed.stdout.split()
        if (ROOT / name) != here and re.search(re.escape(word), (ROOT / name).read_text())
    ]
    assert not found
