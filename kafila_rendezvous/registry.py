"""Everything the rendezvous knows: who is attached, which sessions there are, which numbers lead to them.

A decision core: what ``receive``, ``detach``, ``planned``, ``plan_failed`` and ``tick`` return is for the
shell (service.py) to carry out. What a session or the limits refuse goes back to its sender as a Problem.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from kafila_proto.names import printable
from kafila_proto.pake import SESSION_ID_BYTES
from kafila_proto.rendezvous_pb2 import (
    Admit,
    CreateSession,
    EdgeLost,
    FromAgent,
    Introduction,
    JoinSession,
    Leave,
    Problem,
    Resume,
    SessionCreated,
    ToAgent,
)
from kafila_proto.session_code import make_number
from kafila_rendezvous.introduction import Introductions
from kafila_rendezvous.limits import Limits, RecentCounts
from kafila_rendezvous.outcome import Command, Forsaken, RequestRefused, Send, SessionOver
from kafila_rendezvous.presence import GRACE_S, Attached, Presence
from kafila_rendezvous.session import NOT_AWAITED, Session
from kafila_rendezvous.session_states import SessionState

_NO_SUCH_NUMBER = "no session admits this number"


@dataclass(slots=True)
class Entry:
    """A session with what surrounds it: its introductions, its number and who asked for it."""

    session: Session
    introductions: Introductions
    source: str
    number: str | None = None
    number_expires_at: float = 0.0


@dataclass(slots=True)
class Totals:
    """What has happened since the start, for the metrics."""

    sessions: int = 0
    admitted: int = 0
    introductions_failed: int = 0  # of sessions that are over; see Registry.introductions_failed
    refusals: Counter[str] = field(default_factory=Counter)


class Registry:
    """All sessions of one rendezvous. Agents are known by their certificates' fingerprints (32 bytes)."""

    def __init__(self, limits: Limits | None = None, pick_number: Callable[[], str] = make_number) -> None:
        self.limits = limits or Limits()
        self.presence = Presence(self.limits)
        self.attached = self.presence.agents
        self.sessions: dict[bytes, Entry] = {}
        self.totals = Totals()
        self._numbers: dict[str, bytes] = {}
        self._pick_number = pick_number
        self._attempts = itertools.count(1)
        self._wrong_numbers = RecentCounts(self.limits.wrong_numbers_window_s)

    @property
    def introductions_failed(self) -> int:
        """How many introductions have ended without a member."""
        open_sessions = sum(entry.introductions.failed for entry in list(self.sessions.values()))
        return self.totals.introductions_failed + open_sessions

    def attach(self, agent: bytes, name: str, source: str, association: bytes, now: float) -> list[Command]:
        """An agent proved who it is: it goes on with its ``association``, or is here anew.

        Raises RequestRefused if it, or too many of its network, are here.
        """
        self.presence.check(agent, source, association)
        if self.presence.go_on(agent, source, association):
            return []
        commands = self.forsake(agent, now) if agent in self.attached else []
        self.attached[agent] = Attached(name, source, association)
        return commands

    def detach(self, agent: bytes, now: float) -> list[Command]:
        """An agent's stream ended. A member at work may soon be back; everybody else is lost."""
        peer = self.attached[agent]
        is_at_work = peer.session_id is not None and self.sessions[peer.session_id].session.is_at_work
        if not is_at_work or peer.is_missed:
            return self.forsake(agent, now)
        peer.grace_until = now + GRACE_S
        return []

    def forsake(self, agent: bytes, now: float) -> list[Command]:
        """An agent is lost: to its session too, which waits for it once it is planned."""
        return self._settle(self._lose(agent, now))

    def receive(self, agent: bytes, message: FromAgent, now: float) -> list[Command]:
        """What to do about an agent's message."""
        request = message.WhichOneof("message") or "nothing"
        self.attached[agent].is_missed = False
        try:
            rule = _RULES.get(request)
            if rule is None:
                raise RequestRefused("invalid", f"{request} cannot come here")
            if (size := message.ByteSize()) > (limit := _LARGEST_BYTES.get(request, 16 << 10)):
                raise RequestRefused("limit", f"{request} of {size} bytes, at most {limit}")
            return self._settle(rule(self, agent, getattr(message, request), now))
        except RequestRefused as refusal:
            self.totals.refusals[refusal.code] += 1
            problem = Problem(code=refusal.code, detail=refusal.detail, request=request)
            return [Send(agent, ToAgent(problem=problem))]

    def planned(self, session_id: bytes, epoch: int, fleet_json: str, plan_json: str) -> list[Command]:
        """The planner answered a PlanFleet command."""
        entry = self.sessions.get(session_id)
        return entry.session.receive_planned(epoch, fleet_json, plan_json) if entry else []

    def plan_failed(self, session_id: bytes, epoch: int, reason: str) -> list[Command]:
        """The planner could not take the fleet of a PlanFleet command."""
        entry = self.sessions.get(session_id)
        if entry is None or entry.session.epoch != epoch:
            return []
        return self._settle(entry.session.close(f"the session cannot be planned: {reason}"))

    def tick(self, now: float) -> list[Command]:
        """Retire what has lasted too long: numbers, silent attempts, waits for a member. Call every second or so."""
        commands = [
            command for agent in self.presence.out_of_grace(now) for command in self._lose(agent, now)
        ]
        for entry in self.sessions.values():
            if entry.number is not None and now >= entry.number_expires_at:
                commands += self._expire_number(entry)
            commands += [*entry.introductions.tick(now), *entry.session.tick(now)]
            self._forget_callers(entry.session.session_id)
        return self._settle(commands)

    def close_all(self, reason: str) -> list[Command]:
        """End every session, as when the rendezvous stops."""
        entries = list(self.sessions.values())
        return [c for entry in entries for c in self._settle(entry.session.close(reason))]

    def _create(self, agent: bytes, request: CreateSession, now: float) -> list[Command]:
        entry = self.sessions.get(request.session_id)
        if entry is None:
            entry = self._open_session(agent, request)
        elif entry.session.host != agent:
            raise RequestRefused("forbidden", "a session of another host has this id")
        elif entry.session.is_full or entry.session.state is not SessionState.FORMING:
            raise RequestRefused("full", "this session admits nobody any more")
        number = self._give_number(entry, now)
        created = SessionCreated(number=number, valid_s=int(self.limits.number_valid_s))
        return [Send(agent, ToAgent(created=created))]

    def _open_session(self, agent: bytes, request: CreateSession) -> Entry:
        host = self.attached[agent]
        self._require_free(host)
        if len(request.session_id) != SESSION_ID_BYTES:
            raise RequestRefused("invalid", f"a session id is {SESSION_ID_BYTES} bytes")
        if not 1 <= request.expected_members <= self.limits.members:
            raise RequestRefused(
                "invalid", f"a session has 1 to {self.limits.members} members, not {request.expected_members}"
            )
        if sum(e.source == host.source for e in self.sessions.values()) >= self.limits.sessions_per_source:
            raise RequestRefused(
                "limit",
                f"{self.limits.sessions_per_source} sessions from {host.source} are open already: leave one",
            )
        session = Session(request.session_id, request.expected_members, agent, host.name)
        entry = Entry(session, Introductions(agent, self._attempts.__next__), host.source)
        self.sessions[request.session_id] = entry
        host.session_id = request.session_id
        self.totals.sessions += 1
        return entry

    def _join(self, agent: bytes, request: JoinSession, now: float) -> list[Command]:
        joiner = self.attached[agent]
        self._require_free(joiner)
        if self._wrong_numbers.count(joiner.source, now) >= self.limits.wrong_numbers_per_source:
            minutes = round(self.limits.wrong_numbers_window_s / 60)
            raise RequestRefused(
                "limit", f"too many wrong codes from {joiner.source}: wait {minutes} minutes"
            )
        session_id = self._numbers.get(request.number)
        if session_id is None:
            self._wrong_numbers.add(joiner.source, now)
            raise RequestRefused("not_found", _NO_SUCH_NUMBER)
        entry = self.sessions[session_id]
        self._require_seat(entry)
        joiner.calling = session_id
        return entry.introductions.call(agent, now)

    def _introduce(self, agent: bytes, message: Introduction, now: float) -> list[Command]:
        peer = self.attached[agent]
        session_id = peer.calling or peer.session_id
        if session_id is None:
            return []  # its session, or its turn, ended while this was on its way
        entry = self.sessions[session_id]
        if message.step == Introduction.FAILED and entry.introductions.is_confirmed(agent):
            entry.session.forget(agent)
        commands = entry.introductions.carry(agent, message, now)
        self._forget_callers(session_id)
        return commands

    def _admit(self, agent: bytes, request: Admit, now: float) -> list[Command]:
        entry = self._entry_of(agent)
        if entry.session.host != agent:
            raise RequestRefused("forbidden", "only the host of a session may admit")
        self._require_seat(entry)
        joiner = entry.introductions.admit(request.attempt)
        self.totals.admitted += 1
        peer = self.attached[joiner]
        peer.calling, peer.session_id = None, entry.session.session_id
        commands = entry.session.admit(joiner, peer.name)
        full = entry.session.is_full
        return commands + (self._turn_all_away(entry) if full else entry.introductions.open_next(now))

    def _leave(self, agent: bytes, request: Leave, now: float) -> list[Command]:
        if request.returns:
            return self._part(agent, printable(request.reason), now, returns=True)
        reason = f"left the session: {printable(request.reason)}" if request.reason else "left the session"
        return self._part(agent, reason, now)

    def _resume(self, agent: bytes, request: Resume, _now: float) -> list[Command]:
        peer = self.attached[agent]
        self._require_free(peer)
        entry = self.sessions.get(request.session_id)
        if entry is None:
            raise RequestRefused("not_found", NOT_AWAITED)
        commands = entry.session.resume(agent, peer.name)
        peer.session_id = request.session_id
        return commands

    def _edge_lost(self, agent: bytes, lost: EdgeLost, now: float) -> list[Command]:
        session, peer = self._entry_of(agent).session, self.attached.get(lost.peer)
        is_of_it = peer is not None and lost.peer != agent and peer.session_id == session.session_id
        if peer is None or not is_of_it or not session.is_at_work or lost.epoch != session.epoch:
            return []
        if peer.grace_until is not None:
            return self._lose(lost.peer, now)
        peer.is_missed = True
        return []

    def _stop_admitting(self, agent: bytes, _request: object, now: float) -> list[Command]:
        entry = self._entry_of(agent)
        if entry.session.host != agent:
            raise RequestRefused("forbidden", "only the host of a session may stop admitting")
        if entry.session.is_full:
            return []  # its number stays known for a while, so that one friend too many is told why
        self._retire_number(entry)
        return self._turn_all_away(entry)

    def _part(self, agent: bytes, reason: str, now: float, *, returns: bool = False) -> list[Command]:
        """An agent leaves what it is in: as a member its session, perhaps to return, as a caller its turn."""
        peer = self.attached[agent]
        if peer.calling is not None:
            entry, peer.calling = self.sessions[peer.calling], None
            if entry.introductions.is_confirmed(agent):
                entry.session.forget(agent)
            return entry.introductions.remove(agent, now)
        if peer.session_id is None:
            return []
        entry, peer.session_id = self.sessions[peer.session_id], None
        if entry.session.is_full:
            self._retire_number(entry)  # its code is used up, whoever leaves afterwards
        return entry.session.lose(agent, reason, now) if returns else entry.session.remove(agent, reason)

    def _lose(self, agent: bytes, now: float) -> list[Command]:
        commands = self._part(agent, "lost its connection to the rendezvous", now, returns=True)
        del self.attached[agent]
        return [*commands, Forsaken(agent)]

    def _settle(self, commands: list[Command]) -> list[Command]:
        """Forget the sessions that ``commands`` end, and tell who was waiting at their doors."""
        notices: list[Command] = []
        for over in [command for command in commands if isinstance(command, SessionOver)]:
            entry = self.sessions.pop(over.session_id)
            self._retire_number(entry)
            self.totals.introductions_failed += entry.introductions.failed
            for agent, peer in self.attached.items():
                if peer.session_id == over.session_id:
                    peer.session_id = None
                if peer.calling == over.session_id:
                    peer.calling = None
                    notices.append(_problem(agent, "not_found", _NO_SUCH_NUMBER))
        return [*commands, *notices]

    def _turn_all_away(self, entry: Entry) -> list[Command]:
        """Nobody more is introduced: those who have not had their turn are told."""
        full = entry.session.is_full
        code, detail = ("full", _full(entry.session)) if full else ("not_found", _NO_SUCH_NUMBER)
        waiting = entry.introductions.turn_all_away()
        for agent in waiting:
            self.attached[agent].calling = None
        return [_problem(agent, code, detail) for agent in waiting]

    def _forget_callers(self, session_id: bytes) -> None:
        """Whose attempt is over may call again."""
        joiners = self.sessions[session_id].introductions.joiners
        for agent, peer in self.attached.items():
            if peer.calling == session_id and agent not in joiners:
                peer.calling = None

    def _give_number(self, entry: Entry, now: float) -> str:
        self._retire_number(entry)
        number = next(n for n in iter(self._pick_number, None) if n not in self._numbers)
        self._numbers[number] = entry.session.session_id
        entry.number, entry.number_expires_at = number, now + self.limits.number_valid_s
        return number

    def _retire_number(self, entry: Entry) -> None:
        if entry.number is not None:
            del self._numbers[entry.number]
            entry.number = None

    def _expire_number(self, entry: Entry) -> list[Command]:
        self._retire_number(entry)
        if entry.session.is_full:
            return []
        minutes = round(self.limits.number_valid_s / 60)
        detail = f"the code is older than {minutes} minutes and admits nobody any more: make a new one"
        return [_problem(entry.session.host, "expired", detail, "create")]

    def _entry_of(self, agent: bytes) -> Entry:
        session_id = self.attached[agent].session_id
        if session_id is None:
            raise RequestRefused("not_found", "this agent is in no session: it may have ended just now")
        return self.sessions[session_id]

    def _require_free(self, peer: Attached) -> None:
        if peer.session_id is not None or peer.calling is not None:
            raise RequestRefused("forbidden", f"{peer.name} is in a session already: leave it first")

    def _require_seat(self, entry: Entry) -> None:
        if entry.session.is_full or entry.session.state is not SessionState.FORMING:
            raise RequestRefused("full", _full(entry.session))


