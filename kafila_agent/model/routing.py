"""What one token reads of a mixture of experts: everything but the experts it is not routed to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ROUTED = re.compile(r"\.experts\.(?:(\d+)\.)?")
# What configurations call the number of experts that one token is routed to.
_ROUTED_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


class HeldTensor(NamedTuple):
    """A tensor of a block as it is held in memory."""

    name: str
    shape: tuple[int, ...]
    nbytes: int


def bytes_read(block: Iterable[HeldTensor], config: PreTrainedConfig) -> int:
    """Bytes of one block that a one-row step reads; all of them where nothing is routed."""
    tensors = list(block)
    routed = [tensor for tensor in tensors if _ROUTED.search(tensor.name)]
    experts = _expert_count(routed)
    per_token = next(
        (n for key in _ROUTED_PER_TOKEN if isinstance(n := getattr(config, key, None), int)), None
    )
    share = min(1.0, per_token / experts) if per_token and experts else 1.0
    unread = sum(tensor.nbytes for tensor in routed) * (1 - share)
    return sum(tensor.nbytes for tensor in tensors) - round(unread)


def _expert_count(routed: list[HeldTensor]) -> int:
    """Experts of one block: numbered one by one, or the first dimension of fused tensors."""
    numbered = {match[1] for tensor in routed if (match := _ROUTED.search(tensor.name)) and match[1]}
    if numbered:
        return len(numbered)
    return max((tensor.shape[0] for tensor in routed), default=0)
