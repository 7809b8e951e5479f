"""Files and functions stay small enough to read at one sitting. The bounds may only tighten."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kafila_agent", "kafila_planner", "kafila_rendezvous", "proto/kafila_proto")
FILE_LINES = 400
FUNCTION_LINES = 60


def sources() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name
    ]


def test_files():
    page = sorted((ROOT / "kafila_agent/api/page").iterdir())
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in [*sources(), *page]
    }
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES}


def test_functions():
    long = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not long
