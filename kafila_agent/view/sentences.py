"""A session's status in sentences: the ring, its paths, what was predicted of it, how far it guesses ahead."""

from __future__ import annotations

import json
from typing import Any

from kafila_agent.view.figures import seconds
from kafila_planner.facts import parse_fleet, parse_member
from kafila_planner.nat import advise_path, describe_nat, judge_path
from kafila_planner.predict import restate
from kafila_planner.ring import Path, RingPlan, plan_from_json
from kafila_proto import agent_pb2 as pb


def ring_line(plan: dict[str, Any], paths: dict[tuple[str, str], tuple[str, float | None]]) -> str:
    """The ring from its head on, each edge with its path and measured RTT (``paths`` by (from, to))."""
    if len(plan["ring"]) == 1:
        return f"{plan['head']} alone"
    words = [plan["head"]]
    for edge in plan["edges"]:
        path, rtt_s = paths.get((edge["from"], edge["to"]), (f"{edge['path']} predicted", None))
        words.append(f"─{path}{'' if rtt_s is None else ' ' + seconds(rtt_s)}→ {edge['to']}")
    return " ".join(words)


def network_lines(
    plan: dict[str, Any],
    paths: dict[tuple[str, str], tuple[str, float | None]],
    fleet: dict[str, Any],
    own: str,
) -> list[str]:
    """What stands in front of this machine; of each relayed edge why it is, and what would make it direct."""
    members = {facts.name: facts for facts in map(parse_member, fleet["members"])}
    lines = [describe_nat(members[own])] if own in members and len(members) > 1 else []
    told: set[frozenset[str]] = set()
    for edge in plan["edges"]:
        ends = frozenset((edge["from"], edge["to"]))
        a, b = members[edge["from"]], members[edge["to"]]
        path, _ = paths.get((a.name, b.name), (edge["path"], None))
        if path != Path.RELAYED or ends in told:
            continue
        told.add(ends)
        if (advice := advise_path(a, b)) is not None:
            lines.append(
                f"{a.name} and {b.name} are relayed: {judge_path(a, b)[1]}. To make it direct, {advice}."
            )
        else:
            lines.append(
                f"{a.name} and {b.name} are relayed although {judge_path(a, b)[1]}: no datagram came through. "
                "It goes on being tried; look for a firewall that drops UDP between them."
            )
    return lines


def measured_paths(session: pb.SessionStatus) -> dict[tuple[str, str], tuple[str, float | None]]:
    """Path and RTT of each edge that is up, by (from, to) as its upstream member measured it."""
    return {
        (member.name, edge.peer): (edge.path, edge.rtt_s if edge.HasField("rtt_s") else None)
        for member in session.members
        for edge in member.edges
        if edge.path
    }


def predicted_rate(session: pb.SessionStatus) -> float | None:
    """Tokens/s for one user as the planner predicts them, restated with the edges' measured round trips."""
    if not session.plan_json:
        return None
    plan = plan_from_json(json.loads(session.plan_json))
    if not isinstance(plan, RingPlan):
        return None
    rtts_s = {pair: rtt_s for pair, (_, rtt_s) in measured_paths(session).items() if rtt_s is not None}
    return restate(parse_fleet(json.loads(session.fleet_json)), plan, rtts_s).tokens_per_s_one_user


def guessing_line(guessing: pb.Guessing) -> str:
    """How far the head guesses ahead, or why it does not."""
    tempo = ""
    if guessing.HasField("gain"):
        tempo = (
            f" (with {guessing.right_share:.0%} of the guesses right {guessing.gain:.2f} times as fast: a row takes"
            f" {seconds(guessing.circuit_s)} round the ring, another can follow after {seconds(guessing.interval_s)})"
        )
    if guessing.rows:
        return f"guessing ahead, with up to {guessing.rows} rows in the ring{tempo}"
    return f"not guessing ahead: {guessing.reason}{tempo}"
