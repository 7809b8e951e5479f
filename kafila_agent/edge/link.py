"""Everything that decides about the edge to one peer: search, dial, relay, follow, give up. A datagram core.

NEW until someone asks for the edge or the peer dials. PUNCHING: both ends check each other's addresses; the
one with the smaller fingerprint dials the first address that carries a datagram both ways. If none does
within DIRECT_S, both ask for the circuit and bind it, and the circuit is one more address to check; the
direct ones go on being tried until one of the two connects. So the dialler alone chooses, and both ends see
the same path: DIRECT or RELAYED is where the connection's datagrams go. CLOSED comes once for each edge,
with a reason in words; the same link can be asked again.

Afterwards an end that sees the connection's datagrams come from a new address proves that address and
follows. The dialler never follows to the relay while a direct path works, so the two cannot chase each
other.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kafila_proto.relay import HEADER_BYTES as RELAY_HEADER_BYTES

from kafila_agent.edge.binding import CircuitBinding
from kafila_agent.edge.check import Check, PairKey
from kafila_agent.edge.connection import (
    Closed,
    ConnectionIdAdded,
    ConnectionIdRemoved,
    ConnectionState,
    EdgeConnection,
    FrameReceived,
    Opened,
)
from kafila_agent.edge.credential import Identity
from kafila_agent.edge.paths import DATAGRAM_BYTES, MIN_DATAGRAM_BYTES, RELAY, Address, PathReady, Paths
from kafila_agent.edge.quic import is_initial
from kafila_agent.edge.session import EdgeSession

DIRECT_S = 2.5
CONNECT_S = 20.0
ANSWER_S = 1.0  # a handshake unanswered for so long gives way to the relay
_ACCEPT_AGAIN_S = 1.0
_ASK_AGAIN_S = 2.0


class LinkState(enum.StrEnum):
    """How far the edge has come."""

    NEW = "new"
    PUNCHING = "punching"
    DIRECT = "direct"
    RELAYED = "relayed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CircuitNeeded:
    """No direct path so far: ask the rendezvous for a circuit and hand it to ``bind``."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The edge stands, over this path."""

    path: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The edge goes on over another address, direct or relayed."""

    path: str


@dataclass(frozen=True, slots=True)
class AddressKnown:
    """A member that holds the session's key uses this address: a handshake from there is for this link."""

    address: Address


LinkEvent = (
    ConnectionIdAdded
    | ConnectionIdRemoved
    | FrameReceived
    | Closed
    | CircuitNeeded
    | Connected
    | Moved
    | AddressKnown
)


