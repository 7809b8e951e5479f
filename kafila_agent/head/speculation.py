"""How far to guess ahead: as many rows as the ring has places for, and none where that would gain too little.

With the ring kept full, guesses right with probability ``a`` make one user's decoding faster by

    1 / ((1 - a) + a * interval / circuit)

where ``circuit`` is what one row takes round an empty ring and ``interval`` what the slowest stage, edge or proposer
takes between two rows: a right guess costs an interval, a wrong one a circuit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from kafila_agent.head.measure import Tempo
from kafila_agent.head.prompt_lookup import PromptLookup
from kafila_agent.head.sequence import Sequence, Verdict
from kafila_agent.model.kv import MAX_ROLLBACK_TOKENS

LEAST_GAIN = 1.05
MOST_ROWS = MAX_ROLLBACK_TOKENS // 2  # of one line in the ring: stages can go back twice as far
_HOPELESS = 0.02  # a row that is this unlikely to be needed is not launched
_PRIOR = 0.8  # what a proposer is believed to get right before it has been judged
_JUDGED_WEIGHT = 1 / 16
_FORGOTTEN = 1 / 128  # with every token that nobody guessed, so that who was wrong for long is tried again

Window = Callable[[float, Tempo, float], int]


class Acceptance:
    """How often one proposer's guesses turn out right in one sequence, lately."""

    def __init__(self) -> None:
        self.rate = _PRIOR

    def judge(self, right: bool) -> None:
        """A guess was compared with its token."""
        self.rate += _JUDGED_WEIGHT * (right - self.rate)

    def forget(self) -> None:
        """A token came that this proposer had not guessed."""
        self.rate += _FORGOTTEN * (_PRIOR - self.rate)


def predict_gain(rate: float, circuit_s: float, interval_s: float) -> float:
    """How many times faster than one row at a time."""
    return 1 / ((1 - rate) + rate * interval_s / circuit_s)


def choose_window(rate: float, tempo: Tempo, proposal_s: float = 0.0) -> int:
    """Rows of one line to keep in the ring; 0: guessing does not pay, or nothing is measured yet.

    ``proposal_s``: what the proposer takes for each guess.
    """
    if tempo.circuit_s is None or tempo.interval_s is None:
        return 0
    interval_s = max(tempo.interval_s, proposal_s)
    if predict_gain(rate, tempo.circuit_s, interval_s) < LEAST_GAIN:
        return 0
    likely = MOST_ROWS if rate >= 1 else math.ceil(math.log(_HOPELESS) / math.log(rate))
    return min(MOST_ROWS, likely, math.ceil(tempo.circuit_s / interval_s))


def guess_rows(rollback_tokens: int | None) -> int:
    """Rows of one line that stages allow which can go back so far (None: to the beginning); 0: nothing is guessed."""
    return MOST_ROWS if rollback_tokens is None else min(MOST_ROWS, rollback_tokens // 2)


class Proposer(Protocol):
    """Makes guesses for one sequence. ``name`` is told in measurements."""

    name: str

    @property
    def proposal_s(self) -> float:
        """Seconds that each guess takes, lately."""

    def guess(self, sequence: Sequence, most: int) -> bool:
        """Extend the sequence's line by at most ``most`` guesses, now or soon. Whether there are or will be any."""


class Speculation:
    """An engine's. ``most_rows`` of one line in the ring; 0 where stages cannot go back: nothing is guessed then."""

    def __init__(
        self,
        *,
        most_rows: int = MOST_ROWS,
        proposers: Iterable[Callable[[], Proposer]] = (PromptLookup,),
    ) -> None:
        self._most_rows = most_rows
        self._proposers = tuple(proposers) if most_rows else ()

    def guessing(self, sequence: Sequence, *, wanted: bool) -> Guessing:
        """For a new sequence; with nobody to guess if it is not ``wanted``."""
        proposers = [make() for make in self._proposers] if wanted else []
        return Guessing(sequence, proposers, self.window)

    def window(self, rate: float, tempo: Tempo, proposal_s: float) -> int:
        """Rows of one line to keep in the ring."""
        return min(self._most_rows, choose_window(rate, tempo, proposal_s))

    def places(self, tempo: Tempo) -> int:
        """Rows of all lines to keep in the ring."""
        return tempo.places


class Guessing:
    """One sequence's proposers, asked in their order until one has something to say."""

    def __init__(self, sequence: Sequence, proposers: Iterable[Proposer], window: Window) -> None:
        self._sequence = sequence
        self._window = window
        self._proposers = {proposer.name: (proposer, Acceptance()) for proposer in proposers}

    def judge(self, verdict: Verdict | None) -> None:
        """A token was sampled, and ``verdict`` is what it says of the guess, if there was one."""
        for name, (_, acceptance) in self._proposers.items():
            if verdict is not None and verdict.by == name:
                acceptance.judge(verdict.right)
            else:
                acceptance.forget()

    def go_on(self, tempo: Tempo) -> None:
        """Set the sequence's window and fill it with guesses."""
        self._sequence.window = 0
        guesses = self._sequence.guesses
        for proposer, acceptance in self._proposers.values():
            window = self._window(acceptance.rate, tempo, proposer.proposal_s)
            self._sequence.window = max(window, self._sequence.window)
            if not window:
                continue
            if guesses >= window - 1 or proposer.guess(self._sequence, window - 1 - guesses):
                return
