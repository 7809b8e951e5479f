"""What holds a session back: which machine, and why, from its status alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from kafila_agent.view.figures import seconds
from kafila_planner.ring import Path, RingPlan, plan_from_json
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState

SLOW = 1.5  # times the prediction
MUCH_NETWORK = 0.5  # of a token's time

Cause = tuple[str, str]
"""A finding, and the next step ("" if there is none)."""


def causes(session: pb.SessionStatus) -> list[Cause]:
    """What holds the session back, the gravest first; empty if nothing does."""
    match session.state:
        case pb.SessionStatus.FORMING:
            return list(_forming(session))
        case pb.SessionStatus.CONNECTING:
            return list(_connecting(session))
        case pb.SessionStatus.LOADING:
            return list(_loading(session))
        case pb.SessionStatus.SERVING:
            return [*_slow_stages(session), *_edges(session)]
        case pb.SessionStatus.HELD:
            step = "start the agent there, or give the session up with kafila-ctl session leave"
            return [(f"the session waits: {session.reason}", step)]
        case pb.SessionStatus.CLOSED:
            return [(f"the session is over: {session.reason}", "create or join another one")]
    return []


def _forming(session: pb.SessionStatus) -> Iterator[Cause]:
    missing = session.expected_members - len(session.members)
    if missing > 0:
        how = (
            f"they join with {session.code}"
            if session.code
            else "they join with the code that the host read out; kafila-ctl session code makes a new one there"
        )
        yield f"{missing} of {session.expected_members} members are not in yet", how
    for member in session.members:
        if member.state in (MemberState.JOINING, MemberState.PROBING):
            step = f"wait, and if it takes minutes, see the log of its agent ({member.name})"
            yield f"{member.name} still measures itself", step


def _connecting(session: pb.SessionStatus) -> Iterator[Cause]:
    plan = _plan(session)
    standing = {(member.name, edge.peer) for member in session.members for edge in member.edges if edge.path}
    for edge in plan.edges if plan else ():
        if edge.source != edge.target and (edge.source, edge.target) not in standing:
            yield (
                f"no edge from {edge.source} to {edge.target} yet",
                f"kafila-ctl doctor on both; UDP must leave {edge.source} and {edge.target}",
            )


def _loading(session: pb.SessionStatus) -> Iterator[Cause]:
    behind = [m for m in session.members if m.total_bytes and m.loaded_bytes < m.total_bytes]
    if behind:
        last = min(behind, key=lambda member: member.loaded_bytes / member.total_bytes)
        share = last.loaded_bytes / last.total_bytes
        yield (
            f"{last.name} has read {share:.0%} of its blocks, the others more",
            f"the disk of {last.name} is the limit",
        )


def _slow_stages(session: pb.SessionStatus) -> Iterator[Cause]:
    for member in session.members:
        if not (member.HasField("predicted_stage_s") and member.HasField("measured_stage_s")):
            continue
        predicted_s, measured_s = member.predicted_stage_s, member.measured_stage_s
        if measured_s > SLOW * predicted_s:
            yield (
                f"{member.name} takes {seconds(measured_s)} for its blocks, predicted {seconds(predicted_s)}",
                f"look on {member.name} for other programs at work, heat, or a battery that saves power",
            )


def _edges(session: pb.SessionStatus) -> Iterator[Cause]:
    plan = _plan(session)
    predicted = {(edge.source, edge.target): edge.path for edge in plan.edges} if plan else {}
    standing = [
        (member.name, edge.peer, edge.path, edge.rtt_s if edge.HasField("rtt_s") else 0.0)
        for member in session.members
        for edge in member.edges
        if edge.path and (member.name, edge.peer) in predicted
    ]
    for source, target, path, _ in standing:
        if path == Path.RELAYED and predicted[source, target] is Path.DIRECT:
            yield (
                f"{source} and {target} are relayed although a direct path was predicted",
                "look for a firewall that drops UDP between them; a direct path goes on being tried",
            )
    measured = session.measured
    if standing and measured.HasField("network_share") and measured.network_share > MUCH_NETWORK:
        source, target, path, rtt_s = max(standing, key=lambda edge: edge[3])
        yield (
            f"{measured.network_share:.0%} of a token's time is network, most of it between {source} and {target} "
            f"({path}, {seconds(rtt_s)})",
            f"a faster line for {source} or {target}; kafila-ctl plan shows what the session would do without either",
        )


def _plan(session: pb.SessionStatus) -> RingPlan | None:
    plan = plan_from_json(json.loads(session.plan_json)) if session.plan_json else None
    return plan if isinstance(plan, RingPlan) else None
