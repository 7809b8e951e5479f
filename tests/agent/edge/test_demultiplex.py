from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.check import CheckKind
from kafila_agent.edge.demultiplex import MAX_ADDRESSES, Demultiplexer
from kafila_agent.edge.events import AddressKnown, ConnectionIdAdded, ConnectionIdRemoved, Opened
from kafila_agent.edge.link import Link
from kafila_agent.edge.paths import RELAY
from kafila_proto import relay

RELAY_ADDRESS, SOMEWHERE = ("198.18.0.2", 7000), ("198.18.1.2", 4000)


@pytest.fixture
def links(members, session_of) -> list[Link]:
    """The last member's links to two others, both of which dial it."""
    one, two, _, own = members
    session = session_of(own, one, two)
    return [Link(own, session, peer.fingerprint) for peer in (one, two)]


@pytest.fixture
def demultiplexer(links) -> Demultiplexer:
    demultiplexer = Demultiplexer()
    for number, link in enumerate(links):
        demultiplexer.add(link)
        circuit_id = bytes([number]) * 8
        link.bind(circuit_id, b"k" * 32, 0.0)
        demultiplexer.add_circuit(circuit_id, link, RELAY_ADDRESS)
    return demultiplexer


def check_of(link: Link) -> bytes:
    return link.key.encode(CheckKind.REQUEST, b"8 bytes!", from_dialer=True)


def through(number: int, data: bytes) -> bytes:
    return relay.data_header(bytes([number]) * 8) + data


def destinations(link) -> list[object]:
    found: list[object] = []
    link.send_datagrams(0.0, lambda data, address: found.append(address))
    return found


def test_a_check_finds_the_link_of_its_pair(demultiplexer, links):
    assert demultiplexer.receive_datagram(check_of(links[1]), SOMEWHERE, 0.0) is links[1]
    assert AddressKnown(SOMEWHERE) in iter(links[1].next_event, None)
    assert destinations(links[1])[0] == SOMEWHERE


def test_a_circuit_is_its_own_links_alone(demultiplexer, links):
    assert demultiplexer.receive_datagram(through(0, check_of(links[0])), RELAY_ADDRESS, 0.0) is links[0]
    assert RELAY in destinations(links[0])
    assert demultiplexer.receive_datagram(through(0, check_of(links[1])), RELAY_ADDRESS, 0.0) is None
    demultiplexer.take_event(links[1], ConnectionIdAdded(b"12345678"))
    short = b"\x40" + b"12345678" + bytes(30)
    assert demultiplexer.receive_datagram(through(0, short), RELAY_ADDRESS, 0.0) is None
    assert demultiplexer.receive_datagram(through(1, short), RELAY_ADDRESS, 0.0) is links[1]


def test_only_the_rendezvous_speaks_over_a_circuit(demultiplexer, links):
    assert demultiplexer.receive_datagram(through(0, check_of(links[0])), SOMEWHERE, 0.0) is None
    assert demultiplexer.receive_datagram(through(7, check_of(links[0])), RELAY_ADDRESS, 0.0) is None


def test_a_connection_id_finds_its_link_from_anywhere_until_it_is_taken_back(demultiplexer, links):
    short = b"\x40" + b"12345678" + bytes(30)
    assert demultiplexer.receive_datagram(short, SOMEWHERE, 0.0) is None
    assert demultiplexer.take_event(links[0], ConnectionIdAdded(b"12345678"))
    for source in (SOMEWHERE, ("elsewhere", 1)):
        assert demultiplexer.receive_datagram(short, source, 0.0) is links[0]
    assert demultiplexer.take_event(links[0], ConnectionIdRemoved(b"12345678"))
    assert demultiplexer.receive_datagram(short, SOMEWHERE, 0.0) is None
    assert not demultiplexer.take_event(links[0], Opened())


def test_a_handshake_is_for_whoever_is_known_at_that_address(demultiplexer, links):
    initial = b"\xc3\0\0\0\1\x08" + b"original" + b"\x08" + b"another!" + b"\0\x44\x90"
    initial = initial.ljust(1200, b"\0")
    assert demultiplexer.receive_datagram(initial, SOMEWHERE, 0.0) is None
    demultiplexer.take_event(links[0], AddressKnown(SOMEWHERE))
    assert demultiplexer.receive_datagram(initial, SOMEWHERE, 0.0) is links[0]
    assert ConnectionIdAdded(b"original") in iter(links[0].next_event, None)


def test_addresses_are_not_collected_without_end(demultiplexer, links):
    for port in range(MAX_ADDRESSES + 10):
        demultiplexer.take_event(links[0], AddressKnown(("198.18.9.9", port)))
    assert len(demultiplexer._by_address) <= MAX_ADDRESSES


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x9bkc", b"\x9bkr", b"\x40", b"\xc3\0\0\0\1", b"\x80"])
)
def test_garbage_is_for_nobody(data, head):
    demultiplexer = Demultiplexer()
    for each in (head + data, through(0, head + data)):
        for source in (SOMEWHERE, RELAY_ADDRESS):
            assert demultiplexer.receive_datagram(each, source, 0.0) is None
