"""Handshake and proof of two connections that hand each other their datagrams."""

from __future__ import annotations

import dataclasses

import pytest
from aioquic.quic import events
from hypothesis import given, settings
from hypothesis import strategies as st

from kafila_agent.edge import quic as adapter
from kafila_agent.edge.connection import PROVING_S, STREAM, ConnectionState, EdgeConnection
from kafila_agent.edge.events import Closed, FrameReceived, Opened, StreamBroken
from kafila_agent.edge.messages import MessageKind, message_header
from kafila_agent.edge.session import EdgeSession

ADDRESS = ("peer", 0)


class Talk:
    """Two ends, and what each has had to tell."""

    def __init__(self, client, server_of):
        self.now = 100.0
        self.client = client
        self.server = None
        self._server_of = server_of
        self.heard = {"client": [], "server": []}
        self.told: list = []

    def run(self, seconds: float = 0.2) -> None:
        stop = self.now + seconds
        while self.now < stop:
            for data in self._outgoing(self.client):
                if self.server is None:
                    self.server = self._server_of(data, self.now)
                self.server.receive_datagram(data, self.now)
            if self.server is not None:
                for data in self._outgoing(self.server):
                    self._to_client(data)
            for end in (self.client, self.server):
                timer = None if end is None else end.get_timer()
                if timer is not None and timer <= self.now:
                    end.handle_timer(self.now)
            for name, end in (("client", self.client), ("server", self.server)):
                while isinstance(end, EdgeConnection) and (event := end.next_event()) is not None:
                    self.told.append(event)
                    if isinstance(event, Opened | FrameReceived | Closed):
                        self.heard[name].append(event)
            self.now += 0.001

    def _outgoing(self, end) -> list[bytes]:
        datagrams: list[bytes] = []
        end.send_datagrams(self.now, datagrams.append)
        return datagrams

    def _to_client(self, data: bytes) -> None:
        if isinstance(self.client, adapter.PromptConnection):
            self.client.receive_datagram(data, ADDRESS, self.now)
        else:
            self.client.receive_datagram(data, self.now)


@pytest.fixture(params=[(False, False), (True, True), (True, False), (False, True)], ids=str)
def fast(request):
    """Whether the dialler and the dialled use the quicker library: each must understand the other."""
    if any(request.param):
        pytest.importorskip("qh3")
    return request.param


@pytest.fixture
def talk_of(members, session_of, fast):
    """The first member dials the second; the arguments change who really is there and what they believe."""

    def make(dialler=None, dialled=None, wanted=None, expected=None, sessions=None) -> Talk:
        one, two = members[:2]
        dialler, dialled = dialler or one, dialled or two
        wanted, expected = wanted or two, expected or one
        ours, theirs = sessions or (session_of(dialler, wanted), session_of(dialled, expected))
        client = EdgeConnection.dial(dialler, ours, wanted.fingerprint, 1452, 100.0, fast=fast[0])
        return Talk(
            client,
            lambda data, now: EdgeConnection.accept(
                dialled, theirs, expected.fingerprint, data, now, fast=fast[1]
            ),
        )

    return make


def test_two_members_open_an_edge_and_frames_go_both_ways(talk_of):
    talk = talk_of()
    talk.run()
    talk.client.send_frame(b"out")
    talk.server.send_frame(b"back")
    talk.run()
    assert talk.heard == {
        "client": [Opened(), FrameReceived(memoryview(b"back"))],
        "server": [Opened(), FrameReceived(memoryview(b"out"))],
    }
    assert talk.client.rtt_s is not None
    assert talk.server.rtt_s is not None


def test_frames_right_behind_the_acceptance_are_not_taken_for_proofs(talk_of):
    talk = talk_of()
    accept = talk._server_of

    def accept_and_send(data, now):
        server = accept(data, now)
        opened = server._open
        server._open = lambda now: (opened(now), server.send_frame(b"f" * 5000))
        return server

    talk._server_of = accept_and_send
    talk.run()
    assert talk.heard["client"] == [Opened(), FrameReceived(memoryview(b"f" * 5000))]


