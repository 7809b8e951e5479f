"""The family's configuration from GGUF metadata (keys: ggml-org/ggml, docs/gguf.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kafila_agent.model.errors import ModelError

_TOKEN_IDS = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
# llama.cpp scales the queries of the 27B model, which it knows by its 62 blocks, as no other.
_GEMMA3_27B_BLOCKS = 62


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


def config_of(
    file: Path, architecture: str, metadata: dict[str, Any], *, tied: bool, rope_factors: list[float] | None
) -> dict[str, Any]:
    """The configuration of ``architecture`` for ``metadata``; ``rope_factors`` divide the rotary frequencies.

    Raises ModelError if a needed key is absent or out of range, or positions are scaled in a way not served.
    """
    from transformers.integrations import GGUF_CONFIG_MAPPING

    own = {key.removeprefix(f"{architecture}."): _meant(value) for key, value in metadata.items()}
    fields = GGUF_CONFIG_MAPPING[architecture].items()
    config = {field: own[key] for key, field in fields if field is not None and key in own}
    config["model_type"] = ARCHITECTURES[architecture].family
    config["tie_word_embeddings"] = tied
    if "attention.key_length" in own:
        config["head_dim"] = own["attention.key_length"]
    # An array of strings is read as its length.
    config.setdefault("vocab_size", own.get("tokenizer.ggml.tokens"))
    for key, field in _TOKEN_IDS.items():
        if (token := own.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[f"{field}_token_id"] = token
    for field in _NEEDED:
        if not isinstance(config.get(field), int) or not 0 < config[field] < 1 << 31:
            raise ModelError(f"{file}: its metadata gives no {field}; fetch the file again")
    scaling = _rope_scaling(file, own, rope_factors)
    return config | (_gemma3(config, scaling) if architecture == "gemma3" else _plain(config, scaling))


def _meant(value: Any) -> Any:
    """A float32 as it was meant: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(file: Path, own: dict[str, Any], factors: list[float] | None) -> dict[str, Any]:
    """Scaling in transformers' words; empty if there is none."""
    if factors:
        # Factors of each frequency are what "longrope" takes; equal for short and long, they are always in force.
        context = own.get("context_length", 1)
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
        return scaling | {"attention_factor": 1.0, "original_max_position_embeddings": context}
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", 1.0)
    if kind == "none" or factor == 1.0:
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    original = own.get("rope.scaling.original_context_length")
    if kind == "yarn" and original:
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise ModelError(
        f"{file}: scales positions as {kind!r}, which is not served; take a safetensors checkpoint"
    )


def _plain(config: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    if not scaling:
        return {}
    return {"rope_parameters": {"rope_theta": config.pop("rope_theta", 10000.0)} | scaling}


def _gemma3(config: dict[str, Any], scaling: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp derives instead of storing: only full attention is scaled, and queries by the head's size."""
    full = {"rope_type": "default", "rope_theta": 1_000_000.0} | scaling
    is_27b = config["num_hidden_layers"] == _GEMMA3_27B_BLOCKS
    head = config["hidden_size"] // config["num_attention_heads"] if is_27b else config.get("head_dim", 256)
    return {
        "rope_parameters": {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "query_pre_attn_scalar": head,
    }
