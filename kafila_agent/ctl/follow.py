"""Follow a session from its code to its first token: who joins, the plan, the loading, ready."""

from __future__ import annotations

import json

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from kafila_agent.ctl.plan_table import plan_table
from kafila_agent.ctl.render import console
from kafila_agent.view.sentences import measured_paths, ring_line
from kafila_planner.facts import parse_fleet
from kafila_planner.ring import RingPlan, plan_from_json
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState

_SAID = {
    MemberState.PROBING: "measures itself",
    MemberState.WAITING: "has reported",
    MemberState.READY: "is ready",
}


class Follower:
    """Prints what is new in each snapshot; the same follower serves ``create``, ``join`` and ``demo``."""

    def __init__(self, out: Console):
        self._out = out
        self._states: dict[str, int] = {}
        self._code = ""
        self._notice = ""
        self._plan_json = ""
        self._ring = ""
        self._bars = Progress(
            TextColumn("{task.description:>16}"), BarColumn(), DownloadColumn(), console=out, transient=False
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_exc) -> None:
        self._bars.stop()

    def see(self, session: pb.SessionStatus) -> None:
        """Print what changed since the last snapshot."""
        self._see_admission(session)
        for member in session.members:
            self._see_member(member, session)
        if session.plan_json != self._plan_json:
            self._plan_json = session.plan_json
            plan = plan_from_json(json.loads(session.plan_json))
            if isinstance(plan, RingPlan):
                self._out.print(plan_table(parse_fleet(json.loads(session.fleet_json)), plan))
        if self._plan_json and "ring" in (plan := json.loads(self._plan_json)):
            self._see_edges(plan, session)

    def _see_admission(self, session: pb.SessionStatus) -> None:
        """On the host: a code that took another's place, and what it should know of those who came or went."""
        if session.code and self._code and session.code != self._code:
            self._out.print(f"the code is now {session.code}", highlight=False)
        self._code = session.code or self._code
        if session.state in (pb.SessionStatus.FORMING, pb.SessionStatus.HELD) and session.reason not in (
            "",
            self._notice,
        ):
            self._out.print(session.reason, highlight=False, markup=False)
        self._notice = session.reason
        for gone in self._states.keys() - {member.name for member in session.members}:
            del self._states[gone]

    def _see_member(self, member: pb.MemberStatus, session: pb.SessionStatus) -> None:
        if member.name not in self._states:
            count = f"{len(self._states) + 1} of {session.expected_members}"
            self._out.print(f"{member.name} is in ({count})", highlight=False)
        if member.state != self._states.get(member.name):
            self._states[member.name] = member.state
            if said := _SAID.get(member.state):
                self._out.print(f"{member.name} {said}", highlight=False)
        if member.detail and member.state == MemberState.LEFT:
            self._out.print(f"{member.name} left: {member.detail}", highlight=False, markup=False)
        if member.total_bytes:
            if member.name not in self._tasks:
                self._bars.start()
                self._tasks[member.name] = self._bars.add_task(member.name, total=member.total_bytes)
            self._bars.update(self._tasks[member.name], completed=member.loaded_bytes)

    def _see_edges(self, plan: dict, session: pb.SessionStatus) -> None:
        paths = measured_paths(session)
        if self._ring or any((edge["from"], edge["to"]) not in paths for edge in plan["edges"]):
            return
        self._ring = ring_line(plan, paths)
        self._out.print(f"ring: {self._ring}", highlight=False)


def follow(agent) -> pb.Status:
    """Watch ``agent`` (a stub) until its session serves or ends; return that last snapshot."""
    with Follower(console()) as follower:
        for snapshot in agent.WatchStatus(pb.StatusRequest()):
            follower.see(snapshot.session)
            if snapshot.session.state in (pb.SessionStatus.SERVING, pb.SessionStatus.CLOSED):
                return snapshot
    return snapshot
