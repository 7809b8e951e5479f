"""What may happen to an edge that stands: routers reboot, lines break, addresses change, datagrams are lost."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from kafila_agent.edge.edge import Edge
from tests.natlab.lab import Lab
from tests.natlab.resident import Resident
from tests.natlab.world import World

FRAME_BYTES = 4000
EVERY_S = 0.02
_HEADER = struct.Struct("!I")


def frame(number: int) -> bytes:
    """Each frame's bytes follow from its number."""
    return _HEADER.pack(number) * (FRAME_BYTES // _HEADER.size)


class Traffic:
    """Numbered frames over an edge, both ways, until told to stop; each end notes what it gets."""

    def __init__(self, world: World, edges: tuple[Edge, Edge]):
        self.sent = [0, 0]
        self.received: list[list[bytes]] = [[], []]
        self._ends = list(zip(edges, (world.members[edge.peer] for edge in reversed(edges)), strict=True))
        self._stop = asyncio.Event()

    async def flow(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send for so long, with something happening after a quarter of it; then wait for what is on its way."""
        for index, (edge, member) in enumerate(self._ends):
            await member.home.call(setattr, edge, "on_frame", self._taker(index))
        senders = [
            asyncio.ensure_future(m.home.start(self._send(i, e, seconds)))
            for i, (e, m) in enumerate(self._ends)
        ]
        await asyncio.sleep(seconds / 4)
        await asyncio.to_thread(meanwhile)
        await asyncio.gather(*senders)
        for _ in range(200):
            if [len(got) for got in self.received] == self.sent[::-1]:
                return
            await asyncio.sleep(0.05)

    def check(self) -> None:
        """Every frame of each end has come to the other, once, whole and in order."""
        for index, got in enumerate(self.received):
            assert len(got) == self.sent[1 - index]
            assert all(data == frame(number) for number, data in enumerate(got))

    def _taker(self, index: int) -> Callable[[memoryview], None]:
        return lambda data: self.received[index].append(bytes(data))

    async def _send(self, index: int, edge: Edge, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.time() + seconds
        while loop.time() < stop:
            edge.send(frame(self.sent[index]))
            self.sent[index] += 1
            await asyncio.sleep(EVERY_S)


def pair(one: str, other: str, **options: float) -> Lab:
    lab = Lab()
    lab.add("here", one, rtt_ms=20, **options)
    lab.add("there", other, rtt_ms=40, **options)
    return lab


async def survive(lab: Lab, tmp_path, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> str:
    with lab, World(lab, tmp_path) as world:
        await world.join(["here", "there"])
        (outcome,) = await world.connect([("here", "there")], epoch=1)
        traffic = Traffic(world, outcome.edges)
        await traffic.flow(seconds, meanwhile)
        assert not any(edge.closed for edge in outcome.edges)
        traffic.check()
        return outcome.edges[0].path


@pytest.mark.parametrize("kinds", [("ordinary", "ordinary"), ("restrictive", "ordinary")])
async def test_a_router_that_reboots_loses_no_frame(tmp_path, kinds):
    lab = pair(*kinds)
    await survive(lab, tmp_path, 6.0, lambda: lab.forget_mappings("here"))


async def test_two_seconds_without_a_line_lose_no_frame(tmp_path):
    lab = pair("ordinary", "ordinary")

    assert await survive(lab, tmp_path, 5.0, lambda: lab.cut(2.0)) == "direct"


async def test_one_datagram_in_twenty_lost_each_way_loses_no_frame(tmp_path):
    assert await survive(pair("ordinary", "permissive", loss_percent=2.5), tmp_path, 4.0) == "direct"


async def test_a_new_address_loses_no_frame(tmp_path):
    lab = pair("ordinary", "ordinary")

    await survive(lab, tmp_path, 6.0, lambda: lab.move("here", "192.168.1.99"))


async def test_the_relay_sees_nothing_of_what_it_carries(tmp_path):
    """All that crosses the rendezvous's line while a relayed edge carries a tensor and a prompt that we know."""
    secret = b"The quick brown prompt that nobody else may read. "
    lab = pair("restrictive", "ordinary")
    captured: list[bytes] = []
    with lab, World(lab, tmp_path) as world:
        watcher = Resident(lab.namespace("rv"))
        line = await watcher.call(_open_line)
        watcher.loop.call_soon_threadsafe(
            watcher.loop.add_reader, line, lambda: captured.append(line.recv(65535))
        )
        await world.join(["here", "there"])
        (outcome,) = await world.connect([("here", "there")], epoch=1)
        assert outcome.path == "relayed"
        traffic = Traffic(world, outcome.edges)
        await traffic.flow(0.5)
        edge, member = outcome.edges[0], world.members["here"]
        await member.home.call(edge.send, secret * 100)
        await asyncio.sleep(0.5)
        traffic.received[1].remove(secret * 100)
        traffic.check()
        watcher.run(_close_line(line))
        watcher.close()
    seen = b"".join(captured)
    assert len(seen) > 2 * FRAME_BYTES * sum(traffic.sent)  # in and out again
    assert secret not in seen
    assert _HEADER.pack(3) * 4 not in seen


def _open_line() -> socket.socket:
    line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    line.bind(("eth0", 0))
    line.setblocking(False)
    return line


async def _close_line(line: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(line)
    line.close()
