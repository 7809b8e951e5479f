"""A member's part in one plan: its edges, its blocks, its seat in the ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.machine import Machine
from kafila_agent.session.edges import SessionEdges
from kafila_agent.session.seat import Seat
from kafila_agent.session.work import Blocks, Work
from kafila_planner.ring import RingPlan
from kafila_proto.rendezvous_pb2 import Charter, CircuitGrant, EdgeLost, FromAgent, Plan

if TYPE_CHECKING:
    from kafila_agent.model.manifest import Manifest


class Part:
    """Made when the plan has come, and over with its epoch: ``disconnect``, then ``vacate``."""

    def __init__(self, machine: Machine, charter: Charter, plan: RingPlan, message: Plan):
        self.plan = plan
        self.seat: Seat | None = None
        self._machine = machine
        self._charter = charter
        self._epoch = message.epoch
        self._name = machine.identity.name
        self._work: Work | None = None
        self._edges: SessionEdges | None = SessionEdges(machine, charter.session_id, charter, plan, message)

    @property
    def edges(self) -> list[Edge]:
        """Those of the ring that stand."""
        return [] if self._edges is None else [e for e in self._edges.ring.values() if not e.closed]

    async def reach(self, member: str) -> Edge:
        """The edge to any member, opened if there is none yet. Raises EdgeError saying why there is none."""
        if self._edges is None:
            raise EdgeError("the session is over, or waits for a member")
        return await self._edges.to(member)

    def take_circuit(self, grant: CircuitGrant) -> None:
        """The rendezvous grants a relayed path."""
        if grant.epoch == self._epoch and self._edges is not None:
            self._edges.take_circuit(grant)

    def refuse_circuits(self, reason: str) -> None:
        """The rendezvous grants none."""
        if self._edges is not None:
            self._edges.refuse_circuits(reason)

    async def connect(self, on_lost: Callable[[str, str], None]) -> None:
        """Open the ring's edges: see SessionEdges."""
        assert self._edges is not None
        await self._edges.connect_ring(on_lost)

    async def load(
        self, blocks: Blocks, manifest: Manifest | None, on_progress: Callable[[int, int], None]
    ) -> None:
        """Have ``blocks`` hold what the plan gives this member, if it has a seat. Raises WorkError."""
        if self._name in self.plan.ring:
            assert manifest is not None
            self._work = await blocks.load(
                self._machine.config, self.plan, self._charter, manifest, self._name, on_progress
            )

    def serve(self) -> None:
        """Take the seat; without one there is nothing to do but to be a member."""
        if self._work is None:
            return
        assert self._edges is not None
        self.seat = Seat(
            self.plan,
            self._name,
            self._edges.ring,
            self._work.executor,
            session_id=self._charter.session_id,
            epoch=self._epoch,
            concurrency=self._charter.concurrency,
            context_tokens=self._charter.context_tokens,
            head=self._work.head,
            observer=self._machine.metrics,
        )

    def miss(self, peer: str, reason: str) -> None:
        """The edge to ``peer`` is lost: the rendezvous is told, and whoever waits for a token here."""
        fingerprint = next(entry.fingerprint for entry in self._charter.roster if entry.name == peer)
        self._machine.post(FromAgent(edge_lost=EdgeLost(epoch=self._epoch, peer=fingerprint)))
        if self.seat is not None and self.seat.engine is not None:
            self.seat.engine.fail(reason)

    def disconnect(self) -> None:
        """Open no more edges."""
        if self._edges is not None:
            self._edges.close()
            self._edges = None

    async def vacate(self, reason: str) -> None:
        """End every sequence with ``reason`` and give the seat up."""
        self._work = None
        if self.seat is not None:
            await self.seat.close(reason)
            self.seat = None
