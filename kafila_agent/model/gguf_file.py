"""One GGUF file as a checkpoint: its configuration, its tensor table, and how its values come back.

Headers are read by transformers' GGUF reader, names come from the gguf package; what is here is the
difference between the two worlds: which keys make a configuration, which tensors were rearranged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .errors import ModelError
from .families import build_config, causal_lm_class
from .tensors import TensorEntry

_PLAIN = {0: "F32", 1: "F16", 30: "BF16"}
_AGAIN = "fetch the file again"
# Values dequantised at a time, in float32: bounds what loading needs beyond the weights themselves.
_CHUNK_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Architecture:
    """How llama.cpp's converter treats one architecture.

    ``rotated``: rows of the query and key projections were interleaved for its rotary layout.
    ``norm_offset``: norms are stored with this added.
    """

    family: str
    rotated: bool = False
    norm_offset: float = 0.0


ARCHITECTURES = {
    "llama": Architecture("llama", rotated=True),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3"),
    "gemma3": Architecture("gemma3_text", norm_offset=1.0),
}


def read_checkpoint(file: Path) -> tuple[dict[str, Any], tuple[TensorEntry, ...]]:
    """Configuration and tensor table. Raises ModelError if the file is cut short, corrupt or not served."""
    from transformers.integrations.gguf import GgufHeader, read_gguf_metadata

    try:
        metadata, _ = read_gguf_metadata(str(file))
        header = GgufHeader.from_file(str(file))
    except OSError as error:
        raise ModelError(f"{file}: cannot read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, struct.error, OverflowError, MemoryError, TypeError, KeyError) as error:
        raise ModelError(f"{file}: not a whole GGUF file ({error}); {_AGAIN}") from error
    if header.architecture not in ARCHITECTURES:
        served = ", ".join(ARCHITECTURES)
        raise ModelError(
            f"{file}: GGUF architecture {header.architecture!r} is not served; choose one of {served}"
        )
    infos = [info for info in header.tensors if not _is_rope_table(info.name, file)]
    config = _config(file, header.architecture, metadata, {info.name for info in infos})
    names = _names(header.architecture, config)
    size = file.stat().st_size
    return config, tuple(_entry(file, info, header.data_start, size, names) for info in infos)


def _is_rope_table(name: str, file: Path) -> bool:
    if name.startswith("rope_"):
        raise ModelError(
            f"{file}: carries its own rotary table, which is not served; take a safetensors checkpoint"
        )
    return False


def _entry(file: Path, info: Any, data_start: int, size: int, names: dict[str, str]) -> TensorEntry:
    from transformers.integrations.gguf.dequant import GGML_BLOCK, GGML_NAME

    start = data_start + info.offset
    if start + info.nbytes > size:
        raise ModelError(f"{file}: ends before tensor {info.name}; {_AGAIN}")
    if not info.shape or min(info.shape) < 1:
        raise ModelError(f"{file}: tensor {info.name} has shape {info.shape}; {_AGAIN}")
    if info.ggml_type in GGML_BLOCK and info.shape[-1] % GGML_BLOCK[info.ggml_type][0]:
        raise ModelError(f"{file}: rows of {info.name} are not whole quantisation blocks; {_AGAIN}")
    encoding = _PLAIN.get(info.ggml_type) or GGML_NAME[info.ggml_type]
    return TensorEntry(
        _family_name(info.name, names, file), info.shape, encoding, file, start, info.nbytes, info.name
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
    with torch.device("meta"):
        parameters = causal_lm_class(config["model_type"])(one_block).state_dict()
    arch = next(key for key, value in MODEL_ARCH_NAMES.items() if value == architecture)
    name_map = get_tensor_name_map(arch, 1)
    found = {}
    for parameter in parameters:
        stem, _, suffix = parameter.rpartition(".")
        name = name_map.get_name(stem)
        if name is not None:
            found[f"{name}.{suffix}"] = parameter
    return found


def _config(file: Path, architecture: str, metadata: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
    """The family's configuration from GGUF keys (ggml-org/ggml, docs/gguf.md)."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    own = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    if own.get("rope.scaling.type", "none") != "none" or own.get("rope.scaling.factor", 1.0) != 1.0:
        raise ModelError(
            f"{file}: scales its rotary positions, which is not served; take a safetensors checkpoint"
        )
    config = {
        field: _number(own[key])
        for key, field in GGUF_CONFIG_MAPPING[architecture].items()
        if field is not None and key in own
    }
    config["model_type"] = ARCHITECTURES[architecture].family
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if "attention.key_length" in own:
        config["head_dim"] = own["attention.key_length"]
    if "vocab_size" not in config:
        # An array of strings is read as its length.
        config["vocab_size"] = own.get("tokenizer.ggml.tokens")
    for key in ("bos", "eos", "padding", "unknown"):
        if f"tokenizer.ggml.{key}_token_id" in own:
            config[f"{ {'padding': 'pad', 'unknown': 'unk'}.get(key, key) }_token_id"] = own[
                f"tokenizer.ggml.{key}_token_id"
            ]
    for field in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        if not isinstance(config.get(field), int) or not 0 < config[field] < 1 << 31:
            raise ModelError(f"{file}: its metadata gives no {field}; {_AGAIN}")
    return config


def _number(value: Any) -> Any:
    """A float32 as it was meant: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


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
    from transformers.integrations.gguf.dequant import GGML_BLOCK, GGML_NAME
    from transformers.integrations.gguf.dequant import dequantize as dequantize_blocks

    ggml_type = next(key for key, name in GGML_NAME.items() if name == entry.encoding)
    elements, nbytes = GGML_BLOCK[ggml_type]
    out = torch.empty(math.prod(entry.shape), dtype=dtype)
    blocks = max(1, _CHUNK_ELEMENTS // elements)
    for first in range(0, out.numel() // elements, blocks):
        part = raw[first * nbytes : (first + blocks) * nbytes]
        out[first * elements : (first + blocks) * elements] = dequantize_blocks(part, ggml_type)
    return out.reshape(entry.shape)
