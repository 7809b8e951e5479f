"""Introductions: how a host admits a machine that knows the code's words, and that machine knows its host.

Two decision cores, fed with what the rendezvous delivered and the time; proto/kafila_proto/pake.py is the
exchange they carry. The rendezvous in between is not trusted: it gets one guess at the words per attempt.

Host:    ADMITTING --opened--> CHALLENGING --proof, right--> ADMITTING (or STOPPED: everyone is here)
                               CHALLENGING --proof, wrong; failed; timeout--> ADMITTING (or STOPPED: three)
         Whoever received the host's element could test one guess, so every attempt counts as failed unless
         it ends confirmed. Who vanishes before its admission has arrived is off the roster again.
         One at a time: what opens during another is turned away before it gets an element.
Joiner:  IDLE --join--> CALLING --host's element--> PROVING --host's proof, right--> JOINED
                        CALLING, PROVING --anything else--> IDLE; three times on one number: no more of it
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafila_proto.certificate import fingerprint
from kafila_proto.names import InvalidName, check_name, printable, step_name
from kafila_proto.pake import SESSION_ID_BYTES, Confirmations, Exchange, PakeError, Role, Transcript
from kafila_proto.rendezvous_pb2 import Admit, FromAgent, Introduction, JoinSession, Leave, StopAdmitting
from kafila_proto.session_code import SessionCode

MAX_FAILURES = 3
ATTEMPT_S = 30.0  # from the host's element to the joiner's proof, and from there to the host's
CALL_S = 120.0  # the joiner waits for its turn: others may be joining

NO_SUCH_CODE = (
    "no session admits this code: compare it with what the host's screen shows, and that it still does"
)


class IllegalEvent(RuntimeError):
    """A message that cannot come in this state: a fault of who sent it."""


@dataclass(frozen=True, slots=True)
class Party:
    """One's own side: what the exchange binds."""

    name: str
    certificate_der: bytes
    rendezvous_fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: a core's ``deadline`` has come, or somebody just looks."""


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to the rendezvous."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class Admitted:
    """Host: this machine knows the words. It belongs in the next charter's roster."""

    name: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Host: who was admitted last went away at once. It does not belong in the next charter's roster."""

    name: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """Host: somebody tried the code and failed; ``failures`` so far."""

    failures: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Host: nobody is admitted any more under this code, for ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Joiner: admitted to this session, of this host."""

    session_id: bytes
    host_name: str
    host_fingerprint: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Joiner: not admitted, for ``reason``."""

    reason: str


Command = Send | Admitted | Withdrawn | AttemptFailed | Stopped | Joined | Refused


# Where the host's introductions are, and where a joiner is.
HostState = enum.Enum("HostState", ["ADMITTING", "CHALLENGING", "STOPPED"])
JoinerState = enum.Enum("JoinerState", ["IDLE", "CALLING", "PROVING", "JOINED"])


