"""Guesses from the text itself: what followed the last time the same words were there.

Quoting, editing and summarising repeat long stretches of the prompt. A stretch of fewer than SHORTEST tokens says
nothing about what follows and is passed over in silence, so that other text costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafila_agent.head.sequence import Sequence

SHORTEST = 8
LONGEST = 64
_CANDIDATES = 64


class PromptLookup:
    """One sequence's. Only tokens that are settled are searched; what is searched for may end in guesses."""

    name = "lookup"
    proposal_s = 0.0

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._followed: dict[int, list[int]] = {}  # hash of SHORTEST tokens -> where what followed them is

    def guess(self, sequence: Sequence, most: int) -> bool:
        """Extend the sequence's line by at most ``most`` guesses. Whether there are any."""
        if not self._tokens:
            self.learn(sequence.prompt)
        line = sequence.line(len(self._tokens) - len(sequence.prompt))
        self.learn(line.output)
        tokens = self.propose(line.guesses, most)
        sequence.extend(line, tokens, self.name)
        return bool(tokens)

    def learn(self, tokens: Iterable[int]) -> None:
        """The next settled tokens of prompt and output."""
        for token in tokens:
            if len(self._tokens) >= SHORTEST:
                key = hash(tuple(self._tokens[-SHORTEST:]))
                self._followed.setdefault(key, []).append(len(self._tokens))
            self._tokens.append(token)

    def propose(self, guesses: list[int], most: int) -> list[int]:
        """What may follow the learnt tokens and then ``guesses``: at most ``most`` tokens, and twice the match."""
        proposed: list[int] = []
        while len(proposed) < most:
            following = self._following((self._tokens[-LONGEST:] + guesses + proposed)[-LONGEST:])
            if not following:
                break
            proposed += following[: most - len(proposed)]
        return proposed

    def _following(self, tail: list[int]) -> list[int]:
        """After the longest stretch that ends like ``tail``; of equal ones the latest."""
        longest, place = SHORTEST - 1, 0
        for candidate in self._followed.get(hash(tuple(tail[-SHORTEST:])), [])[: -_CANDIDATES - 1 : -1]:
            length = self._match(tail, candidate)
            if length > longest:
                longest, place = length, candidate
            if length == len(tail):
                break
        return self._tokens[place : place + 2 * longest] if place else []

    def _match(self, tail: list[int], end: int) -> int:
        """How many tokens before ``end`` are the last ones of ``tail``."""
        length = 0
        while length < min(len(tail), end) and self._tokens[end - length - 1] == tail[-length - 1]:
            length += 1
        return length
