"""Guesses from the text itself: what followed the last time the same words were there.

Quoting, editing and summarising repeat long stretches of the prompt. A stretch of fewer than SHORTEST tokens says
nothing about what follows and is passed over in silence, so that other text costs nothing. Where a copy has just left
its source, for a word put in, left out or replaced, RETURN tokens that stand near that place say that it is back.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafila_agent.head.sequence import Sequence

SHORTEST = 6
LONGEST = 64
RETURN = 2
STRAY_TOKENS = (
    24  # a copy that has left its source for longer, or comes back to it further away, is a new one
)
_CANDIDATES = 64


class PromptLookup:
    """One sequence's. Only tokens that are settled are searched; what is searched for may end in guesses."""

    name = "lookup"
    proposal_s = 0.0

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._followed: dict[int, list[int]] = {}  # hash of SHORTEST tokens -> where what followed them is
        self._source = 0  # what would follow if the newest copy went on; 0: there is none
        self._strayed = 0  # tokens since it was left

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
            self._follow(token)
            self._tokens.append(token)

    def _follow(self, token: int) -> None:
        if self._source and self._tokens[self._source] == token:
            self._source, self._strayed = self._source + 1, 0
        elif self._strayed < STRAY_TOKENS:
            self._strayed += 1
        else:
            self._source = 0

    def propose(self, guesses: list[int], most: int) -> list[int]:
        """What may follow the learnt tokens and then ``guesses``: at most ``most`` tokens, and twice the match."""
        proposed: list[int] = []
        while len(proposed) < most:
            said = guesses + proposed
            place, match = self._place_after((self._tokens[-LONGEST:] + said)[-LONGEST:])
            if not place:
                break
            if not said:
                self._source, self._strayed = place, 0
            proposed += self._tokens[place : place + 2 * match][: most - len(proposed)]
        return proposed

    def _place_after(self, tail: list[int]) -> tuple[int, int]:
        """Where the longest stretch ends that ends like ``tail``, of equal ones the latest, and its length; or 0."""
        place, longest = 0, SHORTEST - 1
        for candidate in self._followed.get(hash(tuple(tail[-SHORTEST:])), [])[: -_CANDIDATES - 1 : -1]:
            length = self._match(tail, candidate)
            if length > longest:
                longest, place = length, candidate
            if length == len(tail):
                break
        return (place, longest) if place else self._place_near_source(tail)

    def _place_near_source(self, tail: list[int]) -> tuple[int, int]:
        """The same, of shorter stretches near where the copy left its source, of equal ones the nearest."""
        if not self._source:
            return 0, 0
        near = range(self._source - STRAY_TOKENS, self._source + STRAY_TOKENS)
        places = [place for place in near if RETURN <= place < len(self._tokens)]
        matches = [(self._match(tail, place), -abs(place - self._source), place) for place in places]
        match, _, place = max(matches, default=(0, 0, 0))
        return (place, match) if match >= RETURN else (0, 0)

    def _match(self, tail: list[int], end: int) -> int:
        """How many tokens before ``end`` are the last ones of ``tail``."""
        length = 0
        while length < min(len(tail), end) and self._tokens[end - length - 1] == tail[-length - 1]:
            length += 1
        return length
