"""The adapter to aioquic: these fail when a name it relies on has moved."""

from __future__ import annotations

from aioquic.quic import events
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge import quic as adapter

ADDRESS = ("peer", 0)


def sent_by(quic: adapter.Quic, now: float) -> list[bytes]:
    datagrams: list[bytes] = []
    quic.send_datagrams(now, datagrams.append)
    return datagrams


def connected(members) -> tuple[adapter.Quic, adapter.Quic]:
    """A client and the server that it has shaken hands with."""
    client = adapter.new_connection(members[0], is_client=True, datagram_bytes=1452)
    client.connect(ADDRESS, 0.0)
    assert adapter.peer_fingerprint(client) is None
    assert adapter.close_reason(client) is None
    (initial,) = sent_by(client, 0.0)
    assert len(initial) == 1452
    assert adapter.is_initial(initial)
    original = adapter.destination_connection_id(initial)
    server = adapter.new_connection(members[1], is_client=False, datagram_bytes=1452, original=original)
    server.receive_datagram(initial, ADDRESS, 0.0)
    for now in (0.01, 0.02, 0.03, 0.04, 0.05):
        for sender, receiver in ((server, client), (client, server)):
            for data in sent_by(sender, now):
                receiver.receive_datagram(data, ADDRESS, now)
    return client, server


def test_the_private_names_mean_what_they_are_used_for(members):
    client, server = connected(members)
    happened = [type(event) for event in iter(client.next_event, None)]
    assert events.HandshakeCompleted in happened
    assert adapter.peer_fingerprint(client) == members[1].fingerprint
    client.send_stream_data(0, b"x" * 900)
    assert adapter.unacknowledged_bytes(client, 0) == 900
    assert sent_by(client, 0.1)
    assert sent_by(client, 0.1) == []
    adapter.path_changed(client, 0.2)
    assert sent_by(client, 0.2)
    client.close(reason_phrase="enough")
    assert adapter.close_reason(client) == "enough"
    for data in sent_by(client, 1.0):
        server.receive_datagram(data, ADDRESS, 1.0)
    assert adapter.close_reason(server) == "enough"


def test_a_datagram_goes_out_before_the_next_is_sealed(members):
    client, _ = connected(members)
    client.send_stream_data(0, bytes(8192))
    sealed_by_then = []
    client.send_datagrams(0.1, lambda data: sealed_by_then.append(len(client._sealed)))
    assert sealed_by_then == [1, 2, 3, 4, 5, 6]


def test_what_is_sent_at_once_counts_as_sent(members):
    client, server = connected(members)
    client.send_stream_data(0, bytes(8192))
    lost, *rest = sent_by(client, 0.1)
    for data in rest:
        server.receive_datagram(data, ADDRESS, 0.1)
    for now in (0.11, 0.12, 0.2, 0.5, 1.0):
        for sender, receiver in ((server, client), (client, server)):
            sender.handle_timer(now)
            for data in sent_by(sender, now):
                assert data != lost
                receiver.receive_datagram(data, ADDRESS, now)
    assert adapter.unacknowledged_bytes(client, 0) == 0
    assert (
        sum(len(e.data) for e in iter(server.next_event, None) if isinstance(e, events.StreamDataReceived))
        == 8192
    )


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
