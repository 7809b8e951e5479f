"""What the host of a session does beside being a member: admits by the code, charters, countersigns the plan."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from kafila_agent.control.charter import countersign, make_charter
from kafila_agent.control.introduction import (
    Admitted,
    AttemptFailed,
    Command,
    HostIntroduction,
    IllegalEvent,
    Party,
    Send,
    Stopped,
    Tick,
    Withdrawn,
)
from kafila_agent.machine import Machine
from kafila_proto.names import session_label
from kafila_proto.rendezvous_pb2 import (
    Charter,
    CreateSession,
    FromAgent,
    Introduction,
    ModelReference,
    ReportsComplete,
)
from kafila_proto.session_code import SessionCode, check_number, make_words

log = structlog.get_logger()

CODE_VALID_S = (
    3660.0  # a little longer than the rendezvous's hour, so that it says so first where it is honest
)


@dataclass(frozen=True)
class SessionTerms:
    """What the host asks for."""

    model: ModelReference
    expected_members: int
    context_tokens: int
    concurrency: int
    objective: str
    division: str  # empty: the planner's
    draft: ModelReference | None = None


class Hosting:
    """One session's host. ``code`` is what is read out to friends; empty once nobody is admitted any more."""

    def __init__(
        self, machine: Machine, session_id: bytes, terms: SessionTerms, rendezvous_fingerprint: bytes
    ):
        self.code = ""
        self.notice = ""  # what the host should know about admissions
        self._machine = machine
        self._session_id = session_id
        self._terms = terms
        self._revision = 0
        self._epoch = 0  # of the last plan that was signed
        self._words = make_words()
        self._awaits_number = False
        self._expiry: asyncio.TimerHandle | None = None
        self._charter: Charter | None = None
        identity = machine.identity
        self._introduction = HostIntroduction(
            Party(identity.name, identity.certificate_der, rendezvous_fingerprint),
            session_id,
            self._words,
            terms.expected_members,
        )
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def restored(
        cls, machine: Machine, charter: Charter, epoch: int, rendezvous_fingerprint: bytes
    ) -> Hosting:
        """The host of a session whose plan ``epoch`` was signed before a restart: nobody more is admitted."""
        terms = SessionTerms(
            charter.model,
            charter.expected_members,
            charter.context_tokens,
            charter.concurrency,
            charter.objective,
            charter.division,
            charter.draft if charter.HasField("draft") else None,
        )
        hosting = cls(machine, charter.session_id, terms, rendezvous_fingerprint)
        hosting._introduction.roster = {entry.name: entry.fingerprint for entry in charter.roster}
        hosting._introduction.renew(hosting._words)
        hosting._charter, hosting._revision, hosting._epoch = charter, charter.revision, epoch
        return hosting

    def open(self) -> None:
        """Ask the rendezvous for a number."""
        create = CreateSession(session_id=self._session_id, expected_members=self._terms.expected_members)
        self._awaits_number = True
        self._machine.post(FromAgent(create=create))

    def opened(self, number: str) -> None:
        """The rendezvous gave the session its number: the code is complete, and the host the first of the roster.

        Raises SessionCodeError if it is none; one that was not asked for makes no code.
        """
        if self._awaits_number and not self._introduction.is_full:
            self.code = str(SessionCode(check_number(number), self._words))
            self._expire_later()
        self._awaits_number = False
        if self._charter is None:
            self._write_charter()

    @property
    def is_full(self) -> bool:
        """Whether everyone who is expected is in."""
        return self._introduction.is_full

    def renew(self) -> None:
        """Make a new code in place of the old one, which admits nobody from now on; whoever is in stays in."""
        self._words = make_words()
        self.code, self.notice = "", ""
        self._obey(self._introduction.renew(self._words))
        self.open()

    def depart(self, member: bytes) -> None:
        """A member left before there was a plan: the next charter is without it."""
        name = self._introduction.depart(member)
        if name is not None:
            self._without(name)

    def introduce(self, event: Introduction | Tick) -> None:
        """Somebody knocks, proves, or fails to."""
        try:
            commands = self._introduction.handle(event, time.monotonic())
        except IllegalEvent as error:
            log.warning("introduction out of turn", reason=str(error))
            return
        self._obey(commands)

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(message):
                    self._machine.post(message)
                case Admitted(name, _):
                    log.info("admitted", session=session_label(self._session_id), peer=name)
                    self._write_charter()
                case Withdrawn(name):
                    self._without(name)
                case AttemptFailed(failures):
                    self.notice = f"{failures} failed attempt{'s' * (failures > 1)} to join with this code"
                case Stopped(reason):
                    self.code = ""
                    self.notice = "" if reason == "everyone is here" else f"nobody is admitted: {reason}"
        self._set_timer()
        self._machine.changed()

    def countersign(self, reports: ReportsComplete) -> None:
        """Recompute the plan from the members' own reports and sign it. Raises StatementError."""
        assert self._charter is not None
        signed = countersign(reports, self._charter, self._machine.identity, known_epoch=self._epoch)
        self._epoch = reports.epoch
        self._machine.post(FromAgent(plan=signed))

    def expire(self, notice: str) -> None:
        """The code's number leads nowhere any more."""
        self.code, self.notice = "", f"{notice}, with `kafila-ctl session code`"

    def _expire_later(self) -> None:
        """By our own clock: a rendezvous may go on leading people here for ever."""
        if self._expiry is not None:
            self._expiry.cancel()
        reason = f"the code is older than {CODE_VALID_S / 60:.0f} minutes; `kafila-ctl session code` makes a new one"
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(CODE_VALID_S, lambda: self._obey(self._introduction.stop(reason)))

    def close(self) -> None:
        """Nobody is admitted any more."""
        self.code = ""
        for timer in (self._timer, self._expiry):
            if timer is not None:
                timer.cancel()

    def _without(self, name: str) -> None:
        log.info("gone before the plan", session=session_label(self._session_id), peer=name)
        self.notice = f"{name} is gone"
        if not self.code:
            self.notice += "; `kafila-ctl session code` makes a code for the free place"
        self._write_charter()
        self._machine.changed()

    def _write_charter(self) -> None:
        self._revision += 1
        signed = make_charter(
            self._machine.identity,
            session_id=self._session_id,
            revision=self._revision,
            expected_members=self._terms.expected_members,
            context_tokens=self._terms.context_tokens,
            concurrency=self._terms.concurrency,
            model=self._terms.model,
            roster=list(self._introduction.roster.items()),
            objective=self._terms.objective,
            division=self._terms.division,
            draft=self._terms.draft,
        )
        self._charter = Charter.FromString(signed.payload)
        self._machine.post(FromAgent(charter=signed))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._introduction.deadline is not None:
            delay_s = max(0.0, self._introduction.deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.introduce, Tick())
