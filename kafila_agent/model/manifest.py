"""What a checkpoint holds, learnt from its config and headers alone: no weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafila_agent.model import digest, safetensors_file
from kafila_agent.model.errors import ModelError, unreadable
from kafila_agent.model.families import build_config, require_family, skeleton
from kafila_agent.model.tensors import TensorEntry

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from kafila_agent.kernels.packing import Packing
    from kafila_agent.model.kv import BlockKv

__all__ = ["Manifest", "ModelError", "TensorEntry", "read_manifest"]

MAX_CONFIG_BYTES = 10_000_000


@dataclass(frozen=True)
class Manifest:
    """One checkpoint. ``tensors`` holds every tensor the family's model uses, in the file's order."""

    path: Path
    name: str
    family: str
    config: dict[str, Any]
    blocks: int
    tensors: tuple[TensorEntry, ...]
    digest_cache: Path | None = None

    @cached_property
    def model_config(self) -> PreTrainedConfig:
        """transformers' configuration object (shared: copy before changing it)."""
        return build_config(self.config)

    @cached_property
    def tied(self) -> bool:
        """Whether the LM head is the embedding."""
        return bool(self.model_config.tie_word_embeddings)

    @cached_property
    def kv(self) -> tuple[BlockKv, ...]:
        """What each block keeps of a token. Raises ModelError if a block's cache is not served."""
        from kafila_agent.model.kv import describe_kv

        return describe_kv(self.model_config, self.family)

    def packings(self, quant: str) -> dict[str, Packing]:
        """Which modules' matrices ``quant`` holds packed, and how."""
        if quant not in self._packings:
            from kafila_agent.model.packed import choose_packings

            stored = {entry.module: entry.encoding for entry in self.tensors}
            self._packings[quant] = choose_packings(skeleton(self.model_config), quant, stored)
        return self._packings[quant]

    @cached_property
    def _packings(self) -> dict[str, dict[str, Packing]]:
        return {"none": {}}

    @cached_property
    def shape_digest(self) -> str:
        """Hex digest of config and tensor table; cheap."""
        return digest.shape_digest(self.config, self.tensors)

    @cached_property
    def digest(self) -> str:
        """``<shape digest>-<sha256 of the weight files>``: equal on two members iff their models are.

        Reads every weight byte the first time; remembered by (path, size, mtime) in ``digest_cache``. Raises
        ModelError.
        """
        files = {entry.file for entry in self.tensors}
        try:
            content = digest.content_digest(files, self.digest_cache)
        except OSError as error:
            raise unreadable(self.path, error) from error
        return f"{self.shape_digest}-{content}"

    @property
    def transform(self) -> Callable[[str, torch.Tensor], torch.Tensor] | None:
        """How a stored tensor becomes the family's: None for safetensors."""
        if self.path.suffix != ".gguf":
            return None
        from kafila_agent.model import gguf_file

        return gguf_file.transform_of(self.family, self.config)

    def block_tensors(self, start: int, end: int) -> list[TensorEntry]:
        """Tensors of the blocks ``[start, end)``."""
        return [entry for entry in self.tensors if entry.block is not None and start <= entry.block < end]

    def head_tensors(self) -> list[TensorEntry]:
        """Embedding, final norm and, unless it is tied, the LM head."""
        own = [entry for entry in self.tensors if entry.block is None]
        return [entry for entry in own if not (self.tied and entry.name.startswith("lm_head."))]


def read_manifest(path: Path, *, digest_cache: Path | None = None) -> Manifest:
    """The manifest of a directory of safetensors or of one GGUF file.

    Raises ModelError, naming the file and the next step, when the checkpoint is missing, cut short,
    corrupt, pickled, of a family that is not served, or stored in a form that is not.
    """
    path = Path(path)
    try:
        config, tensors = _read(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return _checked(path, config, tensors, digest_cache)


def _read(path: Path) -> tuple[dict[str, Any], tuple[TensorEntry, ...]]:
    if path.is_dir():
        config = _read_config(path / "config.json")
        require_family(config["model_type"], path)
        _refuse_packed(config, path)
        return config, safetensors_file.read_directory(path)
    if path.suffix == ".gguf":
        from kafila_agent.model import gguf_file

        return gguf_file.read_checkpoint(path)
    raise ModelError(f"{path}: neither a model directory nor a .gguf file")


def _checked(
    path: Path, config: dict[str, Any], tensors: tuple[TensorEntry, ...], digest_cache: Path | None
) -> Manifest:
    blocks = config.get("num_hidden_layers")
    if not isinstance(blocks, int) or blocks < 1:
        raise ModelError(f"{path}: config.json has no num_hidden_layers; fetch the model again")
    # Buffers of old checkpoints and extra prediction blocks after the last one are no part of serving.
    used = tuple(t for t in tensors if "rotary_emb" not in t.name and (t.block is None or t.block < blocks))
    present = {entry.block for entry in used} - {None}
    if len(present) < blocks:
        absent = next(block for block in range(blocks) if block not in present)
        raise ModelError(f"{path}: no tensor of block {absent} of {blocks}; fetch the model again")
    name = path.stem if path.suffix == ".gguf" else _snapshot_name(path)
    return Manifest(path, name, config["model_type"], config, blocks, used, digest_cache)


def _snapshot_name(path: Path) -> str:
    """The directory's name; in the hub cache (models--OWNER--NAME/snapshots/REV) the repository's."""
    resolved = path.resolve()
    if resolved.parent.name == "snapshots" and resolved.parent.parent.name.startswith("models--"):
        return resolved.parent.parent.name.removeprefix("models--").replace("--", "/")
    return resolved.name


def _read_config(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ModelError(f"{file}: too large for a configuration; fetch the model again")
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(f"{file}: cannot read ({error.strerror}); give a whole model directory") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: not JSON; fetch the model again") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{file}: names no model_type; give the directory of a causal language model")
    return config


def _refuse_packed(config: dict[str, Any], path: Path) -> None:
    packing = config.get("quantization_config")
    if packing:
        method = packing.get("quant_method", "quantised") if isinstance(packing, dict) else "quantised"
        raise ModelError(
            f"{path}: weights packed as {method} are not served; take a bfloat16 checkpoint or a GGUF"
        )
