"""One request's tokens on their way: WAITING -> PREFILL -> DECODE -> FINISHED.

WAITING   accepted; no slot yet
PREFILL   holds a slot; its prompt goes round the ring in chunks
DECODE    rows in the ring, the first of them carrying the newest token, the others guesses at what follows it
FINISHED  over, for whatever reason; a RELEASE frame tells the stages

In DECODE the ring is shown an optimistic line: prompt, output, guesses. What comes back for a row is the very row that
decoding without guesses would have brought, as long as the guesses before it were right; the first wrong one raises the
*fence*, which voids every row launched before, and the line goes on from the token that was sampled instead.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field
from typing import NamedTuple


class State(enum.StrEnum):
    """Where a sequence is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


class Event(enum.StrEnum):
    """What moves it on."""

    ADMIT = "admit"  # a slot was free
    FIRST_TOKEN = "first token"  # the last prompt row came back and was sampled  # noqa: S105
    END = "end"  # stopped, full, cancelled or failed


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this state: a fault of the caller."""


_TABLE: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.ADMIT): State.PREFILL,
    (State.PREFILL, Event.FIRST_TOKEN): State.DECODE,
    (State.WAITING, Event.END): State.FINISHED,
    (State.PREFILL, Event.END): State.FINISHED,
    (State.DECODE, Event.END): State.FINISHED,
}


class Guess(NamedTuple):
    """A token that may follow, and the name of the proposer that says so."""

    token: int
    by: str


class Verdict(NamedTuple):
    """What became of a guess once its token was sampled."""

    by: str
    right: bool


class Line(NamedTuple):
    """A sequence's line at one moment: ``length`` counts output and guesses, ``output`` leaves out what was known."""

    fence: int
    length: int
    output: list[int]
    guesses: list[int]


class Row(NamedTuple):
    """One token for the ring. ``floor``: the position below which everything is settled. ``by``: empty if sampled."""

    position: int
    token: int
    fence: int
    floor: int
    by: str


@dataclass(eq=False, slots=True)
class Sequence:
    """``number`` names it in frames (64 bits). ``prompt`` and ``output`` are token ids.

    ``launched`` is how many positions of the line have been sent round the ring, that is, the next one to send;
    ``reach`` how many ever were. ``kept``: tokens of the prompt that a slot held already.

    Safe for two threads: one commits what it samples, the other guesses and launches.
    """

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    member: str = ""
    output: list[int] = field(default_factory=list)
    state: State = State.WAITING
    slot: int | None = None
    kept: int = 0
    launched: int = 0
    reach: int = 0
    fence: int = 0
    window: int = 0
    _guesses: list[Guess] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, event: Event) -> None:
        """Move on. Raises IllegalEvent naming the sequence, its state and the event."""
        try:
            self.state = _TABLE[self.state, event]
        except KeyError:
            raise IllegalEvent(f"sequence {self.number}: {event} cannot happen while {self.state}") from None

    @property
    def settled(self) -> int:
        """Position of the newest token that is no guess: the row due next, and the floor of all later ones."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def rows_in_flight(self) -> int:
        """Rows of the line in the ring, in DECODE; those that a fence has voided do not count."""
        with self._lock:
            return self.launched - self.settled

    @property
    def guesses(self) -> int:
        """How many tokens of the line are guesses, launched or not."""
        return len(self._guesses)

    def chunk(self, tokens: int) -> tuple[int, ...]:
        """The next so many tokens of the prompt, now launched."""
        ids = self.prompt[self.launched : self.launched + tokens]
        self.launched = self.reach = self.launched + len(ids)
        return ids

    def next_row(self) -> Row | None:
        """The next row of the line, now launched: the newest token, then the guesses. None if there is no more."""
        with self._lock:
            guess = self.launched - self.settled - 1
            if guess >= len(self._guesses) or self.launched >= len(self.prompt) + self.max_tokens - 1:
                return None
            token, by = self._guesses[guess] if guess >= 0 else (self.output[-1], "")
            row = Row(self.launched, token, self.fence, self.settled, by)
            self.launched += 1
            self.reach = max(self.reach, self.launched)
            return row

    def line(self, known: int = 0) -> Line:
        """The line as it is now, for one who knows the first ``known`` tokens of the output already."""
        with self._lock:
            guesses = [guess.token for guess in self._guesses]
            return Line(self.fence, len(self.output) + len(guesses), self.output[known:], guesses)

    def extend(self, line: Line, tokens: list[int], by: str) -> None:
        """Guess that ``tokens`` follow ``line``. What has been sampled meanwhile decides whether that says anything."""
        with self._lock:
            sampled = len(self.output) + len(self._guesses) - line.length
            if line.fence == self.fence and 0 <= sampled < len(tokens):
                if sampled and (self._guesses or self.output[-sampled:] != tokens[:sampled]):
                    return
                self._guesses += [Guess(token, by) for token in tokens[sampled:]]

    def awaits(self, fence: int, position: int) -> bool:
        """Whether the row at ``position`` is the one whose successor is to be sampled next."""
        return fence == self.fence and position == self.settled

    def needs(self, fence: int, position: int) -> bool:
        """Whether anything still depends on the row at ``position``."""
        return self.state is State.PREFILL or (fence == self.fence and position >= self.settled)

    def commit(self, token: int) -> Verdict | None:
        """``token`` was sampled and joins the output. A guess that says otherwise is wrong; all after it are void."""
        with self._lock:
            self.output.append(token)
            if not self._guesses:
                return None
            guess = self._guesses[0]
            if guess.token == token:
                del self._guesses[0]
                return Verdict(guess.by, True)
            self._guesses.clear()
            self.fence += 1
            self.launched = self.settled
            return Verdict(guess.by, False)
