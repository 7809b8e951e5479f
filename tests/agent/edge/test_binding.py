from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.binding import BindingState, CircuitBinding
from kafila_proto import relay
from kafila_rendezvous.circuits import Circuits

HERE, THERE = ("a", 1), ("b", 2)


def bind(binding: CircuitBinding, circuits: Circuits, source, now: float) -> None:
    """Until there is nothing to be said at once: with the token, if one is wanted."""
    while datagrams := binding.datagrams_to_send(now):
        for data in datagrams:
            answer, _ = circuits.receive_datagram(data, source, now)
            binding.receive_datagram(answer, now)


def two_sides():
    circuits = Circuits()
    grants = circuits.grant(b"s", 1, b"a", b"b", 0.0), circuits.grant(b"s", 1, b"b", b"a", 0.0)
    return circuits, *(CircuitBinding(g.circuit_id, g.key, 0.0) for g in grants)


def test_both_sides_bind_and_data_passes_as_it_came():
    circuits, one, two = two_sides()
    bind(one, circuits, HERE, 0.0)
    assert one.state is BindingState.HALF_BOUND
    bind(two, circuits, THERE, 0.0)
    assert two.state is BindingState.BOUND
    bind(one, circuits, HERE, one.get_timer())
    assert one.state is BindingState.BOUND
    assert circuits.receive_datagram(one.wrap(b"x"), HERE, 1.0) == (one.wrap(b"x"), THERE)
    assert two.wrap(b"x") == one.wrap(b"x")


def test_a_bind_is_repeated_until_it_is_answered_and_renewed_afterwards():
    circuits, one, two = two_sides()
    bind(two, circuits, THERE, 0.0)
    times = []
    for _ in range(5):
        times.append(one.get_timer())
        assert len(one.datagrams_to_send(times[-1])) == 1
        assert one.datagrams_to_send(times[-1]) == []
    assert all(0 < b - a <= 0.5 for a, b in itertools.pairwise(times))
    assert one.is_mute
    bind(one, circuits, HERE, one.get_timer())
    renewed_at = one.get_timer()
    assert renewed_at - times[-1] > 1.0
    assert not one.is_mute
    bind(one, circuits, ("a", 9), renewed_at)
    assert circuits.receive_datagram(two.wrap(b"x"), THERE, renewed_at) == (two.wrap(b"x"), ("a", 9))
    one.release()
    assert one.datagrams_to_send(renewed_at + 1000) == []


def test_answers_to_other_binds_or_under_other_keys_are_ignored():
    circuits, one, _ = two_sides()
    for _ in range(2):  # at first it asks for the token
        ((bind_again),) = one.datagrams_to_send(0.0)
        answer, _ = circuits.receive_datagram(bind_again, HERE, 0.0)
        if one._token == relay.NO_TOKEN:
            one.receive_datagram(answer, 0.0)
    forged = relay.encode_binding(relay.RelayKind.BOUND, one.circuit_id, one._counter, b"k" * 32)
    late = relay.encode_binding(relay.RelayKind.BOUND, one.circuit_id, one._counter + 7, one._key)
    for data in (forged, late, bind_again):
        one.receive_datagram(data, 0.0)
        assert one.state is BindingState.UNANSWERED
    one.receive_datagram(answer, 0.0)
    assert one.state is BindingState.HALF_BOUND


def test_an_answer_that_takes_longer_than_a_bind_is_repeated_counts():
    circuits, one, _ = two_sides()
    flying = []
    for _ in range(40):
        now = one.get_timer()
        for data in one.datagrams_to_send(now):
            flying.append((now + 0.7, circuits.receive_datagram(data, HERE, now)[0]))
        while flying and flying[0][0] <= one.get_timer():
            one.receive_datagram(flying[0][1], flying.pop(0)[0])
    assert one.state is BindingState.HALF_BOUND


def test_in_reserve_it_is_bound_seldom_and_at_once_when_it_is_wanted():
    circuits, one, two = two_sides()
    bind(one, circuits, HERE, 0.0)
    bind(two, circuits, THERE, 0.0)
    bind(one, circuits, HERE, one.get_timer())
    one.spare(1.0)
    for _ in range(10):
        now = one.get_timer()
        bind(one, circuits, HERE, now)
        assert 10.0 < one.get_timer() - now < circuits.get_timer() - now  # or it would be forgotten
    one.keep(now + 0.1)
    assert one.get_timer() == now + 0.1


def test_a_later_binding_of_the_same_grant_is_no_old_datagram():
    circuits, one, _ = two_sides()
    for _ in range(20):
        bind(one, circuits, HERE, one.get_timer())
    later = CircuitBinding(one.circuit_id, one._key, 60.0)
    bind(later, circuits, THERE, 60.0)
    assert later.state is BindingState.HALF_BOUND


@given(st.binary(max_size=80))
def test_garbage_changes_nothing(data):
    _, one, _ = two_sides()
    one.datagrams_to_send(0.0)
    one.receive_datagram(data, 0.0)
    one.receive_datagram(relay.MAGIC + data, 0.0)
    assert one.state is BindingState.UNANSWERED
