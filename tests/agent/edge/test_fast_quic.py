"""The quicker QUIC library: each end may have it or not, and an edge is the same edge."""

from __future__ import annotations

import itertools

import pytest

from kafila_agent.edge import fast_quic
from kafila_agent.edge import quic as adapter
from kafila_agent.edge.events import Closed, Connected
from kafila_agent.edge.fast_quic import FastConnection
from kafila_agent.edge.link import LinkState
from kafila_agent.edge.paths import DATAGRAM_BYTES, RELAY
from tests.agent.edge.world import are_open, connect, echo

LIBRARIES = [(True, True), (True, False), (False, True)]


@pytest.fixture(params=LIBRARIES, ids=str)
def edge(world_of, request):
    pytest.importorskip("qh3")
    world = world_of(fast=request.param)
    one, two = world.ends
    one.link.connect([two.address], world.now)
    two.link.connect([one.address], world.now)
    assert world.run(14 * world.delay_s, lambda: one.link.connection and two.link.connection)
    for end, fast in zip((one, two), request.param, strict=True):
        assert isinstance(end.link.connection._quic, FastConnection) is fast
    return world


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("192.168.1.4", True),
        ("127.0.0.1", True),
        ("fd00::4", True),
        ("8.8.8.8", False),
        ("100.64.0.4", False),
    ],
)
def test_near_is_what_shares_a_lan(host, near):
    assert fast_quic.is_near((host, 7000)) is near
    assert not fast_quic.is_near(RELAY)


def test_frames_cross_whole_and_in_order_both_ways_though_datagrams_are_lost(edge):
    one, two = edge.ends
    count = itertools.count(1)
    edge.lets = lambda source, target, data: next(count) % 7 != 0
    frames = [bytes([i]) * (i * 700) for i in range(40)]
    for frame in frames:
        one.link.send_frame(frame)
        two.link.send_frame(frame[::-1])
    assert edge.run(60.0, lambda: one.frames == two.frames == frames)


@pytest.mark.parametrize("largest", DATAGRAM_BYTES)
@pytest.mark.parametrize("fast", LIBRARIES, ids=str)
def test_both_ends_send_datagrams_as_large_as_the_path_carries_and_none_larger(world_of, fast, largest):
    pytest.importorskip("qh3")
    world = world_of(fast=fast)
    world.lets = lambda source, target, data: len(data) <= largest
    one, two = connect(world)
    assert world.run(5.0, are_open(one, two))
    echo(world, 30_000)
    world.carried.clear()
    echo(world, 30_000)
    for end in (one, two):
        sent = max(size for source, _, size in world.carried if source == end.address)
        assert largest - 60 <= sent <= largest


@pytest.mark.parametrize("mover", [0, 1])
def test_it_follows_an_end_to_a_new_address(edge, mover):
    one, two = edge.ends
    edge.ends[mover].address = ("10.0.9.9", 9)
    for number in range(5):
        for sender, receiver in ((one, two), (two, one)):
            receiver.frames.clear()
            sender.link.send_frame(bytes([number]) * 3000)
            assert edge.run(5.0, lambda receiver=receiver: len(receiver.frames) == 1)
    assert one.link.state is two.link.state is LinkState.DIRECT


def test_it_stays_while_idle_and_its_close_is_known_with_the_reason(edge):
    one, two = edge.ends
    edge.run(60.0)
    assert one.link.connection.rtt_s == pytest.approx(2 * edge.delay_s, rel=0.3)
    two.link.close("the machine is wanted elsewhere", edge.now)
    assert edge.run(1.0, lambda: one.link.state is LinkState.CLOSED)
    assert one.events == [Connected("direct"), Closed("the machine is wanted elsewhere", True)]


def test_a_silent_peer_is_missed(edge):
    one, two = edge.ends
    edge.lets = lambda source, target, data: False
    assert edge.run(15.0, lambda: one.link.state is two.link.state is LinkState.CLOSED)
    assert one.events[-1] == Closed("no answer for 8 s", True)


def test_hostile_bytes_raise_nothing(edge, members):
    one, _ = edge.ends
    server = adapter.new_connection(
        members[1], is_client=False, datagram_bytes=1200, original=bytes(8), fast=True
    )
    for quic in (server, one.link.connection._quic):
        for data in (
            b"",
            b"\xff" * 1200,
            bytes(1200),
            b"\xc0\x00\x00\x00\x01\x08" + bytes(1300),
            b"\x40" * 50,
        ):
            quic.receive_datagram(data, ("peer", 0), edge.now)
        quic.send_datagrams(edge.now, lambda data: None)
