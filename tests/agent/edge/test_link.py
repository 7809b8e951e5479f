"""Transcripts of two links in a world whose network and clock the test holds."""

from __future__ import annotations

import pytest

from kafila_agent.edge.check import is_check
from kafila_agent.edge.events import Closed, Connected, Moved
from kafila_agent.edge.link import DIRECT_S, Link, LinkState
from kafila_agent.edge.paths import DATAGRAM_BYTES, RELAY
from tests.agent.edge.world import RENDEZVOUS, are_open, connect, echo, relay_alone


@pytest.mark.parametrize("delay_s", [0.0001, 0.03, 0.3])
@pytest.mark.parametrize(("one_knows", "two_knows"), [(True, True), (True, False), (False, True)])
def test_one_known_address_is_enough_for_a_direct_edge(world_of, one_knows, two_knows, delay_s):
    world = world_of()
    world.delay_s = delay_s
    one, two = connect(world, one_knows, two_knows)
    assert world.run(0.5 + 14 * delay_s, are_open(one, two))
    assert one.link.state is two.link.state is LinkState.DIRECT
    assert (one.events[-1], two.events[-1]) == (Connected("direct"), Connected("direct"))
    echo(world)


def test_the_first_datagrams_to_an_address_are_small_and_none_is_larger_than_the_path_was_proved_for(
    world_of,
):
    world = world_of()
    world.lets = lambda source, target, data: len(data) <= 1400
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    assert one.link.connection.datagram_bytes == two.link.connection.datagram_bytes == 1360
    first = next(size for _, target, size in world.carried if target == two.address)
    assert first < 100
    world.carried.clear()
    echo(world, 20_000)
    assert max(size for _, _, size in world.carried) == 1360


def test_without_a_direct_path_both_ends_relay_after_a_while(world_of):
    world = world_of()
    world.lets = relay_alone
    one, two = connect(world)
    began = world.now
    assert world.run(DIRECT_S + 1.0, are_open(one, two))
    assert world.now - began >= DIRECT_S
    assert one.link.state is two.link.state is LinkState.RELAYED
    assert one.events == two.events == [Connected("relayed")]
    echo(world)


def test_relay_only_neither_sends_nor_answers_directly(world_of):
    world = world_of(relay_only=True)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    assert one.link.state is two.link.state is LinkState.RELAYED
    echo(world)
    world.run(30.0)
    assert one.link.state is two.link.state is LinkState.RELAYED
    assert all(RENDEZVOUS in (source, target) for source, target, _ in world.carried)


def test_datagrams_through_the_relay_leave_room_for_its_header(world_of):
    world = world_of(relay_only=True)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    echo(world, 30_000)
    assert max(size for _, _, size in world.carried) == max(DATAGRAM_BYTES)


def test_an_end_that_comes_late_is_waited_for_and_still_connects_directly(world_of):
    world = world_of()
    one, two = world.ends
    # Two's NAT lets nothing in before two has sent something out.
    sent = []
    world.lets = lambda source, target, data: (
        RENDEZVOUS in (source, target)
        or bool(sent.append(source) if source == two.address else None)
        or two.address in sent
    )
    one.link.connect([two.address], world.now)
    assert not world.run(DIRECT_S + 2.0, are_open(one, two))
    two.link.connect([one.address], world.now)
    assert world.run(1.0, are_open(one, two))
    assert one.link.state is two.link.state is LinkState.DIRECT


def test_a_relayed_edge_becomes_direct_when_a_path_opens_and_stays_so(world_of):
    world = world_of()
    world.lets = relay_alone
    one, two = connect(world)
    assert world.run(4.0, are_open(one, two))
    world.lets = lambda source, target, data: True
    assert world.run(15.0, lambda: one.link.state is two.link.state is LinkState.DIRECT)
    for _ in range(20):
        echo(world)
    assert one.events[-1] == two.events[-1] == Moved("direct")
    assert one.events.count(Moved("direct")) == 1
    assert not [event for event in one.events + two.events if isinstance(event, Closed)]


