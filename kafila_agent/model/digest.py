"""Digests of a model: over its shapes (cheap), and over its weights (read once, then remembered)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kafila_agent.model.tensors import TensorEntry

# Keys that tools rewrite and that change nothing a token depends on.
_BOOKKEEPING = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "auto_map"}


def shape_digest(config: dict[str, Any], tensors: Iterable[TensorEntry]) -> str:
    """16 hex digits over the canonical config and the table of (name, encoding, shape)."""
    kept = {key: value for key, value in config.items() if key not in _BOOKKEEPING}
    table = sorted((entry.name, entry.encoding, entry.shape) for entry in tensors)
    text = json.dumps([kept, table], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_digest(files: Iterable[Path], cache: Path | None) -> str:
    """64 hex digits over the files' content; their names do not count."""
    parts = sorted(_file_digest(file, cache) for file in files)
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _file_digest(file: Path, cache: Path | None) -> str:
    """A file's sha256, from ``cache`` when path, size and modification time are those it was computed for."""
    resolved = file.resolve()
    status = resolved.stat()
    key = {"path": str(resolved), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    remembered = cache and cache / f"{hashlib.sha256(str(resolved).encode()).hexdigest()[:32]}.json"
    if remembered:
        try:
            record = json.loads(remembered.read_bytes())
            if {name: record.get(name) for name in key} == key:
                return str(record["sha256"])
        except (OSError, ValueError, KeyError, AttributeError):
            pass  # never computed, or damaged: compute it
    with resolved.open("rb") as stream:
        value = hashlib.file_digest(stream, "sha256").hexdigest()
    if remembered:
        _write(remembered, key | {"sha256": value})
    return value


def _write(file: Path, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk: it is computed again next time
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(record))
        partial.replace(file)
