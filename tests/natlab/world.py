"""A rendezvous's reflector and relay, and members' real endpoints, in a laboratory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from kafila_agent.edge.edge import Edge
from kafila_agent.edge.endpoint import EdgeEndpoint
from kafila_agent.edge.session import EdgeSession
from kafila_agent.identity import Identity, load_identity
from kafila_agent.nat.reachability import Reachability, measure_reachability
from kafila_planner.facts import MemberFacts
from kafila_rendezvous.circuits import Circuits
from kafila_rendezvous.datagrams import DatagramServer, serve_datagrams
from tests.natlab.lab import RENDEZVOUS, RENDEZVOUS_2, RENDEZVOUS_2_IPV6, RENDEZVOUS_IPV6, Lab
from tests.natlab.resident import Resident

PORT = 7470
SESSION = bytes(range(16))
_NAMES = {"rv": (RENDEZVOUS_IPV6, RENDEZVOUS)}  # IPv6 first, as most resolvers have it
_FACTS = (
    *("rendezvous_rtt_s", "udp", "ipv4", "ipv6"),
    *("mapping", "filtering", "hairpin", "hairpin_open", "nat"),
)


@dataclass
class Member:
    """One member at its place, and what it found out about that."""

    name: str
    identity: Identity
    home: Resident
    endpoint: EdgeEndpoint
    reach: Reachability
    took_s: float
    site: str | None = None

    @property
    def facts(self) -> MemberFacts:
        """What the planner is told."""
        return MemberFacts(self.name, site=self.site, **{name: getattr(self.reach, name) for name in _FACTS})


@dataclass(frozen=True)
class Outcome:
    """How an edge came about; ``edges`` are its two ends."""

    path: str
    took_s: float
    edges: tuple[Edge, Edge]


class World:
    """Enter it with a lab that is built; ``join`` members, then ``connect`` pairs of them.

    ``options`` are those of their endpoints.
    """

    def __init__(self, lab: Lab, directory: Path, *, second_address: bool = True, **options: Any):
        self.members: dict[str, Member] = {}
        self.rendezvous: DatagramServer
        self._lab = lab
        self._options = options
        self._directory = directory
        self._second = (
            {RENDEZVOUS: RENDEZVOUS_2, RENDEZVOUS_IPV6: RENDEZVOUS_2_IPV6} if second_address else None
        )
        self._rv = Resident(lab.namespace("rv"))

    def __enter__(self) -> World:
        hosts = [RENDEZVOUS, RENDEZVOUS_IPV6]
        self.rendezvous = self._rv.run(serve_datagrams(Circuits(), hosts, PORT, self._second))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for member in self.members.values():
            member.home.run(member.endpoint.close())
            member.home.close()
        self._rv.run(self._close_rendezvous())
        self._rv.close()

    async def _close_rendezvous(self) -> None:
        self.rendezvous.close()

    async def join(self, names: Sequence[str]) -> None:
        """Bring members in at the hosts of their names, and let each find out where it stands."""
        identities = [load_identity(self._directory / name, name) for name in names]
        # By rising fingerprint: of two, the one named first dials.
        identities.sort(key=lambda identity: identity.fingerprint)
        homes = [Resident(self._lab.namespace(name), _NAMES) for name in names]
        starts = [
            home.start(self._settle(name, replace(identity, name=name), home))
            for name, identity, home in zip(names, identities, homes, strict=True)
        ]
        self.members |= {member.name: member for member in await asyncio.gather(*starts)}

    async def _settle(self, name: str, identity: Identity, home: Resident) -> Member:
        endpoint = EdgeEndpoint.open(identity, **self._options)
        began = time.monotonic()
        reach = await measure_reachability(endpoint, "rv", PORT)
        return Member(name, identity, home, endpoint, reach, time.monotonic() - began)

    async def connect(
        self, pairs: Sequence[tuple[str, str]], *, epoch: int, lag_s: float = 0.1, **options: bool
    ) -> list[Outcome]:
        """Open an edge for each pair, the second end ``lag_s`` later, all pairs at once; a frame goes each way."""
        peers: dict[str, list[Member]] = {}
        for pair in pairs:
            for own, peer in (pair, pair[::-1]):
                peers.setdefault(own, [self.members[own]]).append(self.members[peer])
        entered = (roster[0].home.call(self._enter, roster, epoch) for roster in peers.values())
        await asyncio.gather(*entered)
        ways = [self._connect(one, other, epoch, lag_s, options) for one, other in pairs]
        return list(await asyncio.gather(*ways))

    async def _connect(
        self, one: str, other: str, epoch: int, lag_s: float, options: dict[str, bool]
    ) -> Outcome:
        ends = [
            (self.members[one], self.members[other], 0.0),
            (self.members[other], self.members[one], lag_s),
        ]
        tried = (own.home.start(self._open(own, peer, epoch, lag, options)) for own, peer, lag in ends)
        (first, first_s), (second, second_s) = await asyncio.gather(*tried)
        received = [asyncio.get_running_loop().create_future() for _ in ends]
        for (own, _, _), edge, future in zip(ends, (first, second), received, strict=True):
            await own.home.call(self._listen, edge, future)
        for (own, _, _), edge in zip(ends, (first, second), strict=True):
            await own.home.call(edge.send, own.name.encode() * 100)
        frames = await asyncio.wait_for(asyncio.gather(*received), 5.0)
        assert frames == [other.encode() * 100, one.encode() * 100]
        return Outcome(first.path, max(first_s, second_s), (first, second))

    @staticmethod
    def _listen(edge: Edge, future: asyncio.Future[bytes]) -> None:
        def take(frame: memoryview) -> None:
            future.get_loop().call_soon_threadsafe(future.set_result, bytes(frame))

        edge.on_frame = take

    @staticmethod
    def _enter(members: list[Member], epoch: int) -> None:
        own = members[0]
        roster = {m.identity.fingerprint: m.name for m in members}
        own.endpoint.enter(EdgeSession(SESSION, epoch, own.name, roster))

    async def _open(
        self, own: Member, peer: Member, epoch: int, lag_s: float, options: dict[str, bool]
    ) -> tuple[Edge, float]:
        await asyncio.sleep(lag_s)
        began = time.monotonic()
        edge = await own.endpoint.connect(
            peer.identity.fingerprint,
            peer.reach.candidates,
            self._circuit_for(own, peer, epoch),
            ("rv", PORT),
            **options,
        )
        return edge, time.monotonic() - began

    def _circuit_for(self, own: Member, peer: Member, epoch: int) -> Callable[[bytes], None]:
        def request(_: bytes) -> None:
            self._rv.loop.call_soon_threadsafe(self._grant, own, peer, epoch)

        return request

    def _grant(self, one: Member, other: Member, epoch: int) -> None:
        """Both ends get the circuit, whoever asked."""
        for own, peer in ((one, other), (other, one)):
            ends = own.identity.fingerprint, peer.identity.fingerprint
            grant = self.rendezvous.circuits.grant(SESSION, epoch, *ends, self._rv.loop.time())
            own.home.loop.call_soon_threadsafe(own.endpoint.take_circuit, ends[1], grant)
