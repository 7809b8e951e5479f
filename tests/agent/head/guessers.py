"""Proposers that know the answer and tell it, or do not; and a window that is as wide as a test says."""

from __future__ import annotations

from collections.abc import Callable

from kafila_agent.head.sequence import Sequence
from kafila_agent.head.speculation import Outlook, Speculation

Answers = dict[tuple[int, ...], list[int]]  # by prompt


class Guesser:
    """Knows what follows each prompt; ``twist(place, token)`` is what it says instead."""

    name = "guesser"
    proposal_s = 0.0

    def __init__(self, answers: Answers, twist: Callable[[int, int], int]) -> None:
        self._answers = answers
        self.twist = twist

    def guess(self, sequence: Sequence, most: int) -> bool:
        line = sequence.line()
        known = self._answers.get(sequence.prompt, [])[line.length : line.length + most]
        tokens = [self.twist(line.length + i, token) for i, token in enumerate(known)]
        sequence.extend(line, tokens, self.name)
        return bool(tokens)


def another(token: int) -> int:
    """Any other token of the vocabulary."""
    return token - 1 if token else 1


def always_right(place: int, token: int) -> int:
    return token


def always_wrong(place: int, token: int) -> int:
    return another(token)


def wrong_every(period: int) -> Callable[[int, int], int]:
    """Right up to the last row of a window of that size."""
    return lambda place, token: another(token) if place % period == period - 1 else token


def sometimes(draw, chance: float) -> Callable[[int, int], int]:
    """Right with that chance."""
    return lambda place, token: token if draw.random() < chance else another(token)


class FixedWindow(Speculation):
    """Always ``rows`` of each line in the ring, whatever is measured."""

    def __init__(self, rows: int, guesser: Guesser) -> None:
        super().__init__(proposers=[lambda: guesser])
        self.rows = rows

    def outlook(self, *_: object) -> Outlook:
        return Outlook(self.rows, 1.0, None, None, None)

    def places(self, *_: object) -> int:
        return 10 * self.rows
