"""Tiny random checkpoints of every served family: 6 blocks, a window of 8 tokens, a vocabulary of 128."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

BLOCKS = 6
_WANTED = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 512,
    "sliding_window": 8,
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
    "initializer_range": 0.2,
}

# Scales whose defaults are 1, and would hide that they were forgotten or applied twice.
_SCALES = {
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"logit_scale": 0.3},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "granite": {
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.3,
    },
}


def tiny_config(family: str, *, tied: bool, **changes: object) -> transformers.PreTrainedConfig:
    """A tiny configuration of ``family``; only fields that it knows are set."""
    known = CONFIG_MAPPING[family]()
    fields = {name: value for name, value in _WANTED.items() if hasattr(known, name)}
    fields.update(_SCALES.get(family, {}) | changes, tie_word_embeddings=tied)
    return CONFIG_MAPPING[family](**fields)


def make_checkpoint(
    directory: Path,
    family: str,
    *,
    tied: bool = False,
    seed: int = 0,
    shard_bytes: int | None = None,
    **changes: object,
) -> Path:
    """Write a random float32 checkpoint of ``family``, in shards of ``shard_bytes`` if given."""
    config = tiny_config(family, tied=tied, **changes)
    torch.manual_seed(seed)
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases too, so that none can be forgotten unseen
            parameter.data += 0.1 * torch.randn_like(parameter)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory, max_shard_size=shard_bytes or "5GB")
    return directory
