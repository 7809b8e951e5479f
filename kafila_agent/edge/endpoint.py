"""One UDP socket for everything an agent says to other members: STUN, checks, circuits and QUIC.

The shell beside ``link.py``: it reads the socket until it is empty, lets ``demultiplex.py`` find the link that a
datagram is for and the link decide, and sends what it answers. A NAT mapping belongs to a socket, so there is only
this one.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Any

from kafila_agent.edge import fast_quic
from kafila_agent.edge.candidate import (
    Candidate,
    CandidateKind,
    Reachable,
    candidate_addresses,
    choose_hosts,
    interface_hosts,
)
from kafila_agent.edge.check import is_check
from kafila_agent.edge.credential import Identity
from kafila_agent.edge.demultiplex import Demultiplexer
from kafila_agent.edge.edge import Edge
from kafila_agent.edge.errors import EdgeError
from kafila_agent.edge.link import DIRECT_S, Link
from kafila_agent.edge.neighbour import Answer, CircuitGrant, Neighbour, RequestCircuit, SocketAddress
from kafila_agent.edge.observer import EdgeObserver
from kafila_agent.edge.paths import DATAGRAM_BYTES
from kafila_agent.edge.reflection import RTT_SAMPLES, Reflections
from kafila_agent.edge.session import EdgeSession
from kafila_proto import stun
from kafila_proto.udp_socket import drain, open_udp_socket, send

_ANY_IPV4 = "0.0.0.0"  # noqa: S104  members reach an agent on whatever interface they share with it
_DATAGRAMS_A_TURN = 32  # decrypting them takes some 5 ms: then a frame that is whole goes on


class EdgeEndpoint:
    """The agent's end of all its edges. Made by ``open``; used from the event loop alone."""

    def __init__(
        self,
        identity: Identity,
        udp: socket.socket,
        *,
        relay_only: bool = False,
        fast_core: bool = fast_quic.IS_INSTALLED,
        direct_s: float = DIRECT_S,
        datagram_bytes: tuple[int, ...] = DATAGRAM_BYTES,
        observer: EdgeObserver | None = None,
    ):
        self.ignored_datagrams = 0
        self.unsent_datagrams = 0
        self._identity = identity
        self._udp = udp
        self._relay_only = relay_only
        self._fast_core = fast_core
        if fast_core:
            fast_quic.load()
        self._direct_s = direct_s
        self._sizes = datagram_bytes
        self._observer = observer or EdgeObserver()
        self._loop = asyncio.get_running_loop()
        self._session: EdgeSession | None = None
        self._neighbours: dict[bytes, Neighbour] = {}
        self._demultiplexer = Demultiplexer()
        self._reflections = Reflections(self.send_datagram)
        self.stun_listeners: list[Callable[[bytes, SocketAddress], None]] = []  # each knows its own questions
        self.on_check: Callable[[bytes, SocketAddress], None] | None = None  # those that are for no edge
        self._loop.add_reader(udp, self._receive)

    @classmethod
    def open(cls, identity: Identity, host: str = "::", port: int = 0, **options: Any) -> EdgeEndpoint:
        """Bind one socket: "::" for IPv6 and IPv4 together, any other literal address for itself.

        ``relay_only`` uses no direct path; ``fast_core``: the quicker QUIC library with near members; ``direct_s`` is
        how long a direct path is sought before the relay is asked; ``datagram_bytes`` are the UDP payloads tried.
        Raises OSError naming an address that cannot be bound.
        """
        try:
            return cls(identity, open_udp_socket(host, port, ipv4_too=host == "::"), **options)
        except OSError:
            if host != "::":
                raise
        return cls(identity, open_udp_socket(_ANY_IPV4, port), **options)  # a machine without IPv6

    @property
    def local_address(self) -> SocketAddress:
        """Where the socket is bound."""
        host, port = self._udp.getsockname()[:2]
        return host, port

    @property
    def edges(self) -> list[Edge]:
        """The edges that stand."""
        return [n.edge for n in self._neighbours.values() if n.edge is not None]

    async def candidates(self, reflector: SocketAddress | None = None) -> list[Candidate]:
        """Where peers may reach this socket: its own addresses, and where ``reflector`` sees it from."""
        host, port = self.local_address
        seen_by = await self.resolve(reflector) if reflector is not None else []
        if ipaddress.ip_address(host).is_unspecified:
            near = any(ipaddress.ip_address(address[0]).is_loopback for address in seen_by)
            hosts = [h for h in choose_hosts(interface_hosts(), loopback=near) if self._can_send(h)]
        else:
            hosts = [host]
        found = [Candidate(CandidateKind.HOST, h, port) for h in hosts]
        mapped = await asyncio.gather(*(self._reflections.reflect(address) for address in seen_by))
        own = {(c.host, c.port) for c in found}
        for address in dict.fromkeys(a for a in mapped if a is not None and a not in own):
            found.append(Candidate(CandidateKind.SERVER_REFLEXIVE, *address))
        return found

    async def reflect(self, reflector: SocketAddress) -> SocketAddress | None:
        """Where ``reflector`` sees this socket from; None if it does not answer."""
        for address in await self.resolve(reflector):
            mapped = await self._reflections.reflect(address)
            if mapped is not None:
                return mapped
        return None

    async def measure_rtt_s(self, reflector: SocketAddress, samples: int = RTT_SAMPLES) -> float | None:
        """The median round trip to ``reflector`` in seconds, by the quicker family; None if it does not answer."""
        addresses = await self.resolve(reflector)
        measured = await asyncio.gather(
            *(self._reflections.measure_rtt_s(each, samples) for each in addresses)
        )
        return min((rtt_s for rtt_s in measured if rtt_s is not None), default=None)

    def enter(self, session: EdgeSession, answer: Answer | None = None) -> None:
        """Belong to one epoch of a session, and to nothing before it: older edges are closed.

        From now on the members of the roster, and nobody else, get answers from this socket. ``answer`` gets the
        exchanges that they open.
        """
        self.leave("a new plan is in force")
        self._session = session
        for fingerprint in session.roster:
            if fingerprint != self._identity.fingerprint:
                link = Link(
                    self._identity,
                    session,
                    fingerprint,
                    relay_only=self._relay_only,
                    fast_core=self._fast_core,
                    direct_s=self._direct_s,
                    sizes=self._sizes,
                )
                self._neighbours[fingerprint] = Neighbour(
                    link,
                    session,
                    self._demultiplexer,
                    self.send_datagram,
                    self._find_addresses,
                    self._observer,
                )
                self._demultiplexer.add(link)
                if answer is not None:
                    self._neighbours[fingerprint].answer = answer

    def leave(self, reason: str = "left the session") -> None:
        """Close every edge, telling the peers ``reason``; ``on_closed`` is not called for them here."""
        for neighbour in list(self._neighbours.values()):
            neighbour.leave(reason)
        self._neighbours.clear()
        self._demultiplexer.clear()
        self._session = None

    async def connect(
        self,
        peer_fingerprint: bytes,
        candidates: Iterable[Reachable],
        request_circuit: RequestCircuit | None = None,
        relay_address: SocketAddress | None = None,
        *,
        relay_at_once: bool = False,
    ) -> Edge:
        """The edge to a member, whoever of the two dials; the same one for every call while it stands.

        Called on both sides. ``request_circuit(peer)`` asks the rendezvous, whose answer both ends hand to
        ``take_circuit``. ``relay_at_once``: no direct path is expected. Raises EdgeError saying why there is none.
        """
        neighbour = self._neighbours.get(peer_fingerprint)
        if neighbour is None:
            raise EdgeError("no such member in the session's roster; enter the session first")
        if relay_address is not None and neighbour.relay_address is None:
            resolved = await self.resolve(relay_address)
            neighbour.relay_address = resolved[0] if resolved else None
        if request_circuit is not None:
            neighbour.request_circuit = request_circuit
        addresses = [address for address in candidate_addresses(candidates) if self._can_send(address[0])]
        return await neighbour.connect(addresses, relay_at_once=relay_at_once)

    def take_circuit(self, peer_fingerprint: bytes, grant: CircuitGrant) -> None:
        """The rendezvous grants a circuit to a member."""
        neighbour = self._neighbours.get(peer_fingerprint)
        if neighbour is not None:
            neighbour.take_circuit(grant)

    def refuse_circuits(self, reason: str) -> None:
        """The rendezvous grants no circuit."""
        for neighbour in self._neighbours.values():
            neighbour.link.circuit_refused(reason)

    async def close(self) -> None:
        """Leave, and close the socket."""
        self.leave("the agent stops")
        self._loop.remove_reader(self._udp)
        self._udp.close()

    # Datagrams in

    def _receive(self) -> None:
        now = self._loop.time()
        touched: set[bytes] = set()
        for data, source in drain(self._udp, _DATAGRAMS_A_TURN):
            address = stun.plain_address(source[:2])
            if stun.is_stun(data):
                self._reflections.receive_datagram(data, address)
                for listener in list(self.stun_listeners):
                    listener(data, address)
                continue
            link = self._demultiplexer.receive_datagram(data, address, now)
            if link is None and self.on_check is not None and is_check(data):
                self.on_check(data, address)
            elif link is None:
                self.ignored_datagrams += 1
            else:
                touched.add(link.peer)
        for peer in touched:
            if peer in self._neighbours:  # a callback may have left the session
                self._neighbours[peer].take_in()

    def send_datagram(self, data: bytes, address: SocketAddress) -> None:
        """Put a datagram on the socket; one that the system does not take is counted and lost."""
        if self._udp.family == socket.AF_INET6 and ":" not in address[0]:
            address = f"::ffff:{address[0]}", address[1]
        if not send(self._udp, data, address):
            self.unsent_datagrams += 1

    async def _find_addresses(self, reflector: SocketAddress | None) -> list[SocketAddress]:
        return [(candidate.host, candidate.port) for candidate in await self.candidates(reflector)]

    def _can_send(self, host: str) -> bool:
        return self._udp.family == socket.AF_INET6 or ":" not in host

    async def resolve(self, address: SocketAddress) -> list[SocketAddress]:
        """The literal addresses of a host that this socket can send to, one of each family.

        Those that have answered come first: a name may have an IPv6 address on a network without IPv6.
        """
        family = socket.AF_INET if self._udp.family == socket.AF_INET else socket.AF_UNSPEC
        try:
            found = await self._loop.getaddrinfo(*address, family=family, type=socket.SOCK_DGRAM)
        except OSError:
            return []
        first: dict[int, SocketAddress] = {}
        for each, _, _, _, (literal, port, *_) in found:
            first.setdefault(each, stun.plain_address((str(literal), int(port))))
        return sorted(first.values(), key=lambda address: address not in self._reflections.answering)
