"""How far to guess ahead: as many rows as the ring has places for, and none where that would gain too little.

With the ring kept full, guesses right with probability ``a`` make one user's decoding faster by

    1 / ((1 - a) + a * interval / circuit)

where ``circuit`` is what one row takes round an empty ring and ``interval`` what the slowest stage, edge or proposer
takes between two rows: a right guess costs an interval, a wrong one a circuit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What guessing ahead promises: ``rows`` of one line are to be in the ring, and 0 where ``reason`` says why not.

    ``rate``: the share of guesses that is right. ``gain``: times faster than one row at a time. None: not measured yet.
    """

    rows: int
    rate: float
    circuit_s: float | None
    interval_s: float | None
    gain: float | None
    reason: str = ""


def predict_outlook(
    rate: float, tempo: Tempo, proposal_s: float = 0.0, most_rows: int = MOST_ROWS
) -> Outlook:
    """For a proposer that is right so often and takes ``proposal_s`` for each guess."""
    if tempo.circuit_s is None or tempo.interval_s is None:
        return Outlook(0, rate, None, None, None, "too few tokens have gone round the ring to know its tempo")
    interval_s = max(tempo.interval_s, proposal_s)
    gain = predict_gain(rate, tempo.circuit_s, interval_s)
    rows, reason = 0, ""
    if not most_rows:
        reason = "this model's stages cannot go back"
    elif gain < LEAST_GAIN:
        reason = f"less than {LEAST_GAIN - 1:.0%} would be gained"
    else:
        likely = MOST_ROWS if rate >= 1 else math.ceil(math.log(_HOPELESS) / math.log(rate))
        rows = min(most_rows, likely, math.ceil(tempo.circuit_s / interval_s))
    return Outlook(rows, rate, tempo.circuit_s, interval_s, gain, reason)


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
        return Guessing(sequence, proposers, self.outlook)

    def outlook(self, tempo: Tempo, rate: float = _PRIOR, proposal_s: float = 0.0) -> Outlook:
        """How many rows of one line to keep in the ring, for a proposer like that."""
        return predict_outlook(rate, tempo, proposal_s, self._most_rows)

    def places(self, tempo: Tempo) -> int:
        """Rows of all lines to keep in the ring."""
        return tempo.places


class Guessing:
    """One sequence's proposers, asked in their order until one has something to say.

    ``outlook``: of the proposer who may fill the ring furthest; None before the first, or where nobody guesses.
    ``judged``, ``right``: guesses compared with their tokens so far.
    """

    def __init__(
        self,
        sequence: Sequence,
        proposers: Iterable[Proposer],
        predict: Callable[[Tempo, float, float], Outlook],
    ) -> None:
        self.outlook: Outlook | None = None
        self.judged = self.right = 0
        self._sequence = sequence
        self._predict = predict
        self._proposers = {proposer.name: (proposer, Acceptance()) for proposer in proposers}

    def judge(self, verdict: Verdict | None) -> None:
        """A token was sampled, and ``verdict`` is what it says of the guess, if there was one."""
        if verdict is not None:
            self.judged += 1
            self.right += verdict.right
        for name, (_, acceptance) in self._proposers.items():
            if verdict is not None and verdict.by == name:
                acceptance.judge(verdict.right)
            else:
                acceptance.forget()

    def go_on(self, tempo: Tempo) -> None:
        """Set the sequence's window and fill it with guesses."""
        self._sequence.window = 0
        self.outlook = None
        guesses = self._sequence.guesses
        for proposer, acceptance in self._proposers.values():
            outlook = self._predict(tempo, acceptance.rate, proposer.proposal_s)
            if self.outlook is None or outlook.rows > self.outlook.rows:
                self.outlook = outlook
            self._sequence.window = self.outlook.rows
            if outlook.rows and (
                guesses >= outlook.rows - 1 or proposer.guess(self._sequence, outlook.rows - 1 - guesses)
            ):
                return
