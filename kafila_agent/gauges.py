"""What is read from the agent's own status at each scrape, so that none of it can be stale; see ``metrics.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kafila_agent.edge.edge import Edge
from kafila_planner.ring import RingPlan, plan_from_json
from kafila_proto import agent_pb2 as pb
from kafila_proto.rendezvous_pb2 import MemberState

if TYPE_CHECKING:
    from kafila_agent.head.measure import Measured

_SESSION_STATES = pb.SessionStatus.State.keys()
MEMBER_STATES = ", ".join(f"{number} {name.lower()}" for name, number in MemberState.items() if number)


class StatusCollector(Collector):
    """``status`` and ``edges`` are asked at each scrape; ``measured`` too, which only the head has, and the rest."""

    def __init__(
        self,
        status: Callable[[], pb.Status],
        edges: Callable[[], Iterable[Edge]],
        measured: Callable[[], Measured | None],
        rendezvous_rtt_s: Callable[[], float | None],
    ):
        self._status = status
        self._edges = edges
        self._measured = measured
        self._rendezvous_rtt_s = rendezvous_rtt_s

    def collect(self) -> Iterator[Metric]:
        """Every family, in one order always; those that do not apply now have no sample."""
        status = self._status()
        edges = list(self._edges())
        plan = _plan(status.session)
        info = _gauge("kafila_agent_info", "This member's name, as a label; always 1.", labels="member")
        info.add_metric([status.name], 1)
        yield info
        yield _gauge(
            "kafila_rendezvous_attached", "1 while the stream to the rendezvous is up.", status.attached
        )
        yield _gauge(
            "kafila_rendezvous_rtt_seconds",
            "Measured round trip to the rendezvous.",
            self._rendezvous_rtt_s(),
        )
        yield from _session(status.session)
        yield from _stages(status)
        yield from _predictions(plan)
        yield from _engine(self._measured())
        yield _planned_edges(status.name, plan, edges)
        yield from _edges(edges)


def _session(session: pb.SessionStatus) -> Iterator[Metric]:
    state = _gauge(
        "kafila_session_state", "1 for the state of this machine's session, 0 for the others.", labels="state"
    )
    for number, name in enumerate(_SESSION_STATES):
        state.add_metric([name.lower()], number == session.state)
    yield state
    yield _gauge("kafila_plan_epoch", "Number of the plan in force; 0 before the first.", session.epoch)
    yield _gauge("kafila_session_members", "Members of the session's roster.", len(session.members))
    yield _gauge("kafila_session_expected_members", "Members it is to have.", session.expected_members)
    member_state = _gauge(
        "kafila_member_state",
        f"How far each member is: {MEMBER_STATES}.",
        labels="member",
    )
    for member in session.members:
        member_state.add_metric([member.name], MemberState.Value(MemberState.Name(member.state)))
    yield member_state


def _stages(status: pb.Status) -> Iterator[Metric]:
    stage = _gauge(
        "kafila_stage_seconds",
        "Compute of a decode step as predicted, and on the head the median of the latest as measured.",
        labels=("member", "kind"),
    )
    loaded = _gauge("kafila_loaded_bytes", "Bytes of each member's stage read so far.", labels="member")
    planned = _gauge("kafila_planned_bytes", "Bytes of each member's stage as planned.", labels="member")
    for member in status.session.members:
        for kind in ("predicted", "measured"):
            if member.HasField(f"{kind}_stage_s"):
                stage.add_metric([member.name, kind], getattr(member, f"{kind}_stage_s"))
        if member.total_bytes:
            loaded.add_metric([member.name], member.loaded_bytes)
            planned.add_metric([member.name], member.total_bytes)
    yield from (stage, loaded, planned)
    measured = status.session.measured
    yield _gauge(
        "kafila_network_share_ratio",
        "Fraction of a token's time not spent computing, over the latest steps; on the head.",
        measured.network_share if measured.HasField("network_share") else None,
    )


def _predictions(plan: RingPlan | None) -> Iterator[Metric]:
    predicted = plan.predicted if plan else None
    yield _gauge(
        "kafila_predicted_tokens_per_second",
        "Tokens a second that one user gets, as planned.",
        predicted.tokens_per_s_one_user if predicted else None,
    )
    yield _gauge(
        "kafila_predicted_network_share_ratio",
        "Network share as planned.",
        predicted.network_share if predicted else None,
    )


def _engine(measured: Measured | None) -> Iterator[Metric]:
    values = (
        ("kafila_num_requests_running", "Requests that hold a slot; on the head.", "running"),
        ("kafila_num_requests_waiting", "Requests that wait for a slot; on the head.", "waiting"),
        ("kafila_slots", "Requests that can be in the ring at once; on the head.", "slots"),
        ("kafila_kv_cache_usage_ratio", "Fraction of the KV cache's tokens in use; on the head.", "kv_usage"),
    )
    for name, text, field in values:
        yield _gauge(name, text, getattr(measured, field) if measured else None)


def _planned_edges(name: str, plan: RingPlan | None, edges: Iterable[Edge]) -> Metric:
    """This member's edges of the plan; ``path`` is ``none`` for one that does not stand."""
    family = _gauge(
        "kafila_edge_up",
        "1 for an edge of the plan that stands, 0 for one that does not (path none).",
        labels=("peer", "path", "predicted"),
    )
    standing = {edge.peer: edge.path for edge in edges}
    predicted = {
        edge.target if edge.source == name else edge.source: edge.path.value
        for edge in (plan.edges if plan else ())
        if name in (edge.source, edge.target) and edge.source != edge.target
    }
    for peer, path in sorted(predicted.items()):
        family.add_metric([peer, standing.get(peer, "none"), path], peer in standing)
    return family


def _edges(edges: Iterable[Edge]) -> Iterator[Metric]:
    rtt = _gauge(
        "kafila_edge_rtt_seconds", "Round trip of an edge, median of the latest.", labels=("peer", "path")
    )
    moved = CounterMetricFamily(
        "kafila_edge_bytes", "Bytes of frames since the edge opened.", labels=["peer", "direction"]
    )
    frames = CounterMetricFamily(
        "kafila_edge_frames", "Frames since the edge opened.", labels=["peer", "direction"]
    )
    lost = CounterMetricFamily(
        "kafila_edge_packets_lost", "Packets given up and sent again since the edge opened.", labels=["peer"]
    )
    for edge in edges:
        if edge.rtt_s is not None:
            rtt.add_metric([edge.peer, edge.path], edge.rtt_s)
        for direction in ("sent", "received"):
            moved.add_metric([edge.peer, direction], getattr(edge, f"bytes_{direction}"))
            frames.add_metric([edge.peer, direction], getattr(edge, f"frames_{direction}"))
        lost.add_metric([edge.peer], edge.packets_lost)
    yield from (rtt, moved, frames, lost)


def _plan(session: pb.SessionStatus) -> RingPlan | None:
    if not session.plan_json or session.state in (pb.SessionStatus.NONE, pb.SessionStatus.CLOSED):
        return None
    plan = plan_from_json(json.loads(session.plan_json))
    return plan if isinstance(plan, RingPlan) else None


def _gauge(
    name: str, text: str, value: float | None = None, labels: str | tuple[str, ...] = ()
) -> GaugeMetricFamily:
    """A gauge with its one sample, if there is one; ``labels`` name what further samples are told apart by."""
    names = (labels,) if isinstance(labels, str) else labels
    return GaugeMetricFamily(name, text, value=None if value is None else float(value), labels=names or None)