class HostIntroduction:
    """The host's side, for one session. ``roster`` grows as it admits, the host itself first."""

    def __init__(
        self, party: Party, session_id: bytes, words: tuple[str, ...], expected_members: int
    ) -> None:
        self.state = HostState.STOPPED
        self.failures = 0
        self.deadline: float | None = None
        self.roster: dict[str, bytes] = {party.name: fingerprint(party.certificate_der)}
        self._party = party
        self._session_id = session_id
        self._expected_members = expected_members
        self._attempt = 0
        self._admitted: tuple[int, str] | None = None  # the last admission: its attempt, and whose
        self._exchange: Exchange | None = None
        self.renew(words)

    @property
    def is_full(self) -> bool:
        """Whether everyone who is expected is on the roster."""
        return len(self.roster) >= self._expected_members

    def renew(self, words: tuple[str, ...]) -> list[Command]:
        """Admit under new words, with a clean count; whoever is in stays in, an attempt under the old ones ends."""
        self._words, self.failures = words, 0
        broken_off = self._break_off()
        self.state = HostState.STOPPED if self.is_full else HostState.ADMITTING
        return broken_off

    def depart(self, member: bytes) -> str | None:
        """Strike the member with this fingerprint, which has left, off the roster; its name if it was on it.

        The code goes on admitting if it still did; one that was used up stays so.
        """
        name = next((n for n, f in list(self.roster.items())[1:] if f == member), None)
        if name is not None:
            del self.roster[name]
        return name

    def handle(self, event: Introduction | Tick, now: float) -> list[Command]:
        """What to do about ``event`` at ``now`` (seconds, monotonic). Raises IllegalEvent."""
        if isinstance(event, Tick):
            expired = self.deadline is not None and now >= self.deadline
            return self._give_up() if expired else []
        try:
            rule = _HOST_TABLE[self.state, event.step]
        except KeyError:
            step = step_name(event.step)
            raise IllegalEvent(f"{step} cannot come to a host that is {self.state.name}") from None
        return rule(self, event, now)

    def _challenge(self, event: Introduction, now: float) -> list[Command]:
        self._attempt, self._exchange = event.attempt, Exchange(Role.HOST, self._words)
        self.state, self.deadline = HostState.CHALLENGING, now + ATTEMPT_S
        return [
            _introduce(
                event.attempt,
                Introduction.HOST_ELEMENT,
                element=self._exchange.element,
                certificate=self._party.certificate_der,
                session_id=self._session_id,
                name=self._party.name,
            )
        ]

    def _turn_away(self, event: Introduction, now: float) -> list[Command]:
        busy = self.state is HostState.CHALLENGING
        detail = "somebody else is joining just now: try again in a moment" if busy else ""
        return [_introduce(event.attempt, Introduction.FAILED, detail=detail)]

    def _judge(self, event: Introduction, now: float) -> list[Command]:
        if event.attempt != self._attempt:
            return []
        joiner = fingerprint(event.certificate)
        try:
            confirmations = self._check_proof(event, joiner)
        except PakeError:
            return [_introduce(event.attempt, Introduction.FAILED), *self._count_failure()]
        self._settle()
        objection = self._objection(event.name, joiner)
        if objection:
            return [_introduce(event.attempt, Introduction.FAILED, detail=objection)]
        self.roster[event.name] = joiner
        self._admitted = (event.attempt, event.name)
        proof = _introduce(event.attempt, Introduction.HOST_PROOF, confirmation=confirmations.mine)
        admit = Send(FromAgent(admit=Admit(attempt=event.attempt)))
        full = self.stop("everyone is here") if self.is_full else []
        return [proof, admit, Admitted(event.name, joiner), *full]

    def _check_proof(self, event: Introduction, joiner: bytes) -> Confirmations:
        assert self._exchange is not None
        transcript = Transcript(
            session_id=self._session_id,
            host_name=self._party.name,
            host_fingerprint=fingerprint(self._party.certificate_der),
            joiner_name=event.name,
            joiner_fingerprint=joiner,
            rendezvous_fingerprint=self._party.rendezvous_fingerprint,
        )
        confirmations = self._exchange.agree(event.element, transcript)
        confirmations.check(event.confirmation)
        return confirmations

    def _objection(self, name: str, joiner: bytes) -> str:
        """Why one who knows the words still cannot be in the roster; empty if it can."""
        try:
            check_name(name)
        except InvalidName as error:
            return str(error)
        if self.roster.get(name, joiner) != joiner:
            return f"a member named {name} is here already: start this agent with another --name"
        if joiner in self.roster.values():
            return f"{name} is in this session already"
        return ""

    def _lost(self, event: Introduction, now: float) -> list[Command]:
        return self._count_failure() if event.attempt == self._attempt else []

    def _give_up(self) -> list[Command]:
        silent = _introduce(self._attempt, Introduction.FAILED, detail="no answer in time: try again")
        return [silent, *self._count_failure()]

    def _withdraw(self, event: Introduction, now: float) -> list[Command]:
        """Whose attempt ends as failed after its admission was said went away before it was in."""
        if self._admitted is None or self._admitted[0] != event.attempt:
            return []
        (_, name), self._admitted = self._admitted, None
        return [Withdrawn(name)] if self.roster.pop(name, None) else []

    def _ignore(self, event: Introduction, now: float) -> list[Command]:
        return []

    def _count_failure(self) -> list[Command]:
        self._settle()
        self.failures += 1
        reason = f"{self.failures} attempts with this code failed; `kafila-ctl session code` makes a new one"
        stopped = self.stop(reason) if self.failures >= MAX_FAILURES else []
        return [AttemptFailed(self.failures), *stopped]

    def _settle(self) -> None:
        self.state, self.deadline, self._exchange = HostState.ADMITTING, None, None

    def stop(self, reason: str) -> list[Command]:
        """Admit nobody any more, for ``reason``. An attempt under way ends."""
        broken_off = self._break_off()
        self.state = HostState.STOPPED
        return [*broken_off, Send(FromAgent(stop_admitting=StopAdmitting())), Stopped(reason)]

    def _break_off(self) -> list[Command]:
        under_way, self._exchange, self.deadline = self.state is HostState.CHALLENGING, None, None
        return [_introduce(self._attempt, Introduction.FAILED)] if under_way else []


_HostRule = Callable[[HostIntroduction, Introduction, float], list[Command]]
_HOST_TABLE: dict[tuple[HostState, int], _HostRule] = {
    (HostState.ADMITTING, Introduction.OPENED): HostIntroduction._challenge,
    (HostState.CHALLENGING, Introduction.OPENED): HostIntroduction._turn_away,
    (HostState.STOPPED, Introduction.OPENED): HostIntroduction._turn_away,
    (HostState.CHALLENGING, Introduction.JOINER_PROOF): HostIntroduction._judge,
    (HostState.CHALLENGING, Introduction.FAILED): HostIntroduction._lost,
    # What was on its way when its attempt ended:
    (HostState.ADMITTING, Introduction.JOINER_PROOF): HostIntroduction._ignore,
    (HostState.STOPPED, Introduction.JOINER_PROOF): HostIntroduction._ignore,
    (HostState.ADMITTING, Introduction.FAILED): HostIntroduction._withdraw,
    (HostState.STOPPED, Introduction.FAILED): HostIntroduction._withdraw,
}


