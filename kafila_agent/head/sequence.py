"""One request's tokens on their way: WAITING -> PREFILL -> DECODE -> FINISHED.

WAITING   accepted; no slot yet
PREFILL   holds a slot; its prompt goes round the ring in chunks
DECODE    one row in the ring at a time, each carrying the newest token
FINISHED  over, for whatever reason; a RELEASE frame tells the stages
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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


@dataclass(eq=False, slots=True)
class Sequence:
    """``number`` names it in frames (64 bits). ``prompt`` and ``output`` are token ids.

    ``launched`` is how many of its positions have been sent round the ring, that is, the next one to send.
    """

    number: int
    prompt: tuple[int, ...]
    output: list[int] = field(default_factory=list)
    state: State = State.WAITING
    slot: int | None = None
    launched: int = 0

    def handle(self, event: Event) -> None:
        """Move on. Raises IllegalEvent naming the sequence, its state and the event."""
        try:
            self.state = _TABLE[self.state, event]
        except KeyError:
            raise IllegalEvent(f"sequence {self.number}: {event} cannot happen while {self.state}") from None