class Link:
    """The core for one peer in one epoch."""

    def __init__(
        self,
        identity: Identity,
        session: EdgeSession,
        peer: bytes,
        *,
        relay_only: bool = False,
        direct_s: float = DIRECT_S,
        sizes: tuple[int, ...] = DATAGRAM_BYTES,
    ):
        self.state = LinkState.NEW
        self.peer = peer
        self.key = PairKey.derive(session.session_id, session.epoch, identity.fingerprint, peer)
        self.dials = identity.fingerprint < peer
        self.connection: EdgeConnection | None = None
        self._identity = identity
        self._session = session
        self._relay_only = relay_only
        self._direct_s = direct_s
        self._direct = Paths(self.key, dials=self.dials, sizes=sizes)
        relayed_sizes = tuple(dict.fromkeys(max(MIN_DATAGRAM_BYTES, s - RELAY_HEADER_BYTES) for s in sizes))
        self._relayed = Paths(self.key, dials=self.dials, sizes=relayed_sizes)
        self._binding: CircuitBinding | None = None
        self._address: Address | None = None
        self._source: Address | None = None
        self._handshake: EdgeConnection | None = None
        self._handshake_address: Address | None = None
        self._handshake_began_at = 0.0
        self._circuit_at: float | None = None
        self._give_up_at: float | None = None
        self._trouble = ""
        self._quic_is_blocked = False
        self._events: deque[LinkEvent] = deque()
        self._farewells: deque[tuple[bytes, Address]] = deque()

    @property
    def rtt_s(self) -> float | None:
        """The edge's smoothed round trip; None before there is one."""
        return None if self.connection is None else self.connection.rtt_s

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self.state in (LinkState.DIRECT, LinkState.RELAYED)

    def connect(self, addresses: Iterable[Address], now: float) -> None:
        """Ask for the edge. Asking again while it is sought adds addresses, and nothing once it stands."""
        if self.state in (LinkState.NEW, LinkState.CLOSED):
            self.state = LinkState.PUNCHING
            self._trouble, self._quic_is_blocked = "", False
            self._circuit_at = now + (0 if self._relay_only else self._direct_s)
            self._give_up_at = now + CONNECT_S
        if self.state is LinkState.PUNCHING and not self._relay_only:
            self._direct.search(addresses, now)

    def bind(self, circuit_id: bytes, key: bytes, now: float) -> None:
        """Use a granted circuit."""
        self._binding = CircuitBinding(circuit_id, key, now)
        if self.state is LinkState.PUNCHING:
            self._relayed.search([RELAY], now)

    def circuit_refused(self, reason: str, now: float) -> None:
        """Go on without a circuit and ask again in a while; the reason is told if nothing else works."""
        if self.state is LinkState.PUNCHING:
            self._trouble = f", and no circuit: {reason}"
            self._circuit_at = now + _ASK_AGAIN_S

    @property
    def circuit_id(self) -> bytes | None:
        """The circuit in use."""
        return None if self._binding is None else self._binding.circuit_id

    def receive_check(self, check: Check, address: Address, now: float) -> None:
        """Take a check whose MAC fits this link's key."""
        if address is not RELAY and self._relay_only:
            return
        if address is not RELAY:
            self._events.append(AddressKnown(address))
        paths = self._relayed if address is RELAY else self._direct
        paths.receive_check(check, address, now, searching=self.state is LinkState.PUNCHING)
        while (ready := paths.next_event()) is not None:
            self._path_ready(ready, now)

    def receive_binding(self, data: bytes, now: float) -> None:
        """Take the rendezvous's answer about the circuit."""
        if self._binding is not None:
            self._binding.receive_datagram(data, now)

    def receive_initial(self, data: bytes, address: Address, now: float) -> None:
        """Take what may begin a handshake, from an address this peer is known to use."""
        if not is_initial(data) or self.dials or (self._relay_only and address is not RELAY):
            return
        if self._handshake is not None and now - self._handshake_began_at < _ACCEPT_AGAIN_S:
            return
        connection = EdgeConnection.accept(self._identity, self._session, self.peer, data, now)
        self._begin_handshake(connection, address, now)
        connection.receive_datagram(data, now)
        self._collect(now)

    def receive_datagram(self, connection_id: bytes, data: bytes, address: Address, now: float) -> None:
        """Take a datagram for a connection id of this link."""
        if self.connection is not None and connection_id in self.connection.connection_ids:
            self.connection.receive_datagram(data, now)
            self._source = address
            if address != self._address:
                self._consider(address, now)
        elif self._handshake is not None:
            self._handshake.receive_datagram(data, now)
        self._collect(now)

    def send_frame(self, frame: bytes | bytearray | memoryview) -> None:
        """Queue a frame. The edge must be open."""
        self.connection.send_frame(frame)

    def close(self, reason: str, now: float) -> None:
        """Give the edge up, telling the peer."""
        for connection in (self.connection, self._handshake):
            if connection is not None:
                connection.close(reason)
        self._collect(now)
        if self.state is LinkState.PUNCHING:
            self._end(reason)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Datagrams, the address each goes to (RELAY: the rendezvous), in order."""
        out = list(self._farewells)
        self._farewells.clear()
        out += self._direct.datagrams_to_send(now)
        if self._binding is not None:
            out += [(data, RELAY) for data in self._binding.datagrams_to_send(now)]
            out += self._wrapped(self._relayed.datagrams_to_send(now))
        for connection, address in (
            (self._handshake, self._handshake_address),
            (self.connection, self._address),
        ):
            if connection is not None:
                out += self._wrapped((data, address) for data in connection.datagrams_to_send(now))
        return out

    def get_timer(self) -> float | None:
        """When ``handle_timer`` must be called, if nothing happens before."""
        cores = (self._direct, self._relayed, self._binding, self.connection, self._handshake)
        times = [core.get_timer() for core in cores if core is not None]
        times += [self._circuit_at, self._give_up_at]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Act on the time."""
        for connection in (self.connection, self._handshake):
            if connection is not None:
                connection.handle_timer(now)
        self._collect(now)
        if self._circuit_at is not None and self._circuit_at <= now:
            self._circuit_at = None
            self._events.append(CircuitNeeded())
        if self._give_up_at is not None and self._give_up_at <= now:
            self.close(f"no path to this member within {CONNECT_S:.0f} s{self._trouble}", now)

    def next_event(self) -> LinkEvent | None:
        """The next thing that happened."""
        return self._events.popleft() if self._events else None

    def _wrapped(self, datagrams: Iterable[tuple[bytes, Address]]) -> Iterator[tuple[bytes, Address]]:
        for data, address in datagrams:
            yield (self._binding.wrap(data) if address is RELAY else data), address

    def _path_ready(self, ready: PathReady, now: float) -> None:
        if self.is_open:
            self._follow(ready)
        elif self.state is LinkState.PUNCHING and self.dials and self._is_worth_dialling(ready.address, now):
            connection = EdgeConnection.dial(
                self._identity, self._session, self.peer, ready.datagram_bytes, now
            )
            self._begin_handshake(connection, ready.address, now)

    def _is_worth_dialling(self, address: Address, now: float) -> bool:
        """Whether a path that just became ready beats the handshake under way, if there is one."""
        if address is not RELAY:
            return not self._quic_is_blocked and (self._handshake is None or self._handshake_address is RELAY)
        if self._handshake is None:
            return True
        unanswered = self._handshake.state is ConnectionState.HANDSHAKE
        return unanswered and now - self._handshake_began_at > ANSWER_S

    def _begin_handshake(self, connection: EdgeConnection, address: Address, now: float) -> None:
        if self._handshake is not None:
            self._quic_is_blocked = self.dials and address is RELAY
            self._handshake.close("another handshake took its place")
            self._drop(self._handshake, self._handshake_address, now)
        self._handshake, self._handshake_address, self._handshake_began_at = connection, address, now
        self._collect(now)

    def _consider(self, address: Address, now: float) -> None:
        if address is RELAY:
            if not (self.dials and self.state is LinkState.DIRECT):
                self._relayed.suspect(address, self.connection.datagram_bytes, now)
        elif not self._relay_only:
            self._direct.suspect(address, self.connection.datagram_bytes, now)

    def _follow(self, ready: PathReady) -> None:
        """Send where the peer last sent from, or on a direct path instead of the relay."""
        improves = self.state is LinkState.RELAYED and self.dials and not self._quic_is_blocked
        if ready.address == self._address or not (improves or ready.address == self._source):
            return
        if ready.datagram_bytes >= self.connection.datagram_bytes:
            self._settle(ready.address)
            self._events.append(Moved(self.state.value))

    def _settle(self, address: Address) -> None:
        self._address = address
        self.state = LinkState.RELAYED if address is RELAY else LinkState.DIRECT
        if self.state is LinkState.RELAYED:
            self._direct.relax()
            return
        self._direct.stop()
        self._relayed.stop()
        if self._binding is not None:
            self._binding.release()

    def _collect(self, now: float) -> None:
        while self._handshake is not None and (event := self._handshake.next_event()) is not None:
            match event:
                case Opened():
                    self._adopt(now)
                case Closed():
                    self._handshake_failed(event, now)
                case _:
                    self._events.append(event)
        while self.connection is not None and (event := self.connection.next_event()) is not None:
            if isinstance(event, Closed):
                self._lose(event.reason, now)
            else:
                self._events.append(event)

    def _adopt(self, now: float) -> None:
        """The handshake's connection becomes the edge's."""
        if self.connection is not None:
            self.connection.close("the peer opened the edge anew")
            self._lose("the peer opened the edge anew", now)
        self.connection, self._handshake = self._handshake, None
        self._source = self._handshake_address
        self._circuit_at = self._give_up_at = None
        self._settle(self._handshake_address)
        self._events.append(Connected(self.state.value))

    def _handshake_failed(self, failure: Closed, now: float) -> None:
        address, relayed = self._handshake_address, self._handshake_address is RELAY
        self._drop(self._handshake, address, now)
        self._handshake = None
        self._trouble = f"; the last attempt: {failure.reason}"
        if not self.dials or self.state is not LinkState.PUNCHING:
            return
        if failure.began or relayed:
            self._end(failure.reason)
        else:  # checks pass there and QUIC does not: leave the direct paths
            self._quic_is_blocked = True
            self._direct.stop()
            self._relayed.stop()
            if self._binding is None:
                self._circuit_at = now
            else:
                self._relayed.search([RELAY], now)

    def _lose(self, reason: str, now: float) -> None:
        self._drop(self.connection, self._address, now)
        self.connection = self._address = self._source = None
        self._end(reason)

    def _end(self, reason: str) -> None:
        self.state = LinkState.CLOSED
        self._circuit_at = self._give_up_at = None
        self._direct.stop()
        self._relayed.stop()
        self._binding = None
        self._events.append(Closed(reason, True))

    def _drop(self, connection: EdgeConnection, address: Address, now: float) -> None:
        self._farewells += self._wrapped((data, address) for data in connection.datagrams_to_send(now))
        for connection_id in connection.connection_ids:
            self._events.append(ConnectionIdRemoved(connection_id))
