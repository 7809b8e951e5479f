"""Keys and values, reserved at load for every slot: nothing grows while serving.

A block's cache writes at the position it was told and returns a view of what its attention may see, with
the sizes that transformers' own cache gives, so that masks and results are the same. Going back to an
earlier position is setting a length. A sliding-window block keeps its window and a slack (``model.kv``);
when the slack is used up the window moves to the front of its buffer.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kafila_agent.model.kv import MAX_ROLLBACK_TOKENS, BlockKv
from kafila_agent.stage.errors import StageError, VoidFrame


class BlockCache(CacheLayerMixin):
    """Keys and values of one block and slot: views ``[1, heads, tokens kept, dim]`` of the reservation."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, window: int | None) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.window = window
        self.is_sliding = window is not None
        self.is_initialized = True
        self._base = 0  # position of the buffer's first token
        self._length = 0
        self._at = keys.data_ptr(), values.data_ptr(), keys.shape[-2]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is lazy here."""

    def seek(self, position: int) -> None:
        """Continue at ``position``. Raises StageError if a window no longer reaches back that far."""
        if self.window is not None:
            if position == 0:
                self._base = 0
            self.require(position)
        self._length = position

    def require(self, position: int) -> None:
        """Raises StageError if it cannot be continued at ``position``."""
        if self._first_visible(position) < self._base:
            raise StageError(
                f"position {position} is more than {MAX_ROLLBACK_TOKENS} tokens back: outside the window"
            )

    def _first_visible(self, position: int) -> int:
        return 0 if self.window is None else max(position - self.window + 1, 0)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store rows ``[1, heads, rows, dim]`` and return views of all that these rows may attend to."""
        rows = key_states.shape[-2]
        first = self._first_visible(self._length)
        start = self._extend(rows)
        first -= self._base
        seen = []
        for buffer, states in ((self.keys, key_states), (self.values, value_states)):
            buffer[:, :, start : start + rows] = states
            seen.append(buffer[:, :, first : start + rows])
        return seen[0], seen[1]

    def place(self, position: int, rows: int) -> tuple[int, int, int, int, int]:
        """Make room for ``rows`` at ``position`` that native code writes (kernels.program), after a seek.

        Addresses, room, where the first row goes, window or 0.
        """
        self._length = position
        return *self._at, self._extend(rows), self.window or 0

    def _extend(self, rows: int) -> int:
        """Where in the buffer the next ``rows`` go."""
        if self._length - self._base + rows > self._at[2]:
            self._move_window_to_front()
        start = self._length - self._base
        self._length += rows
        return start

    def _move_window_to_front(self) -> None:
        """Drop what neither a coming row nor a rollback can need. Copies in steps that do not overlap."""
        base = max(self._first_visible(self._length) - MAX_ROLLBACK_TOKENS, 0)
        shift, kept = base - self._base, self._length - base
        for buffer in (self.keys, self.values):
            for start in range(0, kept, shift):
                end = min(start + shift, kept)
                buffer[:, :, start:end] = buffer[:, :, start + shift : end + shift]
        self._base = base

    def copy_from(self, other: BlockCache, position: int) -> None:
        """Hold what ``other``, another slot's of the same block, holds before ``position``, and continue there."""
        kept = position - other._base
        for own, others in ((self.keys, other.keys), (self.values, other.values)):
            own[:, :, :kept] = others[:, :, :kept]
        self._base, self._length = other._base, position

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys seen, position of the first) when ``query_length`` rows are added."""
        offset = self._first_visible(self._length)
        return self._length - offset + query_length, offset

    def get_seq_length(self) -> int:
        """Tokens stored so far, in or out of the window."""
        return self._length

    def get_max_length(self) -> int:
        """The window, or -1 for none."""
        return self.window or -1


class SlotCache(Cache):
    """One slot: a sequence's place in every block of the stage.

    ``sequence`` owns it. What it holds is the first ``length`` tokens of ``holder``, who may have left.
    """

    layers: list[BlockCache]

    def __init__(self, layers: list[BlockCache]) -> None:
        super().__init__(layers=layers)
        self.length = 0
        self.sequence: int | None = None
        self.holder: int | None = None
        self.fence = 0
        self.floor = 0

    def seek(self, sequence: int, position: int, *, fence: int = 0, floor: int = 0) -> None:
        """Continue ``sequence`` at ``position``, forgetting what lies beyond; at 0 the slot changes hands.

        Raises VoidFrame if a later ``fence`` has been seen, and StageError if tokens before ``position`` are missing or
        are another sequence's, or if it lies below the highest ``floor`` seen: what is settled is never undone.
        """
        if position == 0 and self.sequence != sequence:
            self._give_to(sequence, 0)
        if self.sequence != sequence:
            raise StageError(f"sequence {sequence} at position {position} does not own its slot")
        if fence < self.fence:
            raise VoidFrame
        if position < self.floor:
            raise StageError(f"position {position} is settled: the floor is {self.floor}")
        if position > self.length:
            raise StageError(f"gap: position {position}, but only {self.length} tokens are cached")
        for layer in self.layers:
            layer.seek(position)
        self.length, self.fence, self.floor = position, fence, max(self.floor, floor)

    def places(self, position: int, rows: int) -> array[int]:
        """``BlockCache.place`` of every block, one after the other."""
        places = array("q")
        for layer in self.layers:
            places.extend(layer.place(position, rows))
        return places

    def adopt(self, sequence: int, position: int, source: SlotCache, holder: int) -> None:
        """``sequence`` begins with the first ``position`` tokens of ``holder``, which lie in slot ``source``.

        Raises StageError if they do not, leaving both as they were.
        """
        if source.holder != holder or source.length < position:
            raise StageError(f"the first {position} tokens of sequence {holder} are not in the slot named")
        for layer in source.layers:
            layer.require(position)
        for own, other in zip(self.layers, source.layers, strict=True):
            if source is self:
                own.seek(position)
            else:
                own.copy_from(other, position)
        self._give_to(sequence, position)

    def _give_to(self, sequence: int, length: int) -> None:
        self.sequence = self.holder = sequence
        self.length = self.floor = length
        self.fence = 0

    def advance(self, rows: int) -> None:
        """Rows went through every block of the stage."""
        self.length += rows

    def release(self, sequence: int) -> None:
        """Free the slot if ``sequence`` still owns it; what it holds stays for whoever adopts it."""
        if self.sequence == sequence:
            self.sequence = None

    def clear(self) -> None:
        """Be free, and hold nothing that could be adopted."""
        for layer in self.layers:
            layer.seek(0)
        self.sequence = self.holder = None
        self.length = self.fence = self.floor = 0


class KvReservation:
    """Memory for ``slots`` sequences of ``context_tokens``, written once so that it is really there."""

    def __init__(
        self,
        blocks: tuple[BlockKv, ...],
        *,
        slots: int,
        context_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def reserve(heads: int, tokens: int, dim: int) -> torch.Tensor:
            return torch.empty(slots, heads, tokens, dim, dtype=dtype, device=device).fill_(0)

        pairs = []
        for block in blocks:
            tokens = block.tokens_kept(context_tokens)
            keys = reserve(block.key_heads, tokens, block.key_dim)
            pairs.append((keys, reserve(block.value_heads, tokens, block.value_dim), block.window))
        self.nbytes = sum(keys.nbytes + values.nbytes for keys, values, _ in pairs)
        self.slots = [
            SlotCache(
                [BlockCache(keys[i : i + 1], values[i : i + 1], window) for keys, values, window in pairs]
            )
            for i in range(slots)
        ]
