"""What blocks weigh: the chain to divide, in bytes held and bytes read, and what a stage needs of its member.

A session that was admitted never runs out of memory: KV cache is reserved for context x concurrency.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from kafila_planner.facts import Fleet


@dataclass(frozen=True)
class Chain:
    """The model as the division sees it: one entry per block, KV cache included in what is held."""

    held_bytes: tuple[int, ...]
    read_bytes: tuple[float, ...]
    head_held_bytes: int
    head_read_bytes: float
    full_attention: tuple[bool, ...] | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.held_bytes)

    @cached_property
    def equal(self) -> bool:
        """Every block may stand for every other, so a division is a list of counts."""
        hybrid = self.full_attention is not None and not all(self.full_attention)
        return not hybrid and len(set(self.held_bytes)) == 1 and len(set(self.read_bytes)) == 1

    @cached_property
    def held_before(self) -> tuple[int, ...]:
        """Bytes held by blocks [0, i), for i = 0 ... blocks."""
        return tuple(accumulate(self.held_bytes, initial=0))

    @cached_property
    def read_before(self) -> tuple[float, ...]:
        """Bytes read per token by blocks [0, i), for i = 0 ... blocks."""
        return tuple(accumulate(self.read_bytes, initial=0))

    @cached_property
    def seats(self) -> int:
        """How many stages there can be: every one needs a block, of a hybrid a full-attention block."""
        return self.blocks if self.full_attention is None else sum(self.full_attention)

    def needs_bytes(self, start: int, end: int, is_head: bool) -> int:
        """Room that the stage [start, end) takes: weights, KV cache and, at the head, the head's own."""
        held = self.held_before[end] - self.held_before[start]
        return held + (self.head_held_bytes if is_head else 0)

    def stage_read_bytes(self, start: int, end: int) -> float:
        """Bytes of blocks [start, end) read for each token."""
        if self.equal:  # a product, so that a count costs the same wherever it lies
            return (end - start) * self.read_bytes[0]
        return self.read_before[end] - self.read_before[start]

    def furthest(self, room_bytes: int, is_head: bool) -> list[int]:
        """For each start, the greatest end whose range fits the room (the start itself if none does)."""
        room = room_bytes - (self.head_held_bytes if is_head else 0)
        if room < 0:
            return list(range(self.blocks))
        before = self.held_before
        return [bisect_right(before, before[start] + room) - 1 for start in range(self.blocks)]

    def nearest(self) -> list[int]:
        """For each start, the smallest end that makes a legal range; blocks + 1 where none does."""
        ends, end = [0] * self.blocks, self.blocks + 1
        for start in reversed(range(self.blocks)):
            if self.full_attention is None or self.full_attention[start]:
                end = start + 1
            ends[start] = end
        return ends


def chain_of(fleet: Fleet) -> Chain:
    """The fleet's model, with the KV cache that its context and concurrency reserve in every block."""
    model = fleet.model
    tokens = model.kv_tokens_per_block or (fleet.context_tokens,) * model.blocks
    kept = zip(model.block_bytes, model.kv_bytes_per_token_per_block, tokens, strict=True)
    return Chain(
        held_bytes=tuple(weights + kv * count * fleet.concurrency for weights, kv, count in kept),
        read_bytes=model.block_read_bytes,
        head_held_bytes=model.head_bytes,
        head_read_bytes=model.head_read_bytes,
        full_attention=model.full_attention,
    )
