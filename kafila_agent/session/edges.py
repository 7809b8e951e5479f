"""One member's edges in one plan: to its neighbours in the ring, and on demand to anyone else it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from kafila_agent.edge.edge import Edge, first_round_trips
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.session import EdgeSession
from kafila_agent.machine import Machine
from kafila_agent.session.seat import neighbours
from kafila_planner.ring import Path, RingPlan
from kafila_proto.rendezvous_pb2 import Charter, CircuitGrant, CircuitRequest, FromAgent, Plan, Report

_FIRST_RTT_S = 1.0


class SessionEdges:
    """Made when the plan has come: from then on the endpoint belongs to this epoch of the session.

    An edge takes both ends to open it. In the ring both know that from the plan; else the grant of a circuit, which the
    rendezvous sends to both, tells the other end that it is wanted, and carries the edge until a direct path opens.
    """

    def __init__(
        self, machine: Machine, session_id: bytes, charter: Charter, plan: RingPlan, plan_message: Plan
    ):
        self.ring: dict[str, Edge] = {}
        self._machine = machine
        self._names = [entry.name for entry in charter.roster]
        self._fingerprints = {entry.name: entry.fingerprint for entry in charter.roster}
        self._plan = plan
        self._message = plan_message
        self._opening: dict[str, asyncio.Task[Edge]] = {}
        roster = {entry.fingerprint: entry.name for entry in charter.roster}
        own = machine.identity.name
        self._own = own
        machine.endpoint.enter(EdgeSession(session_id, plan_message.epoch, own, roster), machine.answer)

    async def connect_ring(self, on_lost: Callable[[str, str], None]) -> None:
        """Open the edges that the ring needs of us. ``on_lost(peer, reason)`` if one is lost. Raises EdgeError."""
        if self._own not in self._plan.ring:
            return
        peers = sorted(set(neighbours(self._plan, self._own)) - {self._own})
        edges = await asyncio.gather(*(self._open_in_ring(peer, on_lost) for peer in peers))
        self.ring = dict(zip(peers, edges, strict=True))
        await first_round_trips(edges, _FIRST_RTT_S)

    async def to(self, peer: str) -> Edge:
        """The edge to any member, opened if there is none. Raises EdgeError saying why there is none."""
        edge = self.ring.get(peer)
        if edge is not None and not edge.closed:
            return edge
        opening = self._opening.get(peer)
        if opening is None or (opening.done() and not _is_open(opening)):
            opening = self._opening[peer] = asyncio.create_task(self._open(peer, relay_at_once=True))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise EdgeError("the session is over, or waits for a member") from None
            raise

    def take_circuit(self, grant: CircuitGrant) -> None:
        """A circuit is there; if we did not ask, the other end wants an edge."""
        peer = next((name for name, each in self._fingerprints.items() if each == grant.peer), None)
        if peer is None:
            return
        self._machine.endpoint.take_circuit(grant.peer, grant)
        if peer not in self.ring and self._plan.head == self._own:
            self._answer_call(peer)

    def refuse_circuits(self, reason: str) -> None:
        """The rendezvous grants none."""
        self._machine.endpoint.refuse_circuits(reason)

    def close(self) -> None:
        """Open no more."""
        for opening in self._opening.values():
            opening.cancel()

    def _answer_call(self, peer: str) -> None:
        under_way = self._opening.get(peer)
        if under_way is None or (under_way.done() and not _is_open(under_way)):
            self._opening[peer] = asyncio.create_task(self._open(peer, relay_at_once=True))
            self._opening[peer].add_done_callback(_heeded)

    async def _open_in_ring(self, peer: str, on_lost: Callable[[str, str], None]) -> Edge:
        edge = await self._open(peer, relay_at_once=self._is_relayed(peer))
        edge.on_closed = partial(on_lost, peer)  # it may be lost while another is still being opened
        return edge

    async def _open(self, peer: str, *, relay_at_once: bool) -> Edge:
        report = Report.FromString(self._message.reports[self._names.index(peer)].payload)
        attachment = self._machine.link.attachment
        relay = (attachment.host, attachment.udp_port) if attachment else None
        return await self._machine.endpoint.connect(
            self._fingerprints[peer],
            report.candidates,
            self._ask_circuit,
            relay,
            relay_at_once=relay_at_once,
        )

    def _is_relayed(self, peer: str) -> bool:
        """Whether the plan expects no direct path to ``peer``."""
        ends = {self._own, peer}
        return any(e.path is Path.RELAYED for e in self._plan.edges if {e.source, e.target} == ends)

    def _ask_circuit(self, peer: bytes) -> None:
        self._machine.post(FromAgent(circuit=CircuitRequest(epoch=self._message.epoch, peer=peer)))


def _is_open(opening: asyncio.Task[Edge]) -> bool:
    return not opening.cancelled() and opening.exception() is None and not opening.result().closed


def _heeded(opening: asyncio.Task[Edge]) -> None:
    """Whoever called finds out by itself that it did not come to an edge."""
    if not opening.cancelled():
        opening.exception()