def test_a_ping_does_not_queue_behind_a_prompt(talk_of):
    talk = talk_of()
    talk.run()
    talk.client.send_frame(bytes(200_000))
    asked = talk.client._pings_sent
    talk.client._next_ping_at = talk.now
    talk.client.handle_timer(talk.now)
    assert talk.client._pings_sent == asked
    talk.run(0.5)
    assert talk.client._pings_sent > asked


def refused(talk: Talk, who: str, reason: str) -> None:
    """The edge never stood at either end, and ``who`` closed it for ``reason``, which the other was told."""
    (at_who,) = talk.heard[who]
    (at_other,) = talk.heard["server" if who == "client" else "client"]
    assert reason in at_who.reason
    assert at_other.reason == at_who.reason


def test_a_machine_with_another_certificate_than_the_one_dialled_is_left(talk_of, members, fast):
    talk = talk_of(dialled=members[2])
    talk.run()
    assert talk.heard["client"] == [Closed("another machine answers at this member's address", True)]
    if not fast[0]:  # the quicker library leaves without a word this early
        assert talk.heard["server"] == [Closed("the peer refused the handshake", False)]


def test_a_stranger_who_calls_itself_a_member_is_refused(talk_of, members):
    talk = talk_of(dialler=members[3])
    talk.run()
    refused(talk, "server", "not this member's")


def test_a_member_of_another_epoch_is_refused(talk_of, members, session_of):
    one, two = members[:2]
    talk = talk_of(sessions=(session_of(one, two, epoch=1), session_of(two, one, epoch=2)))
    talk.run()
    refused(talk, "server", "does not fit")


def test_a_member_of_another_session_is_refused(talk_of, members, session_of):
    one, two = members[:2]
    other = dataclasses.replace(session_of(one, two), session_id=b"another session!")
    talk = talk_of(sessions=(other, session_of(two, one)))
    talk.run()
    refused(talk, "server", "does not fit")


@pytest.fixture
def raw_talk(members, session_of):
    """A client that speaks QUIC and proves nothing."""
    one, two = members[:2]
    client = adapter.new_connection(one, is_client=True, datagram_bytes=1452)
    client.connect(ADDRESS, 100.0)
    session = session_of(two, one)
    talk = Talk(client, lambda data, now: EdgeConnection.accept(two, session, one.fingerprint, data, now))
    talk.run()
    assert talk.server.state is ConnectionState.PROVING
    return talk


def nonce_of(talk: Talk) -> bytes:
    while (event := talk.client.next_event()) is not None:
        if isinstance(event, events.StreamDataReceived):
            return event.data
    raise AssertionError("no nonce came")


def test_a_client_without_a_credential_is_refused_in_time(raw_talk):
    assert nonce_of(raw_talk)[:5] == message_header(MessageKind.NONCE, 32)
    raw_talk.run(PROVING_S + 0.1)
    assert raw_talk.heard["server"] == [Closed("no proof of identity within 5 s", True)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (message_header(MessageKind.FRAME, 5) + b"frame", "FRAME out of turn"),
        (message_header(MessageKind.PING, 8) + bytes(8), "PING out of turn"),
        (message_header(MessageKind.NONCE, 32) + bytes(32), "NONCE out of turn"),
        (message_header(MessageKind.ACCEPTED, 0), "ACCEPTED out of turn"),
        (message_header(MessageKind.CREDENTIAL, 1025), "1025 bytes where 1024 are allowed"),
        (message_header(MessageKind.CREDENTIAL, 3) + b"abc", "refused"),
        (b"\xff" * 2000, "unknown message kind"),
    ],
)
def test_nothing_but_a_credential_is_taken_before_it(raw_talk, message, reason):
    raw_talk.client.send_stream_data(STREAM, message)
    raw_talk.run()
    (closed,) = raw_talk.heard["server"]
    assert reason in closed.reason


@pytest.mark.parametrize("stream", [0, 2])
def test_another_stream_is_refused(raw_talk, stream):
    raw_talk.client.send_stream_data(stream, b"anything")
    raw_talk.run()
    assert raw_talk.heard["server"] == [Closed(f"unexpected use of stream {stream}", True)]


