"""Whoever answers a dialled member may show anything for a certificate: that costs this connection and nothing else."""

from __future__ import annotations

import pytest

from kafila_agent.edge.connection import ConnectionState, EdgeConnection
from kafila_agent.edge.events import Closed, Opened


class Shown:
    """A certificate as aioquic's server sends it."""

    def __init__(self, der: bytes) -> None:
        self._der = der

    def public_bytes(self, _encoding: object) -> bytes:
        return self._der


def sent_by(end: EdgeConnection, now: float) -> list[bytes]:
    datagrams: list[bytes] = []
    end.send_datagrams(now, datagrams.append)
    return datagrams


@pytest.mark.parametrize(
    "change",
    [
        lambda der: b"",
        lambda der: b"not a certificate",
        lambda der: der.replace(
            b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"
        ),  # a version that there is not
        lambda der: der[:-1],
        lambda der: der.replace(bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("008648ce3d030107")),
        lambda der: der.replace(bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d0209")),
    ],
    ids=["none", "words", "version", "cut", "curve", "algorithm"],
)
def test_the_dialler_closes_and_raises_nothing(members, session_of, change):
    one, other = members[0], members[1]
    now = 100.0
    client = EdgeConnection.dial(one, session_of(one, other), other.fingerprint, 1200, now)
    server = None
    for _ in range(50):
        for data in sent_by(client, now):
            if server is None:
                server = EdgeConnection.accept(other, session_of(other, one), one.fingerprint, data, now)
                server._quic._configuration.certificate = Shown(change(other.certificate_der))
            server.receive_datagram(data, now)
        for data in sent_by(server, now):
            client.receive_datagram(data, now)
        now += 0.01
    assert client.state is ConnectionState.CLOSED
    heard = list(iter(client.next_event, None))
    assert [type(event) for event in heard if isinstance(event, Opened | Closed)] == [Closed]
