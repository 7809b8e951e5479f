"""What one block keeps of a token, learnt by running the family's own block: no table of ours."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kafila_agent.model.errors import ModelError
from kafila_agent.model.families import causal_lm_class

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# Rows of one frame, and tokens a sequence may be rolled back, that a sliding-window block makes room for
# beyond its window. Constants of the project, because the planner must know what a cache holds before
# any engine exists.
MAX_FRAME_ROWS = 512
MAX_ROLLBACK_TOKENS = 128
SLIDING_SLACK_TOKENS = MAX_FRAME_ROWS + MAX_ROLLBACK_TOKENS


@dataclass(frozen=True, slots=True)
class BlockKv:
    """Shapes of one block's cache, keys and values apart; ``window`` in tokens, or None."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    window: int | None

    @property
    def elements_per_token(self) -> int:
        """Numbers kept for one token."""
        return self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def tokens_kept(self, context_tokens: int) -> int:
        """Tokens of one sequence for which the cache has room."""
        if self.window is None:
            return context_tokens
        return min(context_tokens, self.window - 1 + SLIDING_SLACK_TOKENS)


def rollback_tokens(blocks: Sequence[BlockKv], context_tokens: int) -> int | None:
    """How far back every one of ``blocks`` can always continue a sequence; None: to its very beginning."""
    keep_all = all(block.tokens_kept(context_tokens) == context_tokens for block in blocks)
    return None if keep_all else MAX_ROLLBACK_TOKENS


def describe_kv(config: PreTrainedConfig, family: str) -> tuple[BlockKv, ...]:
    """Cache shapes of every block. Raises ModelError if one keeps anything but keys and values."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    layers = DynamicCache(config=config).layers
    if not layers:  # a configuration without layer types: every block attends to everything
        layers = [DynamicLayer()] * config.num_hidden_layers
    shapes: dict[Any, tuple[int, int, int, int]] = {}
    blocks = []
    for index, layer in enumerate(layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ModelError(
                f"{family}: block {index} keeps a {type(layer).__name__}, which cannot be cropped"
            )
        kind = (getattr(config, "layer_types", None) or [None] * len(layers))[index]
        if kind not in shapes:
            shapes[kind] = _observe(config, family, index)
        blocks.append(BlockKv(*shapes[kind], window=getattr(layer, "sliding_window", None)))
    return tuple(blocks)


class _Observed(Exception):
    """The shapes of the first keys and values that a block stored."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.shapes = (keys.shape[1], keys.shape[3], values.shape[1], values.shape[3])


def _observe(config: PreTrainedConfig, family: str, index: int) -> tuple[int, int, int, int]:
    """Run block ``index`` alone on the meta device with one row, up to its first write into the cache."""
    from transformers import DynamicCache

    class Spy(DynamicCache):
        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
            raise _Observed(key_states, value_states)

    one = copy.deepcopy(config)
    narrow(one, index, index + 1)
    one.rope_parameters = _plain_rope(one.rope_parameters)
    with torch.device("meta"):
        base = causal_lm_class(family)(one).base_model
        rows = torch.empty(1, 1, one.hidden_size, dtype=base.dtype)
        positions = torch.zeros(1, 1, dtype=torch.long)
    try:
        base(inputs_embeds=rows, position_ids=positions, past_key_values=Spy(config=one), use_cache=True)
    except _Observed as seen:
        return seen.shapes
    raise ModelError(f"{family}: block {index} stores no keys and values; this family is not served")


def narrow(config: PreTrainedConfig, start: int, end: int) -> None:
    """Make ``config`` describe blocks ``[start, end)`` only; after its last block it begins again."""
    blocks = range(start, end)
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        values = getattr(config, name, None)
        if values:
            setattr(config, name, [values[block % config.num_hidden_layers] for block in blocks])
    config.num_hidden_layers = len(blocks)


def _plain_rope(parameters: Any) -> Any:
    """Rotary scaling reads positions, which meta tensors do not have, and leaves shapes alone: drop it."""
    if not isinstance(parameters, dict):
        return parameters
    if any(isinstance(value, dict) for value in parameters.values()):
        return {key: _plain_rope(value) for key, value in parameters.items()}
    kept = {"rope_theta", "partial_rotary_factor"}
    return {key: value for key, value in parameters.items() if key in kept} | {"rope_type": "default"}
