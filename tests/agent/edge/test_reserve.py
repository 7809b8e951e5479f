"""The circuit that every edge has in reserve: what it costs, and that it is there when the direct path is not."""

from __future__ import annotations

import pytest

from kafila_agent.edge.events import Closed, Connected, Moved
from kafila_agent.edge.link import LinkState
from kafila_rendezvous.circuits import CircuitState
from tests.agent.edge.world import RENDEZVOUS, are_open, connect, echo, relay_alone


def circuit_of(world):
    (circuit,) = world.circuits._by_id.values()
    return circuit


def test_a_working_direct_edge_holds_a_circuit_in_reserve_at_little_cost(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(10.0)
    asked, _ = world.asked, world.carried.clear()
    world.run(300.0)
    assert one.events == two.events == [Connected("direct")]
    assert circuit_of(world).state is CircuitState.BOUND
    assert world.asked == asked
    sent = [size for source, target, size in world.carried if target == RENDEZVOUS]
    assert len(sent) <= 2 * 300 / 10
    assert max(sent) < 50


def test_an_edge_that_falls_silent_needs_nobody_but_the_relay(world_of):
    """Whoever has lost its peer may have lost the stream to the rendezvous too."""
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(100.0)
    world.grants = lambda: False
    world.lets = relay_alone
    assert world.run(7.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    world.run(100.0)
    echo(world)


@pytest.mark.parametrize("deaf", [0, 1])
def test_an_edge_that_only_one_end_hears_goes_on_over_the_relay(world_of, deaf):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(5.0)
    target = world.ends[deaf].address
    world.lets = lambda source, to, data: RENDEZVOUS in (source, to) or to != target
    assert world.run(6.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    echo(world)
    world.run(60.0)
    assert one.events == two.events == [Connected("direct"), Moved("relayed")]


def test_a_direct_path_that_is_gone_before_the_other_end_has_followed_there_is_left_again(world_of):
    world = world_of()
    world.lets = relay_alone
    one, two = connect(world)
    assert world.run(4.0, are_open(one, two))
    world.lets = lambda source, target, data: True
    assert world.run(15.0, lambda: one.link.state is LinkState.DIRECT)
    assert two.link.state is LinkState.RELAYED
    world.lets = relay_alone
    one.link.send_frame(b"still here")
    assert world.run(6.0, lambda: two.frames == [b"still here"])
    world.run(20.0)
    assert one.link.state is two.link.state is LinkState.RELAYED
    assert not [event for event in one.events + two.events if isinstance(event, Closed)]


def test_a_circuit_that_the_rendezvous_forgot_is_asked_for_again_and_bound_by_both(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    forgotten = circuit_of(world)
    world.circuits.release_session(forgotten.owner[0])
    assert len(world.circuits) == 0
    world.run(40.0)
    assert circuit_of(world) is not forgotten
    assert circuit_of(world).state is CircuitState.BOUND
    world.lets = relay_alone
    assert world.run(7.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    world.circuits.release_session(forgotten.owner[0])
    world.run(4.0)
    echo(world)
    assert not [event for event in one.events + two.events if isinstance(event, Closed)]


def test_a_relay_that_carries_less_than_the_direct_path_did_carries_the_edge(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(5.0)
    world.lets = lambda source, target, data: relay_alone(source, target, data) and len(data) <= 1400
    assert world.run(7.0, lambda: one.link.state is two.link.state is LinkState.RELAYED)
    echo(world, 20_000)
    assert one.link.connection.datagram_bytes == two.link.connection.datagram_bytes == 1360
    world.lets = lambda source, target, data: (
        len(data) <= 1300
    )  # a tunnel that carries less still, but goes straight
    assert world.run(20.0, lambda: one.link.state is two.link.state is LinkState.DIRECT)
    echo(world, 20_000)


@pytest.mark.parametrize("relay_only", [False, True])
def test_a_path_that_comes_to_carry_less_goes_on_carrying_the_edge(world_of, relay_only):
    world = world_of(relay_only=relay_only)
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    echo(world, 20_000)
    world.lets = lambda source, target, data: len(data) <= 1300
    echo(world, 20_000)
    assert one.link.connection.datagram_bytes == two.link.connection.datagram_bytes == 1200
    assert not [event for event in one.events + two.events if isinstance(event, Closed | Moved)]


def test_a_silence_that_ends_by_itself_leaves_the_circuit_in_reserve(world_of):
    world = world_of()
    one, two = connect(world)
    assert world.run(1.0, are_open(one, two))
    world.run(5.0)
    world.lets = lambda source, target, data: False
    world.run(4.0)
    world.lets = lambda source, target, data: RENDEZVOUS not in (source, target)
    echo(world)
    world.lets = lambda source, target, data: True
    world.run(20.0)
    world.carried.clear()
    world.run(60.0)
    assert len([target for _, target, _ in world.carried if target == RENDEZVOUS]) <= 2 * 60 / 10
    assert one.events == two.events == [Connected("direct")]