class JoinerIntroduction:
    """The joiner's side. One object for an agent's whole life, since it counts failures by number."""

    def __init__(self, party: Party) -> None:
        self.state = JoinerState.IDLE
        self.deadline: float | None = None
        self._party = party
        self._code = SessionCode("", ())
        self._failures: Counter[str] = Counter()
        self._joined: Joined | None = None
        self._confirmations: Confirmations | None = None
        self._attempt = 0

    def join(self, code: SessionCode, now: float) -> list[Command]:
        """Ask to be admitted under ``code``. Raises IllegalEvent if already asking, or in a session."""
        if self.state is not JoinerState.IDLE:
            raise IllegalEvent(f"this agent is {self.state.name} already")
        if self._failures[code.number] >= MAX_FAILURES:
            reason = f"{MAX_FAILURES} attempts with code {code.number} failed: ask the host for a new code"
            return [Refused(reason)]
        self._code = code
        self.state, self.deadline = JoinerState.CALLING, now + CALL_S
        return [Send(FromAgent(join=JoinSession(number=code.number)))]

    def handle(self, event: Introduction | Tick, now: float) -> list[Command]:
        """What to do about ``event`` at ``now`` (seconds, monotonic). Raises IllegalEvent."""
        if isinstance(event, Tick):
            expired = self.deadline is not None and now >= self.deadline
            return self._break_off("the host did not answer: try again in a moment") if expired else []
        try:
            rule = _JOINER_TABLE[self.state, event.step]
        except KeyError:
            step = step_name(event.step)
            raise IllegalEvent(f"{step} cannot come to a joiner that is {self.state.name}") from None
        return rule(self, event, now)

    def refuse(self, code: str, detail: str) -> list[Command]:
        """The rendezvous answered the join with a Problem. An unknown number reads as wrong words do."""
        return self._fail(NO_SUCH_CODE if code == "not_found" else detail)

    def reset(self) -> None:
        """The session or the connection is over; ready to join another. What failed stays counted."""
        self.state, self.deadline, self._joined, self._confirmations = JoinerState.IDLE, None, None, None

    def _prove(self, event: Introduction, now: float) -> list[Command]:
        if len(event.session_id) != SESSION_ID_BYTES:
            return self._break_off(NO_SUCH_CODE)
        host = fingerprint(event.certificate)
        own = fingerprint(self._party.certificate_der)
        exchange = Exchange(Role.JOINER, self._code.words)
        transcript = Transcript(
            session_id=event.session_id,
            host_name=event.name,
            host_fingerprint=host,
            joiner_name=self._party.name,
            joiner_fingerprint=own,
            rendezvous_fingerprint=self._party.rendezvous_fingerprint,
        )
        try:
            self._confirmations = exchange.agree(event.element, transcript)
        except PakeError:
            return self._break_off(NO_SUCH_CODE)
        self._attempt = event.attempt
        self._joined = Joined(event.session_id, event.name, host)
        self.state, self.deadline = JoinerState.PROVING, now + ATTEMPT_S
        return [
            _introduce(
                event.attempt,
                Introduction.JOINER_PROOF,
                element=exchange.element,
                confirmation=self._confirmations.mine,
                certificate=self._party.certificate_der,
                name=self._party.name,
            )
        ]

    def _believe(self, event: Introduction, now: float) -> list[Command]:
        assert self._confirmations is not None
        assert self._joined is not None
        try:
            self._confirmations.check(event.confirmation)
        except PakeError:
            return self._break_off(NO_SUCH_CODE)
        self.state, self.deadline = JoinerState.JOINED, None
        return [self._joined]

    def _give_up(self, event: Introduction, now: float) -> list[Command]:
        return self._fail(printable(event.detail) or NO_SUCH_CODE)

    def _ignore(self, event: Introduction, now: float) -> list[Command]:
        return []

    def _break_off(self, reason: str) -> list[Command]:
        """End it from this side: the rendezvous ends the attempt, or the membership if that came first."""
        return [Send(FromAgent(leave=Leave())), *self._fail(reason)]

    def _fail(self, reason: str) -> list[Command]:
        self._failures[self._code.number] += 1
        self.reset()
        return [Refused(reason)]


_JoinerRule = Callable[[JoinerIntroduction, Introduction, float], list[Command]]
_JOINER_TABLE: dict[tuple[JoinerState, int], _JoinerRule] = {
    (JoinerState.CALLING, Introduction.HOST_ELEMENT): JoinerIntroduction._prove,
    (JoinerState.CALLING, Introduction.FAILED): JoinerIntroduction._give_up,
    (JoinerState.PROVING, Introduction.HOST_PROOF): JoinerIntroduction._believe,
    (JoinerState.PROVING, Introduction.FAILED): JoinerIntroduction._give_up,
    # What was on its way when its attempt ended:
    (JoinerState.IDLE, Introduction.FAILED): JoinerIntroduction._ignore,
    (JoinerState.JOINED, Introduction.FAILED): JoinerIntroduction._ignore,
}


def _introduce(attempt: int, step: Introduction.Step, **fields: Any) -> Send:
    return Send(FromAgent(introduction=Introduction(attempt=attempt, step=step, **fields)))
