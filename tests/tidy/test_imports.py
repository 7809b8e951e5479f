"""Who may import whom: the walls between the rooms (ARCHITECTURE.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TORCH = {"torch", "transformers", "safetensors", "gguf"}
QUIC = {"aioquic", "qh3"}
WEB = {"fastapi", "uvicorn", "openai", "pydantic", "starlette"}
IMPURE = {"asyncio", "grpc", "socket", "time", "random", "threading", "subprocess", "os", "kafila_proto"}

# (folder, what nothing in it may import, at any depth of its own code)
WALLS = [
    ("kafila_planner", TORCH | QUIC | WEB | IMPURE | {"kafila_agent", "kafila_rendezvous"}),
    ("proto/kafila_proto", TORCH | QUIC | WEB | {"kafila_agent", "kafila_rendezvous"}),
    ("kafila_rendezvous", TORCH | QUIC | WEB | {"kafila_agent"}),
    ("kafila_agent", {"kafila_rendezvous", "openai"}),
    ("kafila_agent/view", TORCH | QUIC | WEB | {"rich", "typer", "grpc"}),
    ("kafila_agent/ctl", TORCH | QUIC | WEB),
    ("kafila_agent/control", TORCH | QUIC | WEB),
    ("kafila_agent/edge", TORCH | WEB),
    ("kafila_agent/nat", TORCH | WEB),
    ("kafila_agent/kernels", QUIC | WEB | {"grpc", "transformers", "kafila_agent.model"}),
    ("kafila_agent/model", QUIC | WEB | {"grpc"}),
    ("kafila_agent/stage", QUIC | WEB | {"grpc"}),
    ("kafila_agent/head", QUIC | WEB | {"grpc"}),
    ("kafila_agent/api", QUIC | {"grpc"}),
]


def imported(path: Path) -> set[str]:
    """Every module that a file imports, with all its parents: a.b.c gives a, a.b and a.b.c."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in found:
            parts = name.split(".")
            names |= {".".join(parts[: i + 1]) for i in range(len(parts))}
    return names


@pytest.mark.parametrize(("folder", "forbidden"), WALLS, ids=[folder for folder, _ in WALLS])
def test_walls(folder, forbidden):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    broken = {
        f"{path.relative_to(ROOT)} imports {name}" for path in files for name in imported(path) & forbidden
    }
    assert not broken


def test_the_wall_test_sees_an_import(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("def f():\n    from torch.nn import Linear\n")
    assert imported(path) >= {"torch", "torch.nn"}


def modules() -> dict[str, Path]:
    """Every module of ours by its name."""
    found = {}
    for root in (ROOT, ROOT / "proto"):
        for package in root.glob("kafila_*"):
            for path in package.rglob("*.py"):
                found[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return found


def test_no_two_modules_import_each_other():
    """Neither at the top, nor in a function, nor for types alone: two such are one module, or want a third."""
    paths = modules()
    assert len(paths) > 100
    wanted = {name: (imported(path) & paths.keys()) - {name} for name, path in paths.items()}
    assert not sorted(
        {tuple(sorted((one, two))) for one in wanted for two in wanted[one] if one in wanted[two]}
    )
