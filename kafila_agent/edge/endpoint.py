"""One UDP socket for everything an agent says to other members: STUN, checks, circuits and QUIC.

The shell beside ``link.py``: it reads the socket until it is empty, tells the datagrams apart, lets the
link they are for decide, and sends what it answers. A NAT mapping belongs to a socket, so there is only
this one.

    first two bits x1    QUIC, for the link that has its connection id; an Initial, for the member there
    0x9b 'k' 'c'         a check, for the link whose pair id it carries
    0x9b 'k' 'r'         a circuit, for the link that has it bound; inside, one of the two above
    00 and the cookie    STUN
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
from kafila_proto import relay, stun
from kafila_proto.udp_socket import drain, open_udp_socket, send

from kafila_agent.edge.candidate import (
    Candidate,
    CandidateKind,
    candidate_addresses,
    choose_hosts,
    interface_hosts,
)
from kafila_agent.edge.check import is_check
from kafila_agent.edge.connection import Closed, ConnectionIdAdded, ConnectionIdRemoved, FrameReceived
from kafila_agent.edge.credential import Identity
from kafila_agent.edge.edge import Edge, EdgeError, Payload
from kafila_agent.edge.link import DIRECT_S, AddressKnown, CircuitNeeded, Connected, Link, Moved
from kafila_agent.edge.paths import DATAGRAM_BYTES, RELAY, Address
from kafila_agent.edge.quic import destination_connection_id
from kafila_agent.edge.reflection import Reflections
from kafila_agent.edge.session import EdgeSession

log = structlog.get_logger()

SocketAddress = tuple[str, int]

_ANY_IPV4 = "0.0.0.0"  # noqa: S104  members reach an agent on whatever interface they share with it


class CircuitGrant(Protocol):
    """What the rendezvous grants: see rendezvous.proto."""

    circuit_id: bytes
    key: bytes


RequestCircuit = Callable[[bytes], Awaitable[CircuitGrant]]


class _Neighbour:
    """A link and what the shell keeps beside it."""

    def __init__(self, link: Link, name: str):
        self.link = link
        self.name = name
        self.edge: Edge | None = None
        self.sought: asyncio.Future[Edge] | None = None
        self.request_circuit: RequestCircuit | None = None
        self.relay_address: SocketAddress | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.circuit_task: asyncio.Task | None = None
        self.is_pumped = False


class EdgeEndpoint:
    """The agent's end of all its edges. Made by ``open``; used from the event loop alone."""

    def __init__(
        self,
        identity: Identity,
        udp: socket.socket,
        *,
        relay_only: bool = False,
        direct_s: float = DIRECT_S,
        datagram_bytes: tuple[int, ...] = DATAGRAM_BYTES,
    ):
        self.ignored_datagrams = 0
        self.unsent_datagrams = 0
        self._identity = identity
        self._udp = udp
        self._relay_only = relay_only
        self._direct_s = direct_s
        self._sizes = datagram_bytes
        self._loop = asyncio.get_running_loop()
        self._session: EdgeSession | None = None
        self._neighbours: dict[bytes, _Neighbour] = {}
        self._by_pair: dict[bytes, _Neighbour] = {}
        self._by_connection_id: dict[bytes, _Neighbour] = {}
        self._by_address: dict[SocketAddress, _Neighbour] = {}
        self._by_circuit: dict[bytes, _Neighbour] = {}
        self._reflections = Reflections(self._send)
        self._loop.add_reader(udp, self._receive)

    @classmethod
    def open(cls, identity: Identity, host: str = "::", port: int = 0, **options) -> EdgeEndpoint:
        """Bind one socket: "::" for IPv6 and IPv4 together, any other literal address for itself.

        ``relay_only`` uses no direct path; ``direct_s`` is how long one is sought before the relay is asked;
        ``datagram_bytes`` are the UDP payloads tried. Raises OSError naming an address that cannot be bound.
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
        return self._udp.getsockname()[:2]

    @property
    def edges(self) -> list[Edge]:
        """The edges that stand."""
        return [n.edge for n in self._neighbours.values() if n.edge is not None]

    async def candidates(self, reflector: SocketAddress | None = None) -> list[Candidate]:
        """Where peers may reach this socket: its own addresses, and where ``reflector`` sees it from."""
        host, port = self.local_address
        seen_by = await self._resolve(reflector) if reflector is not None else []
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
        for address in await self._resolve(reflector):
            mapped = await self._reflections.reflect(address)
            if mapped is not None:
                return mapped
        return None

    async def measure_rtt_s(self, reflector: SocketAddress) -> float | None:
        """The median round trip to ``reflector`` in seconds; None if it does not answer."""
        for address in await self._resolve(reflector):
            rtt_s = await self._reflections.measure_rtt_s(address)
            if rtt_s is not None:
                return rtt_s
        return None

    def enter(self, session: EdgeSession) -> None:
        """Belong to one epoch of a session, and to nothing before it: older edges are closed.

        From now on the members of the roster, and nobody else, get answers from this socket.
        """
        self.leave("a new plan is in force")
        self._session = session
        for fingerprint, name in session.roster.items():
            if fingerprint != self._identity.fingerprint:
                link = Link(
                    self._identity,
                    session,
                    fingerprint,
                    relay_only=self._relay_only,
                    direct_s=self._direct_s,
                    sizes=self._sizes,
                )
                neighbour = self._neighbours[fingerprint] = _Neighbour(link, name)
                self._by_pair[link.key.pair_id] = neighbour

    def leave(self, reason: str = "left the session") -> None:
        """Close every edge, telling the peers ``reason``; ``on_closed`` is not called for them here."""
        now = self._loop.time()
        for neighbour in self._neighbours.values():
            edge, neighbour.edge = neighbour.edge, None
            if edge is not None:
                edge.end(reason, lost=False)
            neighbour.link.close(reason, now)
            self._pump(neighbour)
            if neighbour.timer is not None:
                neighbour.timer.cancel()
            if neighbour.circuit_task is not None:
                neighbour.circuit_task.cancel()
        for index in (
            self._neighbours,
            self._by_pair,
            self._by_connection_id,
            self._by_address,
            self._by_circuit,
        ):
            index.clear()
        self._session = None

    async def connect(
        self,
        peer_fingerprint: bytes,
        candidates: Iterable[Candidate],
        request_circuit: RequestCircuit | None = None,
        relay_address: SocketAddress | None = None,
    ) -> Edge:
        """The edge to a member, whoever of the two dials; the same one for every call while it stands.

        Called on both sides. Raises EdgeError saying why there is none.
        """
        neighbour = self._neighbours.get(peer_fingerprint)
        if neighbour is None:
            raise EdgeError("no such member in the session's roster; enter the session first")
        if relay_address is not None and neighbour.relay_address is None:
            resolved = await self._resolve(relay_address)
            neighbour.relay_address = resolved[0] if resolved else None
        if neighbour.edge is not None:
            return neighbour.edge
        if request_circuit is not None:
            neighbour.request_circuit = request_circuit
        if neighbour.sought is None:
            neighbour.sought = self._loop.create_future()
        sought = neighbour.sought
        addresses = [address for address in candidate_addresses(candidates) if self._can_send(address[0])]
        neighbour.link.connect(addresses, self._loop.time())
        self._pump(neighbour)
        return await asyncio.shield(sought)

    async def close(self) -> None:
        """Leave, and close the socket."""
        self.leave("the agent stops")
        self._loop.remove_reader(self._udp)
        self._udp.close()

    # Datagrams in

    def _receive(self) -> None:
        now = self._loop.time()
        touched: dict[_Neighbour, None] = {}
        for data, source in drain(self._udp):
            neighbour = self._take(data, stun.plain_address(source), now)
            if neighbour is None:
                self.ignored_datagrams += 1
            else:
                touched[neighbour] = None
        for neighbour in touched:
            self._pump(neighbour)

    def _take(self, data: bytes, source: SocketAddress, now: float) -> _Neighbour | None:
        """The neighbour that ``data`` was for, if it was for one."""
        if stun.is_stun(data):
            self._reflections.receive_datagram(data, source)
            return None
        if not relay.is_relay(data):
            return self._take_inner(data, source, source, now)
        neighbour = self._by_circuit.get(data[4 : relay.HEADER_BYTES])
        if neighbour is None or neighbour.relay_address != source:
            return None
        if data[3] != relay.RelayKind.DATA:
            neighbour.link.receive_binding(data, now)
            return neighbour
        inner = self._take_inner(data[relay.HEADER_BYTES :], RELAY, neighbour, now)
        return inner if inner is neighbour else None

    def _take_inner(
        self, data: bytes, address: Address, came_by: _Neighbour | SocketAddress, now: float
    ) -> _Neighbour | None:
        if is_check(data):
            neighbour = self._by_pair.get(data[4:12])
            check = None if neighbour is None else neighbour.link.key.parse(data)
            if check is None or (address is RELAY and neighbour is not came_by):
                return None
            neighbour.link.receive_check(check, address, now)
            return neighbour
        if not data or not data[0] & 0x40:
            return None
        connection_id = destination_connection_id(data)
        neighbour = self._by_connection_id.get(connection_id)
        if neighbour is not None:
            if address is RELAY and neighbour is not came_by:
                return None
            neighbour.link.receive_datagram(connection_id, data, address, now)
            return neighbour
        neighbour = came_by if address is RELAY else self._by_address.get(address)
        if neighbour is None:
            return None
        neighbour.link.receive_initial(data, address, now)
        return neighbour

    # Events and datagrams out

    def _pump(self, neighbour: _Neighbour) -> None:
        """Hand on what a link has to tell, send what it has to send, and set its timer."""
        if neighbour.is_pumped:
            return  # a callback below sent something: the loop sees to it
        neighbour.is_pumped = True
        link, now = neighbour.link, self._loop.time()
        try:
            while (event := link.next_event()) is not None:
                self._take_event(neighbour, event)
            for data, address in link.datagrams_to_send(now):
                self._send(data, neighbour.relay_address if address is RELAY else address)
        finally:
            neighbour.is_pumped = False
        if neighbour.edge is not None:
            neighbour.edge.rtt_s = link.connection.rtt_s
        self._set_timer(neighbour, link.get_timer())

    def _take_event(self, neighbour: _Neighbour, event: object) -> None:
        match event:
            case FrameReceived():
                if neighbour.edge is not None:
                    neighbour.edge.deliver(event.frame)
            case ConnectionIdAdded():
                self._by_connection_id[event.connection_id] = neighbour
            case ConnectionIdRemoved():
                self._by_connection_id.pop(event.connection_id, None)
            case AddressKnown():
                self._by_address[event.address] = neighbour
            case Connected():
                self._connected(neighbour, event.path)
            case Moved():
                neighbour.edge.path = event.path
                log.info("edge moved", peer=neighbour.name, path=event.path)
            case CircuitNeeded():
                self._need_circuit(neighbour)
            case Closed():
                self._closed(neighbour, event.reason)

    def _connected(self, neighbour: _Neighbour, path: str) -> None:
        def send_frame(frame: Payload) -> None:
            neighbour.link.send_frame(frame)
            self._pump(neighbour)

        neighbour.edge = Edge(neighbour.name, neighbour.link.peer, path, send_frame)
        log.info("edge open", peer=neighbour.name, path=path)
        sought, neighbour.sought = neighbour.sought, None
        if sought is not None and not sought.done():
            sought.set_result(neighbour.edge)

    def _closed(self, neighbour: _Neighbour, reason: str) -> None:
        edge, neighbour.edge = neighbour.edge, None
        sought, neighbour.sought = neighbour.sought, None
        log.info("edge closed", peer=neighbour.name, reason=reason)
        if sought is not None and not sought.done():
            sought.set_exception(EdgeError(f"no edge to {neighbour.name}: {reason}"))
            sought.exception()  # whoever asked may have gone away
        if edge is not None:
            edge.end(reason, lost=True)

    def _need_circuit(self, neighbour: _Neighbour) -> None:
        if neighbour.request_circuit is None or neighbour.relay_address is None:
            neighbour.link.circuit_refused("no rendezvous to relay")
        elif neighbour.circuit_task is None or neighbour.circuit_task.done():
            neighbour.circuit_task = self._loop.create_task(self._bind_circuit(neighbour))

    async def _bind_circuit(self, neighbour: _Neighbour) -> None:
        try:
            grant = await neighbour.request_circuit(neighbour.link.peer)
        except Exception as error:  # whatever the control plane's link raises, the edge tells it
            neighbour.link.circuit_refused(str(error) or type(error).__name__)
            return
        self._by_circuit[grant.circuit_id] = neighbour
        neighbour.link.bind(grant.circuit_id, grant.key, self._loop.time())
        self._pump(neighbour)

    def _set_timer(self, neighbour: _Neighbour, when: float | None) -> None:
        timer = neighbour.timer
        if timer is not None and (when is None or timer.when() > when or timer.when() <= self._loop.time()):
            timer.cancel()
            timer = neighbour.timer = None
        if timer is None and when is not None:
            neighbour.timer = self._loop.call_at(when, self._timer_fired, neighbour)

    def _timer_fired(self, neighbour: _Neighbour) -> None:
        neighbour.timer = None
        neighbour.link.handle_timer(self._loop.time())
        self._pump(neighbour)

    def _send(self, data: bytes, address: SocketAddress | None) -> None:
        if address is None or not send(self._udp, data, self._socket_address(address)):
            self.unsent_datagrams += 1

    def _socket_address(self, address: SocketAddress) -> SocketAddress:
        if self._udp.family == socket.AF_INET6 and ":" not in address[0]:
            return f"::ffff:{address[0]}", address[1]
        return address

    def _can_send(self, host: str) -> bool:
        return self._udp.family == socket.AF_INET6 or ":" not in host

    async def _resolve(self, address: SocketAddress) -> list[SocketAddress]:
        """The literal addresses of a host this socket can send to, one of each family."""
        family = socket.AF_INET if self._udp.family == socket.AF_INET else socket.AF_UNSPEC
        try:
            found = await self._loop.getaddrinfo(*address, family=family, type=socket.SOCK_DGRAM)
        except OSError:
            return []
        first: dict[int, SocketAddress] = {}
        for each, _, _, _, resolved in found:
            first.setdefault(each, stun.plain_address(resolved[:2]))
        return list(first.values())
