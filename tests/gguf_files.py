"""GGUF files of tiny random models, written as llama.cpp's converter would write them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

_ARCHITECTURE = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}


def make_gguf(
    file: Path,
    checkpoint: Path,
    encoding: str = "F32",
    metadata: dict[str, object] | None = None,
    rope_factors: list[float] | None = None,
) -> Path:
    """Convert the checkpoint directory ``checkpoint``; matrices in ``encoding``, vectors in float32.

    ``metadata`` is added under the architecture's name; ``rope_factors`` as the table of Llama 3's scaling.
    """
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    config = model.config
    architecture = _ARCHITECTURE[config.model_type]
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head_dim)
    if architecture in ("qwen3", "gemma3"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in (metadata or {}).items():
        kind = {str: gguf.GGUFValueType.STRING, int: gguf.GGUFValueType.UINT32}.get(type(value))
        writer.add_key_value(f"{architecture}.{key}", value, kind or gguf.GGUFValueType.FLOAT32)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_factors, dtype=np.float32))
    for name, array in _tensors(model, architecture).items():
        kind = gguf.GGMLQuantizationType[encoding if array.ndim > 1 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(model: torch.nn.Module, architecture: str) -> dict[str, np.ndarray]:
    config = model.config
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    out = {}
    for name, parameter in model.named_parameters():
        stem, _, suffix = name.rpartition(".")
        array = parameter.detach().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        if architecture == "gemma3" and stem.endswith("norm"):
            array = array + 1
        out[f"{names.get_name(stem)}.{suffix}"] = np.ascontiguousarray(array)
    return out
