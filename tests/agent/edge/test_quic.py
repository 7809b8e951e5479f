"""The adapter to aioquic: these fail when a name it relies on has moved."""

from __future__ import annotations

from aioquic.quic import events
from aioquic.quic.connection import QuicConnection
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge import quic as adapter

ADDRESS = ("peer", 0)


def test_the_private_names_mean_what_they_are_used_for(members):
    client = QuicConnection(configuration=adapter.configure(members[0], is_client=True, datagram_bytes=1452))
    client.connect(ADDRESS, 0.0)
    assert adapter.peer_fingerprint(client) is None
    assert adapter.close_reason(client) is None
    ((initial, _),) = client.datagrams_to_send(0.0)
    assert len(initial) == 1452
    assert adapter.is_initial(initial)
    original = adapter.destination_connection_id(initial)
    server = QuicConnection(
        configuration=adapter.configure(members[1], is_client=False, datagram_bytes=1452),
        original_destination_connection_id=original,
    )
    server.receive_datagram(initial, ADDRESS, 0.0)
    for _ in range(5):
        for sender, receiver in ((server, client), (client, server)):
            for data, _ in sender.datagrams_to_send(0.0):
                receiver.receive_datagram(data, ADDRESS, 0.0)
    happened = [type(event) for event in iter(client.next_event, None)]
    assert events.HandshakeCompleted in happened
    assert adapter.peer_fingerprint(client) == members[1].fingerprint
    client.send_stream_data(0, b"x" * 900)
    assert adapter.unacknowledged_bytes(client, 0) == 900
    assert client.datagrams_to_send(0.1)
    assert client.datagrams_to_send(0.1) == []
    adapter.path_changed(client, 0.2)
    assert client.datagrams_to_send(0.2)
    client.close(reason_phrase="enough")
    assert adapter.close_reason(client) == "enough"
    for data, _ in client.datagrams_to_send(1.0):
        server.receive_datagram(data, ADDRESS, 1.0)
    assert adapter.close_reason(server) == "enough"


def test_no_session_can_be_resumed(members):
    configuration = adapter.configure(members[0], is_client=True, datagram_bytes=1200)
    assert configuration.session_ticket is None
    assert configuration.token == b""


@given(st.binary(min_size=1, max_size=1500))
def test_garbage_has_an_id_or_none(data):
    found = adapter.destination_connection_id(data)
    assert found is None or found in data
    assert adapter.is_initial(data) in (True, False)


@given(st.binary(max_size=60))
def test_a_garbled_long_header_opens_nothing_or_an_initial_of_version_1(tail):
    data = (b"\xc3\x00\x00\x00\x01" + tail).ljust(1200, b"\0")
    if adapter.is_initial(data):
        assert len(adapter.destination_connection_id(data)) >= 8
