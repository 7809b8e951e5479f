"""What people read: the ring as a line, a session's status."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from kafila_agent.ctl.figures import seconds, size
from kafila_planner.facts import parse_fleet, parse_member
from kafila_planner.nat import advise_path, describe_nat, judge_path
from kafila_planner.predict import restate
from kafila_planner.ring import Path, RingPlan, plan_from_json
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState

if TYPE_CHECKING:
    from google.protobuf.message import Message


def console(*, stderr: bool = True) -> Console:
    """Progress goes to stderr, results to stdout."""
    return Console(stderr=stderr, soft_wrap=True)


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


def to_dict(message: Message) -> dict[str, Any]:
    """A message as plain JSON: enums by name, unset optionals null, ``x_json`` fields parsed under ``x``."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None:
            result[field.name] = [to_dict(item) for item in value] if field.is_repeated else to_dict(value)
        elif field.enum_type is not None:
            result[field.name] = field.enum_type.values_by_number[value].name.lower()
        elif field.name.endswith("_json"):
            result[field.name.removesuffix("_json")] = json.loads(value) if value else None
        elif field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        else:
            result[field.name] = value
    return result


def status_json(status: pb.Status) -> str:
    """One line of JSON."""
    return json.dumps(to_dict(status))


def print_status(status: pb.Status, as_json: bool, *, redraw: bool = False) -> None:
    """The status of this machine's session, on stdout."""
    if as_json:
        print(status_json(status), flush=True)
        return
    out = console(stderr=False)
    if redraw:
        out.clear()
    session = status.session
    out.print(
        f"[bold]{status.name}[/] at {status.rendezvous}"
        f"{'' if status.attached else ' [red](not connected)[/]'}: "
        f"{pb.SessionStatus.State.Name(session.state).lower()}",
        highlight=False,
    )
    if session.reason:
        out.print(session.reason, highlight=False, markup=False)
    if session.state == pb.SessionStatus.NONE:
        return
    out.print(
        f"{session.model}, {session.dtype}, context {session.context_tokens} × {session.concurrency}, "
        f"epoch {session.epoch}" + (f", code {session.code}" if session.code else ""),
        highlight=False,
    )
    _print_members(out, session)
    if session.plan_json and "ring" in (plan := json.loads(session.plan_json)):
        paths = measured_paths(session)
        out.print(ring_line(plan, paths), highlight=False)
        for line in network_lines(plan, paths, json.loads(session.fleet_json), status.name):
            out.print(line, highlight=False, markup=False)
    measured = session.measured
    if measured.HasField("tokens_per_s"):
        share = f", network share {measured.network_share:.0%}" if measured.HasField("network_share") else ""
        ttft = f", first token after {seconds(measured.ttft_s)}" if measured.HasField("ttft_s") else ""
        rate = predicted_rate(session)
        expected = "" if rate is None else f" ({rate:.1f} predicted)"
        out.print(f"{measured.tokens_per_s:.1f} tokens/s{expected}{ttft}{share}", highlight=False)
        out.print(guessing_line(measured.guessing), highlight=False)
    if status.api_url:
        out.print(f"API: {status.api_url}", highlight=False)
    sys.stdout.flush()


def _print_members(out: Console, session: pb.SessionStatus) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", "state", "loaded", "predicted stage", "measured stage", ""):
        table.add_column(name)
    for member in session.members:
        table.add_row(
            member.name,
            MemberState.Name(member.state).lower(),
            f"{size(member.loaded_bytes)} of {size(member.total_bytes)}" if member.total_bytes else "",
            seconds(member.predicted_stage_s) if member.HasField("predicted_stage_s") else "",
            seconds(member.measured_stage_s) if member.HasField("measured_stage_s") else "",
            member.detail,
        )
    for _ in range(session.expected_members - len(session.members)):
        table.add_row("…", "awaited", "", "", "", "")
    out.print(table)
