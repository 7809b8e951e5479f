"""The slots of the KV cache, and what each still holds: whose prompt, and how much of it in whole chunks.

A slot that is given back keeps its keys and values until it is taken again, least recently used first. A new prompt
that begins like one of them does not go round the ring for the whole chunks they share: its slot *adopts* these, in
place, or as a copy that every stage makes for itself. Rows computed one by one round differently from rows of a chunk,
and so do those of an unfinished chunk; they are not reused, so that an answer never depends on what was asked before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kafila_agent.head.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Adopt:
    """Tell every stage that ``sequence`` begins with the first ``tokens`` of what ``source`` left in ``slot``."""

    sequence: Sequence
    tokens: int
    slot: int
    source: Sequence


class Slots:
    """``rollback_tokens``: how far back from the furthest token a stage can go; None where it keeps everything."""

    def __init__(self, count: int, *, chunk: int, rollback_tokens: int | None = None) -> None:
        self._chunk = chunk
        self._rollback = rollback_tokens
        self._holders: list[Sequence | None] = [None] * count
        self._free = deque(range(count))  # the least recently used first

    @property
    def free(self) -> int:
        """How many slots nobody uses."""
        return len(self._free)

    def take(self, sequence: Sequence) -> Adopt | None:
        """Give ``sequence`` a slot, of which there must be a free one, and what it can adopt."""
        tokens, slot = self._best_match(sequence.prompt)
        source = self._holders[slot]
        # In its own place only what is reused as a whole: whoever shares just a beginning leaves the rest to its owner.
        whole = source is not None and tokens > 0 and tokens == self._held(source)
        sequence.slot = slot if slot in self._free and whole else self._free[0]
        self._free.remove(sequence.slot)
        self._holders[sequence.slot] = sequence
        if source is None or not tokens:
            return None
        sequence.kept = sequence.launched = sequence.reach = tokens
        return Adopt(sequence, tokens, slot, source)

    def give_back(self, sequence: Sequence, *, intact: bool = True) -> None:
        """Nobody uses the slot any more. Not ``intact``: some stage failed, so what it holds is unknown."""
        assert sequence.slot is not None
        self._free.append(sequence.slot)
        if not intact:
            self._holders[sequence.slot] = None

    def _best_match(self, prompt: tuple[int, ...]) -> tuple[int, int]:
        """(tokens that need not be computed, the slot that holds them)."""
        matches = [
            (self._shared(prompt, holder), slot)
            for slot, holder in enumerate(self._holders)
            if holder is not None
        ]
        return max(matches, default=(0, 0), key=lambda match: (match[0], match[1] in self._free))

    def _held(self, holder: Sequence) -> int:
        """Tokens of its prompt that went round in whole chunks."""
        return min(holder.launched, len(holder.prompt)) // self._chunk * self._chunk

    def _shared(self, prompt: tuple[int, ...], holder: Sequence) -> int:
        """Whole chunks that both begin with; at least one token is left, for something must be sampled."""
        most = min(self._held(holder), (len(prompt) - 1) // self._chunk * self._chunk)
        shared = 0
        while shared < most:
            end = shared + self._chunk
            if prompt[shared:end] != holder.prompt[shared:end]:
                break
            shared = end
        out_of_reach = self._rollback is not None and holder.reach - shared > self._rollback
        return 0 if out_of_reach else shared
