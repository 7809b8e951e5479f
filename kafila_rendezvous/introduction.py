"""Introductions as the rendezvous carries them: whose turn it is, and which message may come next.

A decision core of one session. It understands no element and no proof; it routes by attempt number, one
attempt at a time, in the order in which joiners called:

    OPENED --HOST_ELEMENT--> CHALLENGED --JOINER_PROOF--> PROVED --HOST_PROOF--> CONFIRMED --Admit--> a member
    any of them --FAILED, a side gone, or too slow--> over
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kafila_proto.names import step_name
from kafila_proto.rendezvous_pb2 import Introduction, ToAgent
from kafila_rendezvous.outcome import Command, RequestRefused, Send

ATTEMPT_S = 75.0  # longer than host and joiner wait for each other, so that they say first what was slow


class AttemptState(enum.Enum):
    """How far an attempt has come."""

    OPENED = enum.auto()
    CHALLENGED = enum.auto()
    PROVED = enum.auto()
    CONFIRMED = enum.auto()


# (state, step, whether the host says it) -> next state
TRANSITIONS: dict[tuple[AttemptState, int, bool], AttemptState] = {
    (AttemptState.OPENED, Introduction.HOST_ELEMENT, True): AttemptState.CHALLENGED,
    (AttemptState.CHALLENGED, Introduction.JOINER_PROOF, False): AttemptState.PROVED,
    (AttemptState.PROVED, Introduction.HOST_PROOF, True): AttemptState.CONFIRMED,
}


@dataclass(slots=True)
class Attempt:
    """One joiner's try."""

    number: int
    joiner: bytes
    expires_at: float
    state: AttemptState = AttemptState.OPENED


class Introductions:
    """The attempts of one session, and who waits for a turn. Members are fingerprints."""

    def __init__(self, host: bytes, next_number: Callable[[], int]) -> None:
        self.failed = 0
        self._host = host
        self._next_number = next_number
        self._waiting: deque[bytes] = deque()
        self._attempt: Attempt | None = None

    @property
    def joiners(self) -> list[bytes]:
        """Who is being introduced or waits for it."""
        return [*([self._attempt.joiner] if self._attempt else []), *self._waiting]

    def call(self, joiner: bytes, now: float) -> list[Command]:
        """Someone knows the number: their turn comes after those before them."""
        self._waiting.append(joiner)
        return self.open_next(now)

    def carry(self, sender: bytes, message: Introduction, now: float) -> list[Command]:
        """Pass a message on. One of an attempt that is over is dropped: it crossed the end on its way.

        Raises RequestRefused if this step cannot come now, or not from ``sender``.
        """
        attempt = self._attempt
        if attempt is None or message.attempt != attempt.number:
            return []
        from_host = sender == self._host
        if not from_host and sender != attempt.joiner:
            raise RequestRefused("forbidden", "this introduction is between others")
        if message.step == Introduction.FAILED:
            return [self._pass_on(attempt, from_host, message), *self._fail(now)]
        following = TRANSITIONS.get((attempt.state, message.step, from_host))
        if following is None:
            step = step_name(message.step)
            raise RequestRefused("invalid", f"{step} cannot come while the attempt is {attempt.state.name}")
        attempt.state = following
        return [self._pass_on(attempt, from_host, message)]

    def admit(self, number: int) -> bytes:
        """The joiner that the host admits; its attempt is over. Raises RequestRefused if none was confirmed."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.state is not AttemptState.CONFIRMED:
            raise RequestRefused("invalid", f"introduction {number} has not been confirmed")
        self._attempt = None
        return attempt.joiner

    def is_confirmed(self, joiner: bytes) -> bool:
        """Whether the host has accepted this joiner, and its admission is on its way."""
        attempt = self._attempt
        return attempt is not None and attempt.joiner == joiner and attempt.state is AttemptState.CONFIRMED

    def remove(self, joiner: bytes, now: float) -> list[Command]:
        """A joiner went away."""
        if joiner in self._waiting:
            self._waiting.remove(joiner)
        if self._attempt is None or self._attempt.joiner != joiner:
            return []
        notice = Introduction(attempt=self._attempt.number, step=Introduction.FAILED)
        return [self._pass_on(self._attempt, False, notice), *self._fail(now)]

    def turn_all_away(self) -> list[bytes]:
        """Nobody is introduced any more; who had not begun is returned."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def tick(self, now: float) -> list[Command]:
        """End an attempt in which a side has fallen silent."""
        attempt = self._attempt
        if attempt is None or now < attempt.expires_at:
            return []
        notice = Introduction(attempt=attempt.number, step=Introduction.FAILED, detail="no answer in time")
        both = [self._pass_on(attempt, from_host, notice) for from_host in (True, False)]
        return [*both, *self._fail(now)]

    def _fail(self, now: float) -> list[Command]:
        self.failed += 1
        self._attempt = None
        return self.open_next(now)

    def open_next(self, now: float) -> list[Command]:
        """Give the next in line a turn, if it is anybody's."""
        if self._attempt is not None or not self._waiting:
            return []
        self._attempt = Attempt(self._next_number(), self._waiting.popleft(), now + ATTEMPT_S)
        opened = Introduction(attempt=self._attempt.number, step=Introduction.OPENED)
        return [Send(self._host, ToAgent(introduction=opened))]

    def _pass_on(self, attempt: Attempt, from_host: bool, message: Introduction) -> Send:
        return Send(attempt.joiner if from_host else self._host, ToAgent(introduction=message))
