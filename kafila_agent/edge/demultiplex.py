"""Whose a datagram is: one socket, many links. Keeps the indexes; knows no socket.

    first two bits x1    QUIC, for the link that has its connection id; an Initial, for the member there
    0x9b 'k' 'c'         a check, for the link whose pair id it carries
    0x9b 'k' 'r'         a circuit, for the link that has it bound; inside, one of the two above
    00 and the cookie    STUN: not for a link

A connection id finds its link from whatever address, so a changed address loses nothing; what comes through a
circuit can only be for the link whose circuit it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafila_agent.edge.check import is_check
from kafila_agent.edge.events import AddressKnown, ConnectionIdAdded, ConnectionIdRemoved
from kafila_agent.edge.link import Link
from kafila_agent.edge.paths import RELAY, Address
from kafila_agent.edge.quic import destination_connection_id
from kafila_proto import relay

MAX_ADDRESSES = 4096


@dataclass(slots=True)
class Demultiplexer:
    """The links of one session, by all that a datagram may name them with."""

    _by_pair: dict[bytes, Link] = field(default_factory=dict)
    _by_connection_id: dict[bytes, Link] = field(default_factory=dict)
    _by_address: dict[Address, Link] = field(default_factory=dict)
    _by_circuit: dict[bytes, tuple[Link, tuple[str, int]]] = field(default_factory=dict)

    def add(self, link: Link) -> None:
        """Let the peer of ``link`` be heard."""
        self._by_pair[link.key.pair_id] = link

    def add_circuit(self, circuit_id: bytes, link: Link, relay_address: tuple[str, int]) -> None:
        """Take what ``relay_address`` sends over a circuit as ``link``'s, and over no earlier one."""
        self._by_circuit = {key: way for key, way in self._by_circuit.items() if way[0] is not link}
        self._by_circuit[circuit_id] = link, relay_address

    def clear(self) -> None:
        """Hear nobody any more."""
        for index in (self._by_pair, self._by_connection_id, self._by_address, self._by_circuit):
            index.clear()

    def take_event(self, link: Link, event: object) -> bool:
        """Whether ``event`` was one that tells how ``link`` may be named."""
        match event:
            case ConnectionIdAdded():
                self._by_connection_id[event.connection_id] = link
            case ConnectionIdRemoved():
                self._by_connection_id.pop(event.connection_id, None)
            case AddressKnown():
                if len(self._by_address) >= MAX_ADDRESSES:
                    self._by_address.clear()  # checks go on coming from those in use
                self._by_address[event.address] = link
            case _:
                return False
        return True

    def receive_datagram(self, data: bytes, source: tuple[str, int], now: float) -> Link | None:
        """Hand ``data`` to the link it is for; None if it is for none."""
        if not relay.is_relay(data):
            return self._receive(data, source, self._by_address.get(source), None, now)
        link, relay_address = self._by_circuit.get(data[4 : relay.HEADER_BYTES], (None, None))
        if link is None or relay_address != source:
            return None
        if data[3] == relay.RelayKind.DATA:
            return self._receive(data[relay.HEADER_BYTES :], RELAY, link, link, now)
        link.receive_binding(data, now)
        return link

    def _receive(
        self, data: bytes, address: Address, at_address: Link | None, only: Link | None, now: float
    ) -> Link | None:
        """``at_address``: whose address it came from; ``only``: the one link it may be for, if there is one."""
        if is_check(data):
            link = self._by_pair.get(data[4:12])
            check = None if link is None else link.key.parse(data)
            if link is None or check is None or only not in (None, link):
                return None
            link.receive_check(check, address, now)
            return link
        connection_id = destination_connection_id(data)
        if connection_id is None:
            return None
        link = self._by_connection_id.get(connection_id)
        if link is not None:
            if only not in (None, link):
                return None
            link.receive_datagram(connection_id, data, address, now)
        elif at_address is not None:
            link = at_address
            link.receive_initial(data, address, now)
        return link
