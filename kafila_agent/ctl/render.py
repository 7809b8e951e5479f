"""What people read of a session in a terminal."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kafila_agent.view.document import status_json
from kafila_agent.view.figures import seconds, size
from kafila_agent.view.sentences import (
    guessing_line,
    measured_paths,
    network_lines,
    predicted_rate,
    ring_line,
)
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState


def console(*, stderr: bool = True) -> Console:
    """Progress goes to stderr, results to stdout."""
    return Console(stderr=stderr, soft_wrap=True)


def page_url(status: pb.Status) -> str:
    """Where a browser on this machine finds the page."""
    return status.api_url.removesuffix("v1")


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
        f"[bold]{escape(status.name)}[/] at {escape(status.rendezvous)}"
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
        markup=False,
    )
    _print_members(out, session)
    if session.plan_json and "ring" in (plan := json.loads(session.plan_json)):
        paths = measured_paths(session)
        out.print(ring_line(plan, paths), highlight=False, markup=False)
        for line in network_lines(plan, paths, json.loads(session.fleet_json), status.name):
            out.print(line, highlight=False, markup=False)
    measured = session.measured
    if measured.HasField("tokens_per_s"):
        share = f", network share {measured.network_share:.0%}" if measured.HasField("network_share") else ""
        ttft = f", first token after {seconds(measured.ttft_s)}" if measured.HasField("ttft_s") else ""
        rate = predicted_rate(session)
        expected = "" if rate is None else f" ({rate:.1f} predicted)"
        out.print(f"{measured.tokens_per_s:.1f} tokens/s{expected}{ttft}{share}", highlight=False)
        out.print(guessing_line(measured.guessing), highlight=False, markup=False)
    if status.api_url:
        out.print(
            f"API: {status.api_url}, chat in a browser: {page_url(status)}", highlight=False, markup=False
        )
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
            escape(member.detail),
        )
    for _ in range(session.expected_members - len(session.members)):
        table.add_row("…", "awaited", "", "", "", "")
    out.print(table)
