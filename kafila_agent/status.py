"""The agent's status as a message for ``kafila-ctl``, the metrics and whoever watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafila_agent.machine import Machine
from kafila_agent.session.lifecycle import State
from kafila_proto import VERSION
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState, Progress, RosterEntry

if TYPE_CHECKING:
    from kafila_agent.head.engine import Engine
    from kafila_agent.head.speculation import Outlook
    from kafila_agent.session.entry import Entry
    from kafila_agent.session.membership import Membership

# A member's state says how far the session is, as this member knows it.
_SESSION_STATE = {
    State.JOINING: pb.SessionStatus.FORMING,
    State.PROBING: pb.SessionStatus.FORMING,
    State.WAITING: pb.SessionStatus.FORMING,
    State.CONNECTING: pb.SessionStatus.CONNECTING,
    State.LOADING: pb.SessionStatus.LOADING,
    State.READY: pb.SessionStatus.LOADING,
    State.SERVING: pb.SessionStatus.SERVING,
    State.HELD: pb.SessionStatus.HELD,
    State.LEFT: pb.SessionStatus.CLOSED,
}


def build_status(machine: Machine, entry: Entry, *, api_url: str, metrics_url: str) -> pb.Status:
    """A snapshot. The code shows on the host's own machine, and only while it admits."""
    link = machine.link
    status = pb.Status(
        name=machine.identity.name,
        fingerprint=machine.identity.fingerprint.hex(),
        version=VERSION,
        rendezvous=str(link.address),
        attached=link.state == "attached",
        api_url=api_url,
        metrics_url=metrics_url,
    )
    if entry.membership is not None:
        status.session.CopyFrom(_session(entry.membership))
        if entry.hosting is not None and entry.membership.is_forming:
            status.session.code = entry.hosting.code
            status.session.reason = entry.hosting.notice
    return status


def status_line(status: pb.Status) -> str:
    """Where this agent is, in a line for a supervisor."""
    session = status.session
    attached = "" if status.attached else f"; not attached to {status.rendezvous}"
    if session.state in (pb.SessionStatus.NONE, pb.SessionStatus.CLOSED):
        return f"in no session{attached}"
    if session.state == pb.SessionStatus.FORMING:
        return f"forming: {len(session.members)} of {session.expected_members} members{attached}"
    name = pb.SessionStatus.State.Name(session.state).lower()
    return f"{name} {session.model} with {len(session.members)} members{attached}"


def _session(membership: Membership) -> pb.SessionStatus:
    charter, plan = membership.charter, membership.plan_message
    session = pb.SessionStatus(
        state=_SESSION_STATE[membership.state],
        reason=membership.reason,
        refused=membership.refused,
        model=charter.model.name,
        dtype=charter.model.dtype,
        expected_members=charter.expected_members,
        context_tokens=charter.context_tokens,
        concurrency=charter.concurrency,
        epoch=membership.epoch,
        fleet_json=plan.fleet_json,
        plan_json=plan.plan_json,
    )
    names = {entry.fingerprint: entry.name for entry in charter.roster}
    plan_in_force = membership.plan
    predicted = {s.member: s.predicted_s for s in plan_in_force.stages} if plan_in_force else {}
    seat = membership.seat  # it may be given up meanwhile: metrics are read by another thread
    measured = seat.measured_stages_s if seat else {}
    for entry in charter.roster:
        progress = membership.progress.get(entry.fingerprint, Progress(state=MemberState.JOINING))
        member = _member(entry, progress, names)
        if (seconds := predicted.get(entry.name)) is not None:
            member.predicted_stage_s = seconds
        if entry.name in measured:
            member.measured_stage_s = measured[entry.name]
        session.members.append(member)
    if seat is not None and seat.engine is not None:
        session.measured.CopyFrom(_measured(seat.engine))
    return session


def _member(entry: RosterEntry, progress: Progress, names: dict[bytes, str]) -> pb.MemberStatus:
    member = pb.MemberStatus(
        name=entry.name,
        state=progress.state,
        detail=progress.detail,
        loaded_bytes=progress.loaded_bytes,
        total_bytes=progress.total_bytes,
    )
    for edge in progress.edges:
        named = member.edges.add(peer=names.get(edge.peer, "?"), path=edge.path)
        if edge.rtt_s:
            named.rtt_s = edge.rtt_s
    return member


def _measured(engine: Engine) -> pb.Measured:
    measured = engine.measured()
    message = pb.Measured(tokens=measured.tokens, guessing=_guessing(engine.outlook()))
    for field in ("tokens_per_s", "ttft_s", "network_share"):
        if (value := getattr(measured, field)) is not None:
            setattr(message, field, value)
    return message


def _guessing(outlook: Outlook) -> pb.Guessing:
    message = pb.Guessing(rows=outlook.rows, reason=outlook.reason, right_share=outlook.rate)
    for field in ("circuit_s", "interval_s", "gain"):
        if (value := getattr(outlook, field)) is not None:
            setattr(message, field, value)
    return message