@pytest.mark.parametrize("mover", [0, 1])
def test_the_edge_follows_an_end_to_a_new_address(world_of, mover):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.ends[mover].address = ("10.0.9.9", 9)
    echo(world)
    world.carried.clear()
    echo(world)
    assert one.link.state is two.link.state is LinkState.DIRECT
    assert ("10.0.9.9", 9) in {target for _, target, _ in world.carried}


@pytest.mark.parametrize("mover", [0, 1])
def test_a_relayed_edge_follows_an_end_to_a_new_address(world_of, mover):
    world = world_of(relay_only=True)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.ends[mover].address = ("10.0.9.9", 9)
    echo(world)


def test_a_datagram_copied_to_another_address_does_not_draw_the_edge_there(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    thief = ("10.0.6.6", 6)

    def copy(source, target, data):
        if source == one.address and not is_check(data):
            world.lets = lambda source, target, data: True
            world.fly(data, thief, target)
        return True

    world.lets = copy
    echo(world)
    world.carried.clear()
    echo(world, 20_000)
    to_thief = [size for _, target, size in world.carried if target == thief]
    assert not to_thief or max(to_thief) <= max(DATAGRAM_BYTES)
    assert two.link.state is LinkState.DIRECT
    assert two.link.address == one.address


@pytest.mark.parametrize("mover", [0, 1])
def test_a_direct_edge_whose_path_is_gone_goes_on_over_the_relay_and_returns(world_of, mover):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(5.0)
    world.lets = relay_alone
    frames = [bytes([i]) * 5000 for i in range(20)]
    for frame in frames:
        world.ends[mover].link.send_frame(frame)
    other = world.ends[1 - mover]
    assert world.run(7.0, lambda: other.frames == frames)
    assert world.run(1.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    assert not [event for event in one.events + two.events if isinstance(event, Closed)]
    world.run(100.0)
    echo(world)
    world.lets = lambda source, target, data: True
    assert world.run(15.0, lambda: one.link.state is two.link.state is LinkState.DIRECT)
    echo(world)


@pytest.mark.parametrize("mover", [0, 1])
def test_an_end_that_moved_behind_a_strict_filter_tells_where_it_is_and_the_edge_is_direct_again(
    world_of, mover
):
    """The other end lets in only addresses that it has sent to, so it has to be told the new one."""
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    moved, other = world.ends[mover], world.ends[1 - mover]
    spoken_to = {moved.address}

    def strict(source, target, data):
        if source == other.address:
            spoken_to.add(target)
        return RENDEZVOUS in (source, target) or target != other.address or source in spoken_to

    world.lets = strict
    moved.address = ("10.0.9.9", 9)
    frames = [bytes([i]) * 5000 for i in range(20)]
    for frame in frames:
        moved.link.send_frame(frame)
    assert world.run(7.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    assert world.run(2.0, lambda: one.link.state is two.link.state is LinkState.DIRECT)
    assert other.frames == frames
    assert other.link.address == moved.address
    world.run(60.0)
    assert one.link.state is two.link.state is LinkState.DIRECT
    assert one.events == two.events == [Connected("direct"), Moved("relayed"), Moved("direct")]


def test_a_shorter_path_takes_the_place_of_one_that_works_and_keeps_it(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    one.near, two.near = ("192.168.0.1", 1), ("192.168.0.2", 2)
    for end in (one, two):
        end.link.tell_addresses([end.address, end.near])
    frames = [bytes([i]) * 3000 for i in range(100)]
    for frame in frames:
        one.link.send_frame(frame)
        two.link.send_frame(frame)
        world.run(0.02)
    assert world.run(3.0, lambda: (one.link.address, two.link.address) == (two.near, one.near))
    assert one.frames == two.frames == frames
    for _ in range(50):
        world.run(1.0)
        echo(world)
    assert one.events == two.events == [Connected("direct"), Moved("direct")]
    near = {one.near, two.near}
    world.lets = lambda source, target, data: target not in near  # the quicker network goes away
    for _ in range(5):
        one.link.send_frame(b"still here")
    assert world.run(7.0, lambda: two.frames.count(b"still here") == 5)
    assert one.link.state is LinkState.DIRECT or world.run(5.0, lambda: one.link.state is LinkState.DIRECT)


def test_a_silent_peer_is_missed_within_a_few_seconds(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.lets = lambda source, target, data: False
    silent_since = world.now
    assert world.run(15.0, lambda: one.link.state is two.link.state is LinkState.CLOSED)
    assert 5.0 < world.now - silent_since < 11.0
    assert one.events[-1] == Closed("no answer for 8 s", True)
    assert not one.demultiplexer._by_connection_id


def test_a_close_is_known_at_the_other_end_at_once_with_its_reason(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    closed_at = world.now
    two.link.close("the machine is wanted elsewhere", world.now)
    assert world.run(1.0, lambda: one.link.state is LinkState.CLOSED)
    assert world.now - closed_at <= 0.011
    assert one.events[-1] == Closed("the machine is wanted elsewhere", True)


def test_a_closed_link_can_be_asked_again(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    two.link.close("for now", world.now)
    assert world.run(1.0, lambda: one.link.state is LinkState.CLOSED)
    connect(world)
    assert world.run(1.0, are_open(one, two))
    echo(world)


@pytest.mark.parametrize("closer", [0, 1])
def test_a_relayed_link_that_was_closed_can_be_asked_again(world_of, closer):
    world = world_of(relay_only=True)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.ends[closer].link.close("for now", world.now)
    assert world.run(1.0, lambda: one.link.state is two.link.state is LinkState.CLOSED)
    world.run(20.0)
    connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(100.0)
    echo(world)


@pytest.mark.parametrize("relay_only", [False, True])
def test_a_dialler_that_starts_afresh_takes_the_place_of_its_old_connection(
    world_of, members, session_of, relay_only
):
    world = world_of(relay_only=relay_only)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    two.events.clear()
    one.link = Link(
        members[0], session_of(members[0], members[1]), members[1].fingerprint, relay_only=relay_only
    )
    one.demultiplexer.clear()
    one.demultiplexer.add(one.link)
    one.link.connect([two.address], world.now)
    assert world.run(1.0, lambda: one.link.connection and len(two.events) == 2)
    assert two.events == [
        Closed("the peer opened the edge anew", True),
        Connected("relayed" if relay_only else "direct"),
    ]
    echo(world)


def test_an_idle_edge_stays_and_measures_the_round_trip(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(120.0)
    assert one.link.state is two.link.state is LinkState.DIRECT
    assert one.link.connection.rtt_s == pytest.approx(2 * world.delay_s, rel=0.2)
    assert two.link.connection.rtt_s == pytest.approx(2 * world.delay_s, rel=0.2)


def test_a_peer_that_never_comes_is_given_up_with_a_reason(world_of):
    world = world_of()
    one, two = world.ends
    one.link.connect([two.address], world.now)
    world.lets = lambda source, target, data: False
    assert world.run(40.0, lambda: one.link.state is LinkState.CLOSED)
    assert one.events[-1] == Closed("no path to this member within 30 s", True)


def test_where_quic_is_blocked_and_checks_are_not_the_relay_is_used(world_of):
    world = world_of()
    world.lets = lambda source, target, data: relay_alone(source, target, data) or is_check(data)
    one, two = connect(world)
    assert world.run(15.0, are_open(one, two))
    assert one.link.state is two.link.state is LinkState.RELAYED


@pytest.mark.parametrize("loss_every", [3, 5])
def test_lost_datagrams_delay_and_do_not_reorder(world_of, loss_every):
    world = world_of()
    count = iter(range(10**9))
    world.lets = lambda source, target, data: next(count) % loss_every != 0
    one, two = connect(world)
    assert world.run(10.0, are_open(one, two))
    frames = [bytes([i]) * (i * 700) for i in range(40)]
    for frame in frames:
        one.link.send_frame(frame)
    assert world.run(60.0, lambda: two.frames == frames)


def test_the_relay_address_is_no_socket_address():
    assert not isinstance(RELAY, tuple)
