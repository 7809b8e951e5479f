"""One session, as the rendezvous sees it: who is in it and how far it has come. A decision core.

Who is lost while the session forms drops out, and the host writes a charter without it. Later there is no spare to
take its blocks, and nobody else is admitted: the session waits for that very member, known by its key, and closes
if it leaves or does not come back. What cannot come in a state is refused to whoever sent it.
Nothing here is trusted by members: they check the signatures themselves, and the checks below only spare them
what they would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from kafila_planner.facts import FleetError
from kafila_proto.fleet import check_charter_facts, check_member_json, parse_json
from kafila_proto.names import printable
from kafila_proto.rendezvous_pb2 import (
    HELD,
    JOINING,
    LEFT,
    LOADING,
    READY,
    SERVING,
    Charter,
    CircuitRequest,
    Closed,
    Hold,
    MemberUpdate,
    Plan,
    Progress,
    Report,
    ReportsComplete,
    Serve,
    Signed,
    ToAgent,
)
from kafila_proto.signed import Label, SignatureError, verify
from kafila_rendezvous.outcome import (
    Command,
    GrantCircuit,
    PlanFleet,
    ReleaseCircuits,
    RequestRefused,
    Send,
    SessionOver,
)
from kafila_rendezvous.session_states import TRANSITIONS, SessionEvent, SessionState

_M = TypeVar("_M", bound=Message)


HOLD_S = 600.0  # how long a session waits for a member that is away
MAX_LISTED = 64  # edges or candidates of one member
NOT_AWAITED = "no session waits for this agent here: it has ended, or the rendezvous was restarted"
_PLANNING = (SessionState.FORMING, SessionState.GATHERING)
_IN_PLAN = (SessionState.CONNECTING, SessionState.LOADING, SessionState.SERVING)


@dataclass(slots=True)
class Member:
    """An admitted machine, what it reported and how far it has come."""

    name: str
    signed_report: Signed | None = None
    report: Report | None = None
    progress: Progress | None = None


class Session:
    """One session. Members are known by fingerprint; every method returns what the shell is to do."""

    def __init__(self, session_id: bytes, expected_members: int, host: bytes, host_name: str) -> None:
        self.session_id = session_id
        self.expected_members = expected_members
        self.host = host
        self.members: dict[bytes, Member] = {host: Member(host_name)}
        self.state = SessionState.FORMING
        self.epoch = 0
        self.absent: dict[bytes, float] = {}  # until when each is waited for
        self._asked = 0  # the epoch that reports must be of: that of the last Hold
        self._charter = Charter()
        self._departed: set[bytes] = set()

    @property
    def is_full(self) -> bool:
        """Whether every expected member has been admitted."""
        return len(self.members) >= self.expected_members

    @property
    def is_at_work(self) -> bool:
        """Whether the ring's edges stand: members then notice by themselves who is gone."""
        return self.state in (SessionState.LOADING, SessionState.SERVING)

    def admit(self, joiner: bytes, name: str) -> list[Command]:
        """The host has admitted a joiner: it learns how far the others are."""
        self._advance(SessionEvent.ADMIT)
        if self.is_full:
            raise RequestRefused("full", f"the session has its {self.expected_members} members already")
        updates = self._updates_for(joiner)
        self.members[joiner] = Member(name)
        self._departed.discard(joiner)
        return updates

    def receive_charter(self, sender: bytes, signed: Signed) -> list[Command]:
        """The host says anew what the session is and who is in it."""
        self._require_host(sender, "write its charter")
        charter = _open(signed, Label.CHARTER, sender, Charter())
        if any(entry.fingerprint in self._departed for entry in charter.roster):
            return []  # it crossed the news of who is gone; one without them follows
        self._check_charter(charter)
        self._advance(SessionEvent.CHARTER)
        self._charter = charter
        return [*self._tell_all(ToAgent(charter=signed)), *self._plan_when_complete()]

    def receive_report(self, sender: bytes, signed: Signed) -> list[Command]:
        """A member says what it measured, or why it cannot take part, which ends the session."""
        report = _open(signed, Label.REPORT, sender, Report())
        member = self.members[sender]
        _check_few("candidates", len(report.candidates))
        if report.session_id != self.session_id:
            raise RequestRefused("invalid", "the report is of another session")
        if report.epoch < self._asked or self.state is SessionState.HELD:
            return []  # it crossed the news that someone is away; another one follows
        if report.problem:
            self._advance(SessionEvent.REPORT)
            return self.close(f"{member.name} cannot take part: {report.problem}")
        try:
            check_member_json(report.member_json, member.name)
        except FleetError as error:
            raise RequestRefused("invalid", str(error)) from error
        self._advance(SessionEvent.REPORT)
        member.signed_report, member.report = signed, report
        return self._plan_when_complete()

    def receive_planned(self, epoch: int, fleet_json: str, plan_json: str) -> list[Command]:
        """The planner has answered; an answer from reports that have changed since is dropped."""
        if epoch != self.epoch or self.state not in _PLANNING:
            return []
        self._advance(SessionEvent.PLANNED)
        roster = [self.members[entry.fingerprint] for entry in self._charter.roster]
        reports = [member.signed_report for member in roster if member.signed_report is not None]
        complete = ReportsComplete(epoch=epoch, reports=reports, fleet_json=fleet_json, plan_json=plan_json)
        return [Send(self.host, ToAgent(reports=complete))]

    def receive_plan(self, sender: bytes, signed: Signed) -> list[Command]:
        """The host's countersigned plan goes to everyone; a refusal ends the session."""
        self._require_host(sender, "sign its plan")
        plan = _open(signed, Label.PLAN, sender, Plan())
        if plan.session_id == self.session_id and self._is_overtaken(plan.epoch):
            return []
        if plan.session_id != self.session_id or not self.epoch or plan.epoch != self.epoch:
            raise RequestRefused(
                "invalid", f"a plan of epoch {plan.epoch}, epoch {self.epoch} is being planned"
            )
        reason = _refusal_reason(plan.plan_json)
        self._advance(SessionEvent.COUNTERSIGNED)
        told = self._tell_all(ToAgent(plan=signed))
        return told if reason is None else [*told, *self.close(reason)]

    def receive_circuit_request(self, sender: bytes, request: CircuitRequest) -> list[Command]:
        """Two members of the plan in force get a circuit."""
        if request.epoch != self.epoch:
            raise RequestRefused(
                "invalid", f"a circuit of epoch {request.epoch}, epoch {self.epoch} is in force"
            )
        if request.peer not in self.members or request.peer == sender:
            raise RequestRefused("invalid", "a circuit to someone who is not another member of this session")
        self._advance(SessionEvent.CIRCUIT)
        return [GrantCircuit(self.session_id, self.epoch, sender, request.peer)]

    def receive_progress(self, sender: bytes, progress: Progress) -> list[Command]:
        """The others learn how far a member is; when all are, it moves on. Stale epochs are dropped."""
        if not JOINING <= progress.state <= SERVING and progress.state != HELD:
            raise RequestRefused("invalid", "progress in no state of a member: to leave, send Leave")
        if self.state is SessionState.FORMING and progress.epoch:
            return []
        if self.state in _IN_PLAN and progress.epoch != self.epoch:
            return []
        _check_few("edges", len(progress.edges))
        _check_few("candidates", len(progress.candidates))
        self._advance(SessionEvent.PROGRESS)
        self.members[sender].progress = progress
        commands: list[Command] = [self._update(sender, other) for other in self._present if other != sender]
        if self.state is SessionState.CONNECTING and self._all_reached(LOADING):
            self._advance(SessionEvent.ALL_CONNECTED)
        if self.state is SessionState.LOADING and self._all_reached(READY):
            self._advance(SessionEvent.ALL_READY)
            commands += self._tell_all(ToAgent(serve=Serve(epoch=self.epoch)))
        return commands

    def remove(self, leaver: bytes, reason: str) -> list[Command]:
        """A member left: the others are told its name and ``reason``.

        While the session forms that is all, and the epoch rises: what is being planned is of another roster.
        Later, or without its host, the session is over.
        """
        member = self.members.pop(leaver)
        self.absent.pop(leaver, None)
        if leaver == self.host or self.state is not SessionState.FORMING:
            role = ", the host," if leaver == self.host else ""
            return self.close(f"{member.name}{role} {reason}")
        self._advance(SessionEvent.DEPARTURE)
        self.epoch += 1
        self._departed.add(leaver)
        return self._tell_gone(leaver, member.name, reason)

    def lose(self, member: bytes, reason: str, now: float) -> list[Command]:
        """A member is lost, or will be back. Before the plan it is gone; later the others wait for it."""
        if self.state is SessionState.FORMING:
            return self.remove(member, reason)
        self._advance(SessionEvent.ABSENCE)
        self.epoch += 1
        self.absent[member] = now + HOLD_S
        for other in self.members.values():
            other.progress = None
        told = self._tell_gone(
            member, self.members[member].name, reason
        )  # once they know nothing of anybody any more
        return [ReleaseCircuits(self.session_id), *self._tell_hold(), *told]

    def resume(self, member: bytes, name: str) -> list[Command]:
        """A member that was away is back: once all are, everyone reports anew."""
        if member not in self.absent:
            raise RequestRefused("not_found", NOT_AWAITED)
        if name != (known := self.members[member].name):
            raise RequestRefused("forbidden", f"in this session the agent is {known}, not {name}")
        self._advance(SessionEvent.RETURN)
        del self.absent[member]
        updates = self._updates_for(member)
        if not self.absent:
            self._advance(SessionEvent.ALL_BACK)
            self._asked = self.epoch
            for each in self.members.values():
                each.signed_report = each.report = None
        return [*updates, *self._tell_hold()]

    def tick(self, now: float) -> list[Command]:
        """Close the session if a member has been away for too long."""
        late = [self.members[member].name for member, until in self.absent.items() if now >= until]
        if not late:
            return []
        return self.close(f"{' and '.join(late)} did not come back within {HOLD_S / 60:.0f} minutes")

    def forget(self, joiner: bytes) -> None:
        """Someone whom the host has accepted went away before it was admitted: the host knows, or will at once."""
        self._departed.add(joiner)

    def close(self, reason: str) -> list[Command]:
        """End the session for everyone in it. The reason may be a member's own words."""
        reason = printable(reason)
        self._advance(SessionEvent.END)
        return [*self._tell_all(ToAgent(closed=Closed(reason=reason))), SessionOver(self.session_id, reason)]

    def _advance(self, event: SessionEvent) -> None:
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise RequestRefused(
                "invalid", f"{event.value} cannot come while the session is {self.state.value}"
            )
        self.state = following

    def _require_host(self, sender: bytes, what: str) -> None:
        if sender != self.host:
            raise RequestRefused("forbidden", f"only the host of a session may {what}")

    def _check_charter(self, charter: Charter) -> None:
        roster = [entry.fingerprint for entry in charter.roster]
        if charter.session_id != self.session_id or charter.expected_members != self.expected_members:
            raise RequestRefused("invalid", "the charter is of another session")
        if charter.revision <= self._charter.revision:
            raise RequestRefused("invalid", f"charter revision {charter.revision} is not new")
        if not roster or roster[0] != self.host or len(set(roster)) < len(roster):
            raise RequestRefused(
                "invalid", "the charter's roster must start with the host and name nobody twice"
            )
        for entry in charter.roster:
            member = self.members.get(entry.fingerprint)
            if member is None or member.name != entry.name:
                raise RequestRefused("invalid", f"{entry.name!r} of the roster was not admitted, or is gone")
        try:
            check_charter_facts(charter)
        except FleetError as error:
            raise RequestRefused("invalid", str(error)) from error

    def _is_overtaken(self, epoch: int) -> bool:
        """Whether a plan of ``epoch`` was on its way when someone left."""
        return self.state not in _IN_PLAN and 0 < epoch < self.epoch

    def _plan_when_complete(self) -> list[Command]:
        if any(entry.fingerprint not in self.members for entry in self._charter.roster):
            return []  # the host is about to write a charter without them
        roster = [self.members[entry.fingerprint] for entry in self._charter.roster]
        reports = tuple(member.report for member in roster if member.report is not None)
        if len(reports) < self.expected_members:
            return []
        self.epoch += 1
        return [PlanFleet(self.session_id, self.epoch, self._charter, reports)]

    def _all_reached(self, state: int) -> bool:
        return all(m.progress is not None and m.progress.state >= state for m in self.members.values())

    def _update(self, about: bytes, to: bytes) -> Send:
        member = self.members[about]
        return Send(
            to, ToAgent(member=MemberUpdate(member=about, name=member.name, progress=member.progress))
        )

    def _updates_for(self, newcomer: bytes) -> list[Command]:
        """How far the others are."""
        others = ((m, state) for m, state in self.members.items() if m != newcomer)
        return [self._update(member, newcomer) for member, state in others if state.progress]

    @property
    def _present(self) -> list[bytes]:
        return [member for member in self.members if member not in self.absent]

    def _tell_all(self, message: ToAgent) -> list[Command]:
        return [Send(member, message) for member in self._present]

    def _tell_gone(self, member: bytes, name: str, reason: str) -> list[Command]:
        gone = MemberUpdate(member=member, name=name, progress=Progress(state=LEFT, detail=reason))
        return self._tell_all(ToAgent(member=gone))

    def _tell_hold(self) -> list[Command]:
        return self._tell_all(ToAgent(hold=Hold(epoch=self.epoch, absent=list(self.absent))))


def _check_few(what: str, count: int) -> None:
    """Some bytes on the wire each, and much more in memory, for every member that is told."""
    if count > MAX_LISTED:
        raise RequestRefused("limit", f"{count} {what}, at most {MAX_LISTED}")


def _open(signed: Signed, label: Label, author: bytes, message: _M) -> _M:
    try:
        message.ParseFromString(verify(signed, label, author))
    except (SignatureError, DecodeError) as error:
        raise RequestRefused("invalid", str(error)) from error
    return message


def _refusal_reason(plan_json: str) -> str | None:
    """Why the planner refused; None for a plan."""
    try:
        plan = parse_json(plan_json)
        return str(plan["reason"]) if "refused" in plan else None
    except (ValueError, KeyError, TypeError) as error:
        raise RequestRefused("invalid", f"the plan is not one: {error}") from error
