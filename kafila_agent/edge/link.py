"""Everything that decides about the edge to one peer: search, dial, relay, follow, give up. A datagram core.

NEW until someone asks for the edge or the peer dials. PUNCHING: both ends check each other's addresses; the
one with the smaller fingerprint dials the first address that carries a datagram both ways. If none does
within DIRECT_S, the circuit (``relay_way.py``) is one more address to check; the direct ones go on being tried
until one of the two connects. So the dialler alone chooses, and both ends see the same path: DIRECT or
RELAYED is where the connection's datagrams go. CLOSED comes once for each edge, with a reason in words; the same
link can be asked again.

Afterwards ``carried.py`` says when the edge takes another path. Beside a direct edge the circuit stays bound at both
ends, so that the edge can go on over it as soon as either hears nothing: a member may have changed networks, and have
lost the rendezvous's other half as well. Whenever an edge is relayed or has moved, each end tells the other, over the
edge itself, where it can be reached now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kafila_agent.edge import fast_quic
from kafila_agent.edge.carried import SILENCE_S, Carried
from kafila_agent.edge.check import Check, CheckKind, PairKey
from kafila_agent.edge.connection import ConnectionState, EdgeConnection
from kafila_agent.edge.credential import Identity
from kafila_agent.edge.events import (
    AddressesNeeded,
    AddressesReceived,
    AddressKnown,
    CircuitNeeded,
    Closed,
    Connected,
    ConnectionIdAdded,
    ConnectionIdRemoved,
    LinkEvent,
    Moved,
    Opened,
)
from kafila_agent.edge.paths import (
    DATAGRAM_BYTES,
    IDLE_DELAY_S,
    MIN_DATAGRAM_BYTES,
    RELAXED_DELAY_S,
    RELAY,
    Address,
    PathMeasured,
    PathReady,
    Paths,
)
from kafila_agent.edge.quic import destination_connection_id, is_initial
from kafila_agent.edge.relay_way import RelayUse, RelayWay
from kafila_agent.edge.session import EdgeSession
from kafila_agent.edge.state import SOUGHT, LinkState
from kafila_proto.relay import HEADER_BYTES as RELAY_HEADER_BYTES

DIRECT_S = 2.0
CONNECT_S = 30.0
ANSWER_S = 1.0  # a handshake unanswered for so long gives way to the relay
_ACCEPT_AGAIN_S = 1.0
_TELL_EVERY_S = 15.0  # where we can be reached, while relayed: routers reboot, leases end


class Link:
    """The core for one peer in one epoch."""

    def __init__(
        self,
        identity: Identity,
        session: EdgeSession,
        peer: bytes,
        *,
        relay_only: bool = False,
        fast_core: bool = fast_quic.IS_INSTALLED,
        direct_s: float = DIRECT_S,
        sizes: tuple[int, ...] = DATAGRAM_BYTES,
    ):
        self.state = LinkState.NEW
        self.peer = peer
        self.key = PairKey.derive(session.session_id, session.epoch, identity.fingerprint, peer)
        self.dials = identity.fingerprint < peer
        self._identity = identity
        self._session = session
        self._relay_only = relay_only
        self._fast_core = fast_core
        self._direct_s = direct_s
        # Room for the relay's header on direct paths too: an edge can then go on over either.
        sizes = tuple(dict.fromkeys(max(MIN_DATAGRAM_BYTES, size - RELAY_HEADER_BYTES) for size in sizes))
        self._direct = Paths(self.key, dials=self.dials, sizes=sizes)
        self._relay = RelayWay(self.key, dials=self.dials, sizes=sizes)
        self._edge: Carried | None = None
        self._handshake: Carried | None = None
        self._relay_at: float | None = None  # when the circuit is wanted, if nothing is heard by then
        self._give_up_at: float | None = None
        self._tell_at: float | None = None
        self._trouble = ""
        self._quic_is_blocked = False
        self._events: deque[LinkEvent] = deque()
        self._farewells: list[tuple[bytes, Address]] = []

    @property
    def connection(self) -> EdgeConnection | None:
        """The edge's connection, while it stands."""
        return None if self._edge is None else self._edge.connection

    @property
    def address(self) -> Address | None:
        """Where the edge's datagrams go, while it stands."""
        return None if self._edge is None else self._edge.address

    def connect(self, addresses: Iterable[Address], now: float, *, relay_at_once: bool = False) -> None:
        """Ask for the edge. Asking again while it is sought adds addresses, and nothing once it stands.

        ``relay_at_once``: no direct path is expected, so the circuit need not wait for one to fail.
        """
        if self.state in (LinkState.NEW, LinkState.CLOSED):
            self.state = LinkState.PUNCHING
            self._trouble, self._quic_is_blocked = "", False
            self._relay_at = now + (0 if self._relay_only or relay_at_once else self._direct_s)
            self._relay.spare(now)
            self._give_up_at = now + CONNECT_S
        if self.state is LinkState.PUNCHING and not self._relay_only:
            self._direct.search(addresses, now)

    def bind(self, circuit_id: bytes, key: bytes, now: float) -> None:
        """Use a granted circuit, whichever end asked for it."""
        self._relay.bind(circuit_id, key, now)

    def circuit_refused(self, reason: str) -> None:
        """Go on without a circuit; it is asked for again. The reason is told if nothing else works."""
        if self.state is LinkState.PUNCHING:
            self._trouble = f", and no circuit: {reason}"

    def tell_addresses(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Let the peer know where this end can be reached."""
        if self._edge is not None:
            self._edge.connection.send_addresses(addresses)

    def receive_check(self, check: Check, address: Address, now: float) -> None:
        """Take a check whose MAC fits this link's key."""
        if not self._may_use(address):
            return
        if address is not RELAY:
            self._events.append(AddressKnown(address))
        paths = self._paths(address)
        if address is RELAY:
            if self._is_missed(check, now):
                self._relay.want(now)
            searching = self._relay.use is RelayUse.WANTED
        else:
            searching = self.state in SOUGHT
        paths.receive_check(check, address, now, searching=searching)
        while (path := paths.next_event()) is not None:
            self._path_found(path, now)

    def receive_binding(self, data: bytes, now: float) -> None:
        """Take the rendezvous's answer about the circuit."""
        self._relay.receive_datagram(data, now)

    def receive_initial(self, data: bytes, address: Address, now: float) -> None:
        """Take what may begin a handshake, from an address this peer is known to use."""
        if self.dials or not is_initial(data) or not self._may_use(address):
            return
        under_way = self._handshake
        if under_way is not None and now - under_way.began_at < _ACCEPT_AGAIN_S:
            if destination_connection_id(data) in under_way.connection.connection_ids:
                under_way.connection.receive_datagram(data, now)  # a hello may take two datagrams
                self._collect(now)
            return
        connection = EdgeConnection.accept(
            self._identity, self._session, self.peer, data, now, fast=self._is_fast(address)
        )
        self._begin_handshake(connection, address, now)
        connection.receive_datagram(data, now)
        self._collect(now)

    def receive_datagram(self, connection_id: bytes, data: bytes, address: Address, now: float) -> None:
        """Take a datagram for a connection id of this link."""
        if not self._may_use(address):
            return
        edge = self._edge
        if edge is not None and connection_id in edge.connection.connection_ids:
            edge.connection.receive_datagram(data, now)
            edge.hear(len(data), address, now)
            if self.state is LinkState.DIRECT and address == edge.address:
                self._relay_at = now + SILENCE_S
                if self._relay.use is RelayUse.WANTED and not edge.is_missed(now):
                    self._relay.spare(now)
            if edge.is_followed(self.dials, now):
                self._paths(address).suspect(address, edge.connection.datagram_bytes, now)
        elif self._handshake is not None:
            self._handshake.connection.receive_datagram(data, now)
        self._collect(now)

    def send_frame(self, frame: bytes | bytearray | memoryview) -> None:
        """Queue a frame; without an edge there is nowhere to send it."""
        if self._edge is not None:
            self._edge.connection.send_frame(frame)

    def close(self, reason: str, now: float) -> None:
        """Give the edge up, telling the peer."""
        for carried in (self._edge, self._handshake):
            if carried is not None:
                carried.connection.close(reason)
        self._collect(now)
        if self.state is LinkState.PUNCHING:
            self._end(reason)

    def send_datagrams(self, now: float, send: Callable[[bytes, Address], object]) -> None:
        """Hand ``send`` the datagrams that must go out now, in order, and where each goes (RELAY: the rendezvous)."""
        farewells, self._farewells = self._farewells, []
        for data, address in farewells:
            send(data, address)
        for carried in (self._edge, self._handshake):  # first, for a stage may wait for it
            if carried is not None:
                carried.connection.send_datagrams(now, self._sender(carried, send))
        for data, address in self._direct.datagrams_to_send(now):
            send(data, address)
        for data in self._relay.datagrams_to_send(now):
            send(data, RELAY)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` must be called, if nothing happens before."""
        times = [self._direct.get_timer(), self._relay.get_timer()]
        times += [self._relay_at, self._give_up_at, self._tell_at]
        times += [c.connection.get_timer() for c in (self._edge, self._handshake) if c is not None]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Act on the time."""
        for carried in (self._edge, self._handshake):
            if carried is not None:
                carried.connection.handle_timer(now)
        self._collect(now)
        if self._relay_at is not None and self._relay_at <= now:
            self._relay_at = None
            self._relay.want(now)
        if self._relay.handle_timer(now):
            self._events.append(CircuitNeeded())
        if self._tell_at is not None and self._tell_at <= now:
            self._tell_at = now + _TELL_EVERY_S if self.state is LinkState.RELAYED else None
            self._events.append(AddressesNeeded())
        if self._give_up_at is not None and self._give_up_at <= now:
            self.close(f"no path to this member within {CONNECT_S:.0f} s{self._trouble}", now)

    def next_event(self) -> LinkEvent | None:
        """The next thing that happened."""
        return self._events.popleft() if self._events else None

    # Paths

    def _may_use(self, address: Address) -> bool:
        return self._relay.is_there if address is RELAY else not self._relay_only

    def _paths(self, address: Address) -> Paths:
        return self._relay.paths if address is RELAY else self._direct

    def _sender(
        self, carried: Carried, send: Callable[[bytes, Address], object]
    ) -> Callable[[bytes], object]:
        """``send`` for the datagrams of a connection."""
        address = carried.address
        if address is RELAY:
            return lambda data: send(self._relay.wrap(data), RELAY)
        return lambda data: send(data, address)

    def _path_found(self, path: PathReady | PathMeasured, now: float) -> None:
        if self._edge is not None:
            self._weigh(self._edge, path, now)
        elif self.state is LinkState.PUNCHING and self.dials and self._is_worth_dialling(path.address, now):
            connection = EdgeConnection.dial(
                *(self._identity, self._session, self.peer, path.datagram_bytes, now),
                fast=self._is_fast(path.address),
            )
            self._begin_handshake(connection, path.address, now)

    def _is_fast(self, address: Address) -> bool:
        return self._fast_core and fast_quic.is_near(address)

    def _is_worth_dialling(self, address: Address, now: float) -> bool:
        """Whether a path that just became ready beats the handshake under way, if there is one."""
        current = self._handshake
        if address is not RELAY:
            return not self._quic_is_blocked and (current is None or current.address is RELAY)
        if current is None:
            return True
        is_answered = current.connection.state is not ConnectionState.HANDSHAKE
        return not is_answered and now - current.began_at > ANSWER_S

    def _is_missed(self, check: Check, now: float) -> bool:
        """Whether the peer, as its check of the circuit shows, hears nothing over the path that we hear it by."""
        is_asked = check.kind is CheckKind.REQUEST and check.from_dialer is not self.dials
        if self.state is not LinkState.DIRECT or self._edge is None or not is_asked:
            return False
        return self._edge.miss(now)

    def _weigh(self, edge: Carried, path: PathReady | PathMeasured, now: float) -> None:
        """Take another path, if that is better."""
        if path.address == edge.address:
            edge.measure(path)
        if path.address is not RELAY and self._quic_is_blocked:
            return
        if edge.should_take(path, chooses=self.dials, now=now):
            edge.move(path, now)
            self._settle(edge, now)
            self._tell_at = now
            self._events.append(Moved(self.state.value))

    def _settle(self, edge: Carried, now: float) -> None:
        """Keep what the path in use needs, and let go of the rest."""
        if edge.address is RELAY:
            self.state, self._relay_at = LinkState.RELAYED, None
            self._relay.carry(now)
            self._tell_at = None if self._relay_only else now
            self._direct.relax(RELAXED_DELAY_S)
            self._direct.search_again(now)
        else:
            self.state, self._relay_at = LinkState.DIRECT, now + SILENCE_S
            self._direct.relax(IDLE_DELAY_S)
            self._relay.spare(now)

    # Connections

    def _begin_handshake(self, connection: EdgeConnection, address: Address, now: float) -> None:
        if self._handshake is not None:
            self._quic_is_blocked = self.dials and address is RELAY
            self._handshake.connection.close("another handshake took its place")
            self._drop(self._handshake, now)
        self._handshake = Carried(connection, address, now, address, now)
        self._collect(now)

    def _collect(self, now: float) -> None:
        while self._handshake is not None:
            match self._handshake.connection.next_event():
                case None:
                    break
                case Opened():
                    self._adopt(self._handshake, now)
                case Closed() as failure:
                    self._handshake_failed(self._handshake, failure, now)
                case ConnectionIdAdded() | ConnectionIdRemoved() as named:
                    self._events.append(named)
        while self._edge is not None:
            match self._edge.connection.next_event():
                case None:
                    break
                case Closed() as loss:
                    self._drop(self._edge, now)
                    self._edge = None
                    self._end(loss.reason)
                case AddressesReceived() as told:
                    self._direct.search(told.addresses if not self._relay_only else (), now)
                case Opened():
                    raise AssertionError("a connection opens once")
                case event:
                    self._events.append(event)

    def _adopt(self, handshake: Carried, now: float) -> None:
        """The handshake's connection becomes the edge's."""
        if self._edge is not None:
            self._edge.connection.close("the peer opened the edge anew")
            self._drop(self._edge, now)
            self._events.append(Closed("the peer opened the edge anew", True))
        self._edge, self._handshake = handshake, None
        self._give_up_at = None
        self._settle(handshake, now)
        self._events.append(Connected(self.state.value))

    def _handshake_failed(self, handshake: Carried, failure: Closed, now: float) -> None:
        self._drop(handshake, now)
        self._handshake = None
        self._trouble = f"; the last attempt: {failure.reason}"
        if not self.dials or self.state is not LinkState.PUNCHING:
            return
        if failure.began or handshake.address is RELAY:
            self._end(failure.reason)
            return
        # Checks pass there and QUIC does not: leave the direct paths.
        self._quic_is_blocked = True
        self._direct.stop()
        self._relay.paths.stop()
        self._relay.want(now)

    def _end(self, reason: str) -> None:
        self.state = LinkState.CLOSED
        self._relay_at = self._give_up_at = self._tell_at = None
        self._direct.stop()
        self._relay.end()
        self._events.append(Closed(reason, True))

    def _bid_farewell(self, data: bytes, address: Address) -> None:
        self._farewells.append((data, address))

    def _drop(self, carried: Carried, now: float) -> None:
        """Let go of a connection, once what it still has to say is said."""
        carried.connection.send_datagrams(now, self._sender(carried, self._bid_farewell))
        for connection_id in carried.connection.connection_ids:
            self._events.append(ConnectionIdRemoved(connection_id))
