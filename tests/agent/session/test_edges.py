from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.stream import EdgeStreams
from kafila_agent.session.edges import SessionEdges
from kafila_proto import rendezvous_pb2 as pb

NAMES = ("desk", "lap", "attic")


class Endpoint:
    """One whose edges open when the test has them open; its members' fingerprints are their names."""

    def __init__(self) -> None:
        self.sought: dict[str, asyncio.Future[Edge]] = {}

    def enter(self, session, answer) -> None:
        pass

    async def connect(self, fingerprint, *args, **options) -> Edge:
        return await self.sought.setdefault(fingerprint.decode(), asyncio.get_running_loop().create_future())

    async def opened(self, peer: str) -> Edge:
        while peer not in self.sought:  # noqa: ASYNC110
            await asyncio.sleep(0)
        streams = EdgeStreams(
            carrier=None, pump=lambda: None, answer=lambda stream: None
        )  # no exchanges here
        edge = Edge(peer, peer.encode(), "direct", lambda frame: None, streams)
        edge.rtt_s = 0.001
        self.sought[peer].set_result(edge)
        await asyncio.sleep(0)
        return edge


@pytest.fixture
def endpoint():
    return Endpoint()


@pytest.fixture
def edges(endpoint):
    machine = SimpleNamespace(
        endpoint=endpoint,
        identity=SimpleNamespace(name="desk"),
        link=SimpleNamespace(attachment=None),
        answer=None,
    )
    charter = pb.Charter(roster=[pb.RosterEntry(name=name, fingerprint=name.encode()) for name in NAMES])
    plan = SimpleNamespace(ring=NAMES, head="lap", edges=[])
    return SessionEdges(
        machine, bytes(16), charter, plan, pb.Plan(epoch=1, reports=[pb.Signed()] * len(NAMES))
    )


async def test_an_edge_that_is_lost_while_another_opens_is_told(endpoint, edges):
    lost: list[tuple[str, str]] = []
    connecting = asyncio.create_task(edges.connect_ring(lambda *told: lost.append(told)))
    lap = await endpoint.opened("lap")
    lap.end("no answer for 8 s", lost=True)
    await endpoint.opened("attic")
    await connecting
    assert lost == [("lap", "no answer for 8 s")]


async def test_an_edge_that_was_lost_before_anybody_asked_is_told_at_once(endpoint):
    opening = asyncio.create_task(endpoint.connect(b"lap"))
    edge = await endpoint.opened("lap")
    assert await opening is edge
    edge.end("no answer for 8 s", lost=True)
    lost: list[str] = []
    edge.on_closed = lost.append
    assert lost == ["no answer for 8 s"]


async def test_who_waits_for_an_edge_hears_that_the_session_is_over(edges):
    asking = asyncio.create_task(edges.to("lap"))
    await asyncio.sleep(0)
    edges.close()
    with pytest.raises(EdgeError, match="the session is over"):
        await asking


async def test_who_stops_waiting_takes_the_edge_from_nobody(endpoint, edges):
    asking, other = (asyncio.create_task(edges.to("lap")) for _ in range(2))
    await asyncio.sleep(0)
    asking.cancel()
    edge = await endpoint.opened("lap")
    assert await other is edge
    with pytest.raises(asyncio.CancelledError):
        await asking
