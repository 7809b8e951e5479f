"""One GGUF file as a checkpoint: its configuration, its tensor table, and how its values come back.

Names come from the gguf package; what is here is the difference between the two worlds: which keys make a
configuration, which tensors were rearranged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kafila_agent.model.errors import ModelError
from kafila_agent.model.families import build_config, skeleton
from kafila_agent.model.gguf_config import ARCHITECTURES, config_of
from kafila_agent.model.gguf_header import Stored, read_header
from kafila_agent.model.tensors import TensorEntry, read_bytes

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

_ROPE_FACTORS = "rope_freqs.weight"
_MOST_ROPE_FACTORS = 4096
_AGAIN = "fetch the file again"
# Values dequantised at a time, in float32: bounds what loading needs beyond the weights themselves.
_CHUNK_ELEMENTS = 1 << 20


def read_checkpoint(file: Path) -> tuple[dict[str, Any], tuple[TensorEntry, ...]]:
    """Configuration and tensor table. Raises ModelError if the file is cut short, corrupt or not served."""
    try:
        metadata, table, data_start = read_header(file)
    except OSError as error:
        raise ModelError(f"{file}: cannot read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, struct.error, OverflowError, MemoryError, TypeError, KeyError) as error:
        raise ModelError(f"{file}: not a whole GGUF file ({error}); {_AGAIN}") from error
    architecture = str(metadata.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        served = ", ".join(ARCHITECTURES)
        raise ModelError(f"{file}: GGUF architecture {architecture!r} is not served; choose one of {served}")
    size = file.stat().st_size
    factors = _rope_factors(file, table.pop(_ROPE_FACTORS, None), data_start, size)
    tied = "output.weight" not in table
    config = config_of(file, architecture, metadata, tied=tied, rope_factors=factors)
    names = _names(architecture, config)
    return config, tuple(_entry(file, row, data_start, size, names) for row in table.values())


def _rope_factors(file: Path, row: Stored | None, data_start: int, size: int) -> list[float] | None:
    """The file's own divisors of the rotary frequencies (Llama 3's scaling is stored as such a table)."""
    if row is None:
        return None
    entry = _entry(file, row, data_start, size, {_ROPE_FACTORS: _ROPE_FACTORS})
    if entry.encoding != "F32" or entry.elements > _MOST_ROPE_FACTORS:
        raise ModelError(f"{file}: {_ROPE_FACTORS} is no table of frequencies; {_AGAIN}")
    raw = bytearray(entry.nbytes)
    read_bytes(entry, memoryview(raw))
    return np.frombuffer(raw, "<f4").tolist()


def _entry(file: Path, row: Stored, data_start: int, size: int, names: dict[str, str]) -> TensorEntry:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(row.ggml_type)
    except ValueError:
        raise ModelError(f"{file}: {row.name} is of unknown type {row.ggml_type}; {_AGAIN}") from None
    elements, block_bytes = GGML_QUANT_SIZES[kind]
    if not row.shape or min(row.shape) < 1 or row.shape[-1] % elements:
        raise ModelError(
            f"{file}: {row.name} has shape {row.shape}, not whole blocks of {kind.name}; {_AGAIN}"
        )
    nbytes = math.prod(row.shape) // elements * block_bytes
    start = data_start + row.offset
    if start + nbytes > size:
        raise ModelError(f"{file}: ends before tensor {row.name}; {_AGAIN}")
    return TensorEntry(
        _family_name(row.name, names, file), row.shape, kind.name, file, start, nbytes, row.name
    )


def _family_name(name: str, names: dict[str, str], file: Path) -> str:
    """``blk.7.attn_q.weight`` -> ``model.layers.7.self_attn.q_proj.weight``."""
    parts = name.split(".")
    is_block = parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit()
    known = names.get(".".join(["blk", "0", *parts[2:]]) if is_block else name)
    if known is None:
        raise ModelError(f"{file}: tensor {name} has no place in this family; take a safetensors checkpoint")
    return known.replace(".layers.0.", f".layers.{parts[1]}.") if is_block else known


def _names(architecture: str, config: dict[str, Any]) -> dict[str, str]:
    """GGUF name -> family name, for the tensors of block 0 and of the head."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    one_block = build_config(config | {"num_hidden_layers": 1, "layer_types": None})
    parameters = skeleton(one_block).state_dict()
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == architecture)
    name_map = get_tensor_name_map(arch, 1)
    found = {}
    for parameter in parameters:
        stem, _, suffix = parameter.rpartition(".")
        name = name_map.get_name(stem)
        if name is not None:
            found[f"{name}.{suffix}"] = parameter
    return found


def transform_of(family: str, config: dict[str, Any]) -> Callable[[str, torch.Tensor], torch.Tensor] | None:
    """What undoes the converter: ``(GGUF name, stored tensor) -> the family's tensor``, or None."""
    architecture = next(a for a in ARCHITECTURES.values() if a.family == family)
    if architecture.norm_offset:
        return lambda name, tensor: (
            tensor - architecture.norm_offset if name.endswith("norm.weight") else tensor
        )
    if not architecture.rotated:
        return None
    heads = {
        ".attn_q.": config["num_attention_heads"],
        ".attn_k.": config.get("num_key_value_heads", config["num_attention_heads"]),
    }

    def unpermute(name: str, tensor: torch.Tensor) -> torch.Tensor:
        count = next((n for part, n in heads.items() if part in name), None)
        if count is None:
            return tensor
        halves = tensor.reshape(count, tensor.shape[0] // count // 2, 2, *tensor.shape[1:])
        return halves.transpose(1, 2).reshape(tensor.shape)

    return unpermute


def dequantize(raw: torch.Tensor, entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
    """Quantised blocks (bytes) as values of ``dtype``, computed in float32 and rounded once."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType[entry.encoding]
    elements, block_bytes = GGML_QUANT_SIZES[kind]
    out = torch.empty(math.prod(entry.shape), dtype=dtype)
    blocks = max(1, _CHUNK_ELEMENTS // elements)
    for first in range(0, out.numel() // elements, blocks):
        part = raw[first * block_bytes : (first + blocks) * block_bytes]
        out[first * elements : (first + blocks) * elements] = _values(part, kind)
    return out.reshape(entry.shape)


def _values(blocks: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    """float32 values of whole blocks: by torch where transformers has the type, else by the gguf package."""
    from transformers.integrations.gguf.dequant import GGML_BLOCK
    from transformers.integrations.gguf.dequant import dequantize as dequantize_blocks

    if kind in GGML_BLOCK:
        return dequantize_blocks(blocks, int(kind))
    from gguf.quants import dequantize as dequantize_array

    return torch.from_numpy(dequantize_array(blocks.numpy(), kind))
