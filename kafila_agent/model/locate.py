"""From a model's name or digest to the place where its files lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import ModelError
from .manifest import Manifest, read_manifest

# How deep below a model directory checkpoints are looked for, and how many directories are looked into.
_MAX_DEPTH = 4
_MAX_DIRECTORIES = 10_000
_WANTED_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "*.model",
    "*.jinja",
)


def locate_model(name: str, model_dirs: Iterable[Path] = ()) -> Path:
    """A directory of safetensors or a GGUF file for ``name``.

    ``name`` is a path, a name below one of ``model_dirs``, or a hub id (OWNER/NAME), which is taken from
    the hub cache or, if that lacks it and the network has it, downloaded. Raises ModelError saying where
    it was looked for.
    """
    directories = [Path(directory) for directory in model_dirs]
    for candidate in (Path(name).expanduser(), *(directory / name for directory in directories)):
        if candidate.is_dir() or candidate.is_file():
            return candidate
    for directory in directories:
        for found in _checkpoints(directory):
            if name in (found.name, found.stem):
                return found
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    where = ", ".join(map(str, directories)) or "no model directory is configured"
    raise ModelError(
        f"{name}: no such model ({where}); give a directory, a .gguf file or a hub id OWNER/NAME"
    )


def find_by_digest(
    digest: str, name: str, model_dirs: Iterable[Path] = (), *, digest_cache: Path | None = None
) -> Path | None:
    """Where a model with ``digest`` (Manifest.digest) lies, or None.

    Places called ``name`` are tried first. Only headers are read of models whose shapes differ.
    """
    roots = [Path(directory) for directory in model_dirs]
    candidates = [path for root in (*roots, _hub_cache()) for path in _checkpoints(root)]
    candidates.sort(key=lambda path: name not in (path.name, path.stem))
    for path in dict.fromkeys(candidates):
        manifest = _readable(path, digest_cache)
        if manifest and digest.startswith(f"{manifest.shape_digest}-") and manifest.digest == digest:
            return path
    return None


def _readable(path: Path, digest_cache: Path | None) -> Manifest | None:
    try:
        return read_manifest(path, digest_cache=digest_cache)
    except ModelError:
        return None  # a neighbour's broken or unserved model is no reason not to look further


def _checkpoints(root: Path) -> Iterator[Path]:
    """Model directories and GGUF files below ``root``, in a stable order, within the bounds above."""
    for seen, (place, directories, files) in enumerate(os.walk(root, followlinks=True)):
        here = Path(place)
        if seen > _MAX_DIRECTORIES or len(here.relative_to(root).parts) >= _MAX_DEPTH:
            directories.clear()
        directories[:] = sorted(d for d in directories if d not in ("blobs", ".git", ".locks"))
        if "config.json" in files:
            yield here
        yield from (here / file for file in sorted(files) if file.endswith(".gguf"))


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _from_hub(name: str) -> Path:
    """A snapshot in the hub's own cache; the network is asked only if the cache lacks it."""
    from huggingface_hub import snapshot_download

    try:
        try:
            return Path(snapshot_download(name, allow_patterns=list(_WANTED_FILES), local_files_only=True))
        except FileNotFoundError:
            return Path(snapshot_download(name, allow_patterns=list(_WANTED_FILES)))
    except Exception as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"{name}: not in the hub cache and not to be fetched ({first_line})") from error