def _full(session: Session) -> str:
    return (
        f"the session has its {session.expected_members} members already: ask its host to create one for more"
    )


def _problem(agent: bytes, code: str, detail: str, request: str = "join") -> Send:
    return Send(agent, ToAgent(problem=Problem(code=code, detail=detail, request=request)))


def _in_session(method: Callable[[Session, bytes, Any], list[Command]]) -> Rule:
    """A rule that is the session's own."""

    def rule(registry: Registry, agent: bytes, message: Message, now: float) -> list[Command]:
        return method(registry._entry_of(agent).session, agent, message)

    return rule


# What is kept, or passed on to many, is small; other requests are smaller still.
_LARGEST_BYTES = {"charter": 256 << 10, "report": 64 << 10, "plan": 1 << 20}

Rule = Callable[[Registry, bytes, Any, float], list[Command]]
_RULES: dict[str, Rule] = {
    "create": Registry._create,
    "join": Registry._join,
    "introduction": Registry._introduce,
    "admit": Registry._admit,
    "stop_admitting": Registry._stop_admitting,
    "leave": Registry._leave,
    "resume": Registry._resume,
    "edge_lost": Registry._edge_lost,
    "charter": _in_session(Session.receive_charter),
    "report": _in_session(Session.receive_report),
    "plan": _in_session(Session.receive_plan),
    "circuit": _in_session(Session.receive_circuit_request),
    "progress": _in_session(Session.receive_progress),
}
