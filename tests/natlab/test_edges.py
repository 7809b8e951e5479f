"""What may happen to an edge that stands: routers reboot, lines break, addresses change, datagrams are lost."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kafila_agent.edge.edge import Edge
from tests.natlab.lab import Lab
from tests.natlab.resident import Resident
from tests.natlab.world import Outcome, World

FRAME_BYTES = 4000
EVERY_S = 0.04
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

    def fault(self) -> str:
        """Empty if every frame of each end has come to the other, once, whole and in order."""
        for got, sent in zip(self.received, self.sent[::-1], strict=True):
            if len(got) != sent:
                return f"{sent} frames sent, {len(got)} received"
            if any(data != frame(number) for number, data in enumerate(got)):
                return "frames changed or out of order"
        return ""

    def _taker(self, index: int) -> Callable[[memoryview], None]:
        return lambda data: self.received[index].append(bytes(data))

    async def _send(self, index: int, edge: Edge, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        stop = loop.time() + seconds
        while loop.time() < stop:
            edge.send(frame(self.sent[index]))
            self.sent[index] += 1
            await asyncio.sleep(EVERY_S)


@dataclass(frozen=True)
class Case:
    """What happens to the edge between two members of ``kinds``, and the path it then has."""

    kinds: tuple[str, str]
    happens: Callable[[Lab, str, str], None] = lambda lab, here, there: None
    path: str = "direct"
    loss_percent: float = 0.0
    apart: bool = False  # at first nothing passes between the two


CASES = {
    "reboot": Case(("ordinary", "ordinary"), lambda lab, here, there: lab.forget_mappings(here)),
    "relayed-reboot": Case(
        ("restrictive", "ordinary"), lambda lab, here, there: lab.forget_mappings(here), path="relayed"
    ),
    "blackout": Case(("ordinary", "ordinary"), lambda lab, here, there: lab.cut(there, 2.0)),
    "loss": Case(("ordinary", "permissive"), loss_percent=2.5),  # on each of two lines, each way
    "shuffle": Case(("ordinary", "ordinary"), lambda lab, here, there: lab.shuffle(here, 0.2, 0.2)),
    # Behind a new outer address that the other does not know: the relay carries on until it has been told.
    "move": Case(("ordinary", "firewall"), lambda lab, here, there: lab.move(here)),
    "strict-move": Case(("restrictive", "firewall"), lambda lab, here, there: lab.move(here), path="relayed"),
    "upgrade": Case(("ordinary", "ordinary"), lambda lab, here, there: lab.join(here), apart=True),
}


async def survive(lab: Lab, world: World, name: str, outcome: Outcome) -> str:
    """What is wrong after the case of that name; empty if nothing is."""
    case, traffic = CASES[name], Traffic(world, outcome.edges)
    await traffic.flow(8.0, partial(case.happens, lab, f"{name}1", f"{name}2"))
    for _ in range(400):  # it may be on its way back
        if {edge.path for edge in outcome.edges} == {case.path}:
            break
        await asyncio.sleep(0.05)
    else:
        return f"{name} ended {[edge.path for edge in outcome.edges]}"
    if any(edge.closed for edge in outcome.edges):
        return f"{name}: {outcome.edges}"
    return traffic.fault()


async def test_whatever_happens_to_an_edge_no_frame_is_lost(tmp_path):
    lab = Lab()
    for name, case in CASES.items():
        for copy, kind, rtt_ms in zip("12", case.kinds, (20, 40), strict=True):
            lab.add(f"{name}{copy}", kind, rtt_ms=rtt_ms, loss_percent=case.loss_percent)
    with lab, World(lab, tmp_path) as world:
        await world.join([f"{name}{copy}" for copy in "12" for name in CASES])
        for name in (name for name, case in CASES.items() if case.apart):
            lab.part(f"{name}1", f"{name}2")
        outcomes = await world.connect([(f"{name}1", f"{name}2") for name in CASES], epoch=1)
        faults = await asyncio.gather(
            *(survive(lab, world, *each) for each in zip(CASES, outcomes, strict=True))
        )
    assert [fault for fault in faults if fault] == []


async def test_the_relay_sees_nothing_of_what_it_carries(tmp_path):
    """All that crosses the rendezvous's line while a relayed edge carries a tensor and a prompt that we know."""
    secret = b"The quick brown prompt that nobody else may read. "
    lab = Lab()
    lab.add("here", "restrictive", rtt_ms=20)
    lab.add("there", "ordinary", rtt_ms=40)
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
        assert traffic.fault() == ""
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
