from __future__ import annotations

import socket

import pytest
from structlog.testing import capture_logs

from kafila_proto import udp_socket
from kafila_proto.udp_socket import drain, open_udp_socket, send


@pytest.fixture
def pair():
    with open_udp_socket("127.0.0.1", 0) as one, open_udp_socket("127.0.0.1", 0) as two:
        yield one, two


def test_everything_that_waits_is_read_in_order(pair):
    one, two = pair
    for i in range(50):
        assert send(one, bytes([i]), two.getsockname())
    assert [(data, source) for data, source in drain(two, 100)] == [
        (bytes([i]), one.getsockname()) for i in range(50)
    ]
    assert list(drain(two, 100)) == []


def test_one_drain_takes_its_share_and_leaves_the_rest(pair):
    one, two = pair
    for i in range(5):
        send(one, bytes([i]), two.getsockname())
    assert [data for data, _ in drain(two, 3)] == [b"\0", b"\1", b"\2"]
    assert [data for data, _ in drain(two, 3)] == [b"\3", b"\4"]


def test_what_the_system_will_not_send_is_said_and_not_raised(pair):
    one, two = pair
    assert not send(one, bytes(70_000), two.getsockname())
    assert not send(one, b"x", ("255.255.255.255", 9))


def test_a_closed_socket_is_a_mistake_and_raised():
    udp = open_udp_socket("127.0.0.1", 0)
    address = udp.getsockname()
    udp.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send(udp, b"x", address)


def test_an_answer_that_nobody_listens_does_not_stop_the_reading(pair):
    one, two = pair
    with open_udp_socket("127.0.0.1", 0) as gone:
        nobody = gone.getsockname()
    one.connect(nobody)
    one.send(b"hello?")
    assert list(drain(one, 100)) == []
    del two


def test_a_socket_for_both_families_hears_both():
    with open_udp_socket("::", 0, ipv4_too=True) as both, open_udp_socket("127.0.0.1", 0) as four:
        port = both.getsockname()[1]
        send(four, b"four", ("127.0.0.1", port))
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
            six.sendto(b"six", ("::1", port))
        assert {data for data, _ in drain(both, 100)} == {b"four", b"six"}


def test_small_buffers_are_told_of_once_with_the_remedy(monkeypatch):
    monkeypatch.setattr(udp_socket, "BUFFER_BYTES", 1 << 30)
    monkeypatch.setattr(udp_socket, "_warned_of_buffer", False)
    with capture_logs() as logs:
        for _ in range(2):
            open_udp_socket("127.0.0.1", 0).close()
    (entry,) = logs
    assert entry["remedy"] == f"sysctl -w net.core.rmem_max={1 << 30}"


def test_an_address_that_cannot_be_bound_is_named():
    with pytest.raises(OSError, match=r"cannot bind UDP 203\.0\.113\.9 port 0"):
        open_udp_socket("203.0.113.9", 0)