@pytest.mark.parametrize("stream", [0, 4])
def test_breaking_off_a_stream_before_any_proof_touches_nobodys_exchanges(raw_talk, stream):
    """The link may have an edge already, whose exchanges have the same numbers."""
    raw_talk.client._get_or_create_stream_for_send(stream)
    raw_talk.client.reset_stream(stream, 1)
    raw_talk.run()
    (closed,) = raw_talk.heard["server"]
    assert "broke off" in closed.reason
    assert not [event for event in raw_talk.told if isinstance(event, StreamBroken)]


def test_ending_the_stream_is_refused(raw_talk):
    raw_talk.client.send_stream_data(STREAM, b"", end_stream=True)
    raw_talk.run()
    assert isinstance(raw_talk.heard["server"][0], Closed)


def test_a_credential_of_an_earlier_connection_is_worth_nothing(talk_of, raw_talk, members):
    proofs = []
    talk = talk_of()
    send = talk.client._send
    talk.client._send = lambda kind, body: (proofs.append((kind, bytes(body))), send(kind, body))
    talk.run()
    assert talk.server.state is ConnectionState.OPEN
    kind, proof = proofs[0]
    assert kind is MessageKind.CREDENTIAL
    raw_talk.client.send_stream_data(STREAM, message_header(kind, len(proof)) + proof)
    raw_talk.run()
    (closed,) = raw_talk.heard["server"]
    assert "does not fit" in closed.reason


def test_a_peer_that_takes_nothing_in_is_not_fed_without_end(talk_of, monkeypatch):
    monkeypatch.setattr("kafila_agent.edge.connection.MAX_UNACKNOWLEDGED_BYTES", 10_000)
    talk = talk_of()
    talk.run()
    for _ in range(3):
        talk.client.send_frame(bytes(6000))
    talk.run()
    assert talk.heard["client"][-1] == Closed("the peer takes in less than it is sent", True)
    assert talk.heard["server"][-1] == Closed("the peer takes in less than it is sent", True)


@pytest.fixture(scope="module")
def recorded(members) -> list[bytes]:
    """What a dialler sends in an edge's first moments, and a session's key would not help to forge."""
    one, two = members[:2]
    roster = {m.fingerprint: m.name for m in (one, two)}
    sessions = [EdgeSession(b"session", 1, m.name, roster) for m in (one, two)]
    sent: list[bytes] = []

    def accept(data, now):
        server = EdgeConnection.accept(two, sessions[1], one.fingerprint, data, now)
        receive = server.receive_datagram
        server.receive_datagram = lambda data, now: (sent.append(data), receive(data, now))
        return server

    client = EdgeConnection.dial(one, sessions[0], two.fingerprint, 1200, 100.0)
    talk = Talk(client, accept)
    talk.run(0.3)
    assert talk.server.state is ConnectionState.OPEN
    return sent


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_garbled_datagrams_open_nothing_and_raise_nothing(members, recorded, data):
    one, two = members[:2]
    session = EdgeSession(b"session", 1, two.name, {m.fingerprint: m.name for m in (one, two)})
    server = None
    for index in data.draw(st.lists(st.integers(0, len(recorded) - 1), min_size=1, max_size=5)):
        garbled = bytearray(recorded[index])
        for _ in range(data.draw(st.integers(0, 3))):
            garbled[data.draw(st.integers(0, len(garbled) - 1))] ^= data.draw(st.integers(1, 255))
        garbled = bytes(garbled[: data.draw(st.integers(1, len(garbled)))]).ljust(1200, b"\0")
        if server is None:
            if not adapter.is_initial(garbled):
                continue
            server = EdgeConnection.accept(two, session, one.fingerprint, garbled, 100.0)
        server.receive_datagram(garbled, 100.0)
        server.send_datagrams(100.0, lambda data: None)
        timer = server.get_timer()
        server.handle_timer(100.0 if timer is None else timer)
    if server is not None:
        assert server.state is not ConnectionState.OPEN
