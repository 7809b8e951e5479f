"""Which of transformers' modules make up the parts of a standard block (``families``), for the kernels of one step."""

from __future__ import annotations

from typing import Any

from torch import nn

from kafila_agent.kernels.program import (
    BlockParts,
    BlockProgram,
    BlockShape,
    HeadProgram,
    block_program,
    head_program,
)


def stage_program(body: nn.Module) -> BlockProgram | None:
    """The program of ``body``'s blocks, or None where transformers' own modules have to run."""
    config: Any = body.config
    layers: Any = body.layers
    attention = layers[0].self_attn
    shape = BlockShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        dim=attention.head_dim,
        inner=config.intermediate_size,
        epsilon=config.rms_norm_eps,
        scale=attention.scaling,
    )
    if config.hidden_act != "silu":
        return None
    return block_program(shape, [_parts(layer) for layer in layers])


def positions_are_apart(body: Any) -> bool:
    """Whether how a row is turned depends on its own position alone, and not on the highest in its step.

    Those that do not are named in transformers' ``dynamic_rope_update``.
    """
    kind = body.rotary_emb.rope_type
    return isinstance(kind, str) and "dynamic" not in kind and kind != "longrope"


def _parts(layer: Any) -> BlockParts:
    attention, mlp = layer.self_attn, layer.mlp
    return BlockParts(
        q=attention.q_proj,
        k=attention.k_proj,
        v=attention.v_proj,
        out=attention.o_proj,
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
        attention_norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        q_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        turns=bool(getattr(attention, "use_rope", True)),
    )


def tail_program(tail: Any) -> HeadProgram | None:
    """The program of final norm and LM head, or None where transformers' own modules have to run."""
    norm = tail.base_model.norm
    return head_program(tail.lm_head, norm.weight, norm.variance_epsilon)
