"""From a model's name or digest to the place where its files lie on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafila_agent.model.errors import ModelError, unreadable
from kafila_agent.model.manifest import Manifest, read_manifest
from kafila_agent.model.safetensors_file import INDEX_NAME, shard_names

# How deep below a model directory checkpoints are looked for, and how many directories are looked into.
_MAX_DEPTH = 4
_MAX_DIRECTORIES = 10_000
_HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:/(?P<file>[\w.-]+\.gguf))?")
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

    ``name`` is a path, a name below one of ``model_dirs``, or a hub id (OWNER/NAME, or OWNER/NAME/FILE.gguf
    for one file), which is taken from the hub cache or, if that lacks it and the network has it,
    downloaded. Raises ModelError saying where it was looked for.
    """
    directories = [Path(directory) for directory in model_dirs]
    return look_here(name, directories) or _from_hub(name)


def look_here(name: str, model_dirs: Iterable[Path] = ()) -> Path | None:
    """As ``locate_model``, without the hub: None for what may be a hub id."""
    directories = list(model_dirs)
    for place in (Path(name).expanduser(), *(directory / name for directory in directories)):
        candidate = place.absolute()
        try:
            if candidate.is_file():
                return candidate
            if candidate.is_dir():
                return _inside(candidate)
        except OSError as error:
            raise unreadable(candidate, error) from error
    for directory in directories:
        for found in _checkpoints(directory):
            if name in (found.name, found.stem):
                return found
    if _HUB_ID.fullmatch(name):
        return None
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


def _inside(directory: Path) -> Path:
    """The directory, or the one GGUF file in it if that is all it holds."""
    files = sorted(directory.glob("*.gguf"))
    return files[0] if len(files) == 1 and not (directory / "config.json").exists() else directory


def _from_hub(hub_id: str) -> Path:
    """A snapshot in the hub's own cache; the network is asked only if the cache lacks it."""
    from huggingface_hub import snapshot_download

    match = _HUB_ID.fullmatch(hub_id)
    assert match is not None
    repository, file = match["repository"], match["file"]
    patterns = [file] if file else list(_WANTED_FILES)
    try:
        snapshot = Path(snapshot_download(repository, allow_patterns=patterns, local_files_only=True))
        if not _is_whole(snapshot, file):
            raise FileNotFoundError(snapshot)
    except FileNotFoundError:  # which the hub's own "not in the cache" is too
        try:
            snapshot = Path(snapshot_download(repository, allow_patterns=patterns))
        except Exception as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            reason = f"{repository}: not in the hub cache and not to be fetched ({first_line})"
            raise ModelError(f"{reason}; check the name and the network, or give a directory") from error
    return snapshot / file if file else _inside(snapshot)


def _is_whole(snapshot: Path, file: str | None) -> bool:
    """Whether a cached snapshot holds what is wanted of it: another program may have fetched less."""
    if file:
        return (snapshot / file).exists()
    if (snapshot / INDEX_NAME).exists():
        return all((snapshot / shard).exists() for shard in shard_names(snapshot))
    return any(snapshot.glob("*.safetensors")) or any(snapshot.glob("*.gguf"))
