"""Attention as transformers' layers ask for it: a single row by the kernel of ``kernels.attention``, else theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kafila_agent.kernels.attention import attend_row, attends_natively

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_NAME = "kafila"
# What the kernel does not know: a family that passes any of these is served by transformers' own.
_FOREIGN = ("position_bias", "cache", "softcap", "s_aux")


def use_row_attention(config: PreTrainedConfig) -> None:
    """Have the layers of ``config`` attend through this file, where they would through torch's fused attention."""
    if config._attn_implementation == "sdpa":
        config._attn_implementation = _NAME


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *args: Any,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    # The cache hands out what a row may see and no more (stage.kv_cache): without a mask everything is attended to.
    is_plain = attention_mask is None and not args and all(kwargs.get(name) is None for name in _FOREIGN)
    if is_plain and attends_natively(query, key, value):
        return attend_row(query, key, value, scaling or query.shape[3] ** -0.5), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, *args, scaling=scaling, **kwargs)


ALL_ATTENTION_FUNCTIONS.register(_NAME, _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, sdpa_mask)
