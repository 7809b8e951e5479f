"""A checkpoint as the planner sees it: bytes held in memory, and bytes that one token reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from kafila_planner.facts import ModelFacts

from .families import causal_lm_class
from .manifest import Manifest
from .tensors import TensorEntry
from .weights import torch_dtype

_ROUTED = re.compile(r"\.experts\.(?:(\d+)\.)?")
# What configurations call the number of experts that one token is routed to.
_ROUTED_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")


def describe_model(manifest: Manifest, dtype: str, *, context_tokens: int, concurrency: int) -> ModelFacts:
    """The facts of ``manifest`` served in ``dtype`` to ``concurrency`` sequences of ``context_tokens``.

    A tied embedding is held once and read whole; of an untied one a single row is read. Of a mixture of
    experts one token reads its share of the routed ones. Raises ModelError for a dtype or block that is
    not served.
    """
    sizes = _Sizes(manifest, torch_dtype(dtype))
    blocks = [manifest.block_tensors(index, index + 1) for index in range(manifest.blocks)]
    head = manifest.head_tensors()
    item_bytes = torch_dtype(dtype).itemsize
    return ModelFacts(
        name=manifest.name,
        blocks=manifest.blocks,
        block_bytes=tuple(sizes.held(block) for block in blocks),
        block_read_bytes=tuple(sizes.read(block) for block in blocks),
        head_bytes=sizes.held(head),
        head_read_bytes=sum(sizes.head_read(entry) for entry in head),
        kv_bytes_per_token_per_block=tuple(block.elements_per_token * item_bytes for block in manifest.kv),
        kv_tokens_per_block=tuple(block.tokens_kept(context_tokens) for block in manifest.kv),
        expected_tokens=max(1, context_tokens // 2),
    )


class _Sizes:
    """Sizes of one model's tensors in one serving dtype."""

    def __init__(self, manifest: Manifest, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._tied = manifest.tied
        self._per_token = next(
            (
                n
                for key in _ROUTED_PER_TOKEN
                if isinstance(n := getattr(manifest.model_config, key, None), int)
            ),
            None,
        )
        cls = causal_lm_class(manifest.family)
        kept = set(cls._keep_in_fp32_modules_strict or ())
        if dtype is torch.float16:
            kept |= set(cls._keep_in_fp32_modules or ())
        self._kept_in_float32 = kept

    def entry(self, entry: TensorEntry) -> int:
        """Bytes of one tensor as held."""
        is_kept = any(name in entry.name for name in self._kept_in_float32)
        return entry.elements * (4 if is_kept else self._dtype.itemsize)

    def held(self, entries: Iterable[TensorEntry]) -> int:
        """Bytes held for ``entries``."""
        return sum(self.entry(entry) for entry in entries)

    def read(self, entries: list[TensorEntry]) -> int:
        """Bytes one token reads of a block: routed experts count by the share that is routed to."""
        routed = [entry for entry in entries if _ROUTED.search(entry.name)]
        experts = _expert_count(routed)
        share = min(1.0, self._per_token / experts) if self._per_token and experts else 1.0
        return self.held(entries) - round(self.held(routed) * (1 - share))

    def head_read(self, entry: TensorEntry) -> int:
        """Bytes one token reads of a head tensor."""
        is_lookup = not self._tied and entry.name.endswith("embed_tokens.weight")
        return self.entry(entry) // (entry.shape[0] if is_lookup else 1)


def _expert_count(routed: list[TensorEntry]) -> int:
    """Experts of one block: numbered one by one, or the first dimension of fused tensors."""
    numbered = {match[1] for entry in routed if (match := _ROUTED.search(entry.name)) and match[1]}
    if numbered:
        return len(numbered)
    return max((entry.shape[0] for entry in routed), default=0)
