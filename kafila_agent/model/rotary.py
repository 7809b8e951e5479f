"""Cosines and sines of positions, by the model's own module, worked out for many positions at once and kept.

A step of one row would otherwise spend on them, in some twenty calls of torch, as long as on several small blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn

_SPAN_TOKENS = 128
_SPANS_KEPT = 64  # those of 8192 tokens: at 128 dimensions 4 MiB


class RotaryTable:
    """Of a ``rotary`` module that turns each row by its own position alone (``program.positions_are_apart``)."""

    def __init__(self, rotary: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._rotary = rotary
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._span = functools.lru_cache(_SPANS_KEPT)(self._work_out)

    def rows(self, position: int, rows: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Cosine and sine ``[n, dim]`` of positions from ``position`` on, in pieces that make ``rows`` rows."""
        end = position + rows
        while position < end:
            span, first = divmod(position, _SPAN_TOKENS)
            last = min(first + end - position, _SPAN_TOKENS)
            cosine, sine = self._span(span)
            yield cosine[first:last], sine[first:last]
            position += last - first

    def _work_out(self, span: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = span * _SPAN_TOKENS
        positions = torch.arange(first, first + _SPAN_TOKENS, device=self._like.device)
        cosine, sine = self._rotary(self._like, positions[None])
        return cosine[0].contiguous(), sine[0].contiguous()
