from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kafila_proto import relay
from kafila_rendezvous.circuits import (
    ALLOCATED_S,
    IDLE_S,
    TRANSITIONS,
    CircuitError,
    CircuitEvent,
    Circuits,
    CircuitState,
)

HERE, THERE, ELSEWHERE = ("here", 1), ("there", 2), ("elsewhere", 3)
SESSION = b"session"


def grants(circuits: Circuits, now: float = 0.0):
    return circuits.grant(SESSION, 1, b"a", b"b", now), circuits.grant(SESSION, 1, b"b", b"a", now)


def ask(circuits: Circuits, grant, source, counter: int, token=relay.NO_TOKEN, now=0.0, place=None):
    """One BIND; what the rendezvous answers to it."""
    data = relay.encode_binding(relay.RelayKind.BIND, grant.circuit_id, counter, grant.key, token)
    answer = circuits.receive_datagram(data, source, now, place)
    if answer is None:
        return None
    reply, target = answer
    assert target == source
    assert len(reply) <= len(data)
    binding = relay.parse_binding(reply)
    assert binding.is_authentic(grant.key)
    assert binding.counter == counter
    return binding


def bind(circuits: Circuits, grant, source, counter: int = 1, now: float = 0.0, place=None):
    """All that it takes to bind, from whatever address; what the last answer is."""
    binding = ask(circuits, grant, source, 2 * counter, now=now, place=place)
    if binding is not None and binding.kind is relay.RelayKind.CHALLENGE:
        binding = ask(circuits, grant, source, 2 * counter + 1, binding.token, now, place)
    return None if binding is None else binding.kind


def bound_circuit(**options):
    circuits = Circuits(**options)
    one, two = grants(circuits)
    assert bind(circuits, one, HERE) is relay.RelayKind.HALF_BOUND
    assert bind(circuits, two, THERE) is relay.RelayKind.BOUND
    return circuits, one, two


def data_of(grant, payload: bytes = b"ciphertext") -> bytes:
    return relay.data_header(grant.circuit_id) + payload


def test_the_table_moves_only_forward():
    order = list(CircuitState)
    assert all(order.index(after) > order.index(before) for (before, _), after in TRANSITIONS.items())
    with pytest.raises(KeyError):
        TRANSITIONS[CircuitState.BOUND, CircuitEvent.SIDE_BOUND]


def test_both_ends_of_an_edge_get_one_circuit_and_a_key_each():
    circuits = Circuits()
    one, two = grants(circuits)
    assert one.circuit_id == two.circuit_id
    assert one.key != two.key
    assert grants(circuits) == (one, two)
    assert circuits.grant(SESSION, 2, b"a", b"b", 0.0).circuit_id != one.circuit_id
    assert circuits.grant(SESSION, 1, b"a", b"c", 0.0).circuit_id != one.circuit_id


def test_what_one_side_sends_reaches_the_other_untouched():
    circuits, one, two = bound_circuit()
    assert circuits.receive_datagram(data_of(one), HERE, 0.0) == (data_of(one), THERE)
    assert circuits.receive_datagram(data_of(two), THERE, 0.0) == (data_of(two), HERE)
    assert (circuits.forwarded_datagrams, circuits.forwarded_bytes) == (2, 2 * len(data_of(one)))


def test_nothing_passes_before_both_sides_are_bound():
    circuits = Circuits()
    one, two = grants(circuits)
    assert circuits.receive_datagram(data_of(one), HERE, 0.0) is None
    bind(circuits, one, HERE)
    assert circuits.receive_datagram(data_of(one), HERE, 0.0) is None
    bind(circuits, two, THERE)
    assert circuits.receive_datagram(data_of(one), ELSEWHERE, 0.0) is None
    assert circuits.receive_datagram(relay.data_header(b"unknown!") + b"x", HERE, 0.0) is None
    assert circuits.dropped_datagrams == {"unbound": 3, "unknown circuit": 1}


def test_a_side_moves_with_its_key_and_a_new_counter_only():
    circuits, one, two = bound_circuit()
    assert bind(circuits, one, ELSEWHERE, counter=1) is None
    forged = type(one)(one.circuit_id, b"f" * 32)
    assert bind(circuits, forged, ELSEWHERE, counter=2) is None
    assert circuits.receive_datagram(data_of(two), THERE, 0.0)[1] == HERE
    assert bind(circuits, one, ELSEWHERE, counter=2) is relay.RelayKind.BOUND
    assert circuits.receive_datagram(data_of(two), THERE, 0.0)[1] == ELSEWHERE
    assert circuits.receive_datagram(data_of(one), HERE, 0.0) is None
    assert circuits.dropped_datagrams == {"played again": 1, "wrong key": 1, "unbound": 1}


def test_nothing_is_forwarded_to_an_address_that_has_not_returned_its_token():
    circuits, one, two = bound_circuit()
    victim = ELSEWHERE
    first, again = (ask(circuits, one, victim, counter) for counter in (8, 9))
    assert first.kind is again.kind is relay.RelayKind.CHALLENGE
    assert first.token == again.token != relay.NO_TOKEN  # a repeated BIND makes the token on its way no worse
    elsewhere = ask(circuits, one, ("fourth", 4), 10)
    for counter, token in ((11, relay.NO_TOKEN), (12, elsewhere.token), (13, bytes(7) + b"x")):
        assert ask(circuits, one, victim, counter, token).kind is relay.RelayKind.CHALLENGE
        assert circuits.receive_datagram(data_of(two), THERE, 0.0)[1] == HERE
    assert circuits.receive_datagram(data_of(one), victim, 0.0) is None
    token = ask(circuits, one, victim, 14).token
    assert ask(circuits, one, victim, 15, token).kind is relay.RelayKind.BOUND
    assert circuits.receive_datagram(data_of(two), THERE, 0.0)[1] == victim


def test_the_rendezvous_own_answers_bind_nothing():
    circuits, one, _ = bound_circuit()
    reply = relay.encode_binding(relay.RelayKind.BOUND, one.circuit_id, 9, one.key)
    assert circuits.receive_datagram(reply, ELSEWHERE, 0.0) is None
    assert circuits.dropped_datagrams == {"malformed": 1}


def test_a_circuit_that_is_not_bound_in_time_expires():
    circuits = Circuits()
    one, _ = grants(circuits)
    bind(circuits, one, HERE)
    assert circuits.get_timer() == ALLOCATED_S
    circuits.handle_timer(ALLOCATED_S - 0.1)
    assert len(circuits) == 1
    circuits.handle_timer(ALLOCATED_S)
    assert len(circuits) == 0
    assert circuits.get_timer() is None
    assert bind(circuits, one, HERE, counter=2) is None


def test_a_bound_circuit_lives_as_long_as_something_moves_or_is_bound_again():
    circuits, one, _ = bound_circuit()
    circuits.receive_datagram(data_of(one), HERE, 50.0)
    assert circuits.get_timer() == 50.0 + IDLE_S
    bind(circuits, one, HERE, counter=2, now=100.0)
    circuits.handle_timer(100.0 + IDLE_S - 0.1)
    assert len(circuits) == 1
    circuits.handle_timer(100.0 + IDLE_S)
    assert len(circuits) == 0


def test_a_session_that_is_over_takes_its_circuits_along_and_no_others():
    circuits, one, _ = bound_circuit()
    circuits.grant(SESSION, 2, b"a", b"b", 0.0)
    circuits.grant(b"other", 1, b"a", b"b", 0.0)
    circuits.release_session(SESSION, before_epoch=2)
    assert len(circuits) == 2
    circuits.release_session(SESSION)
    assert len(circuits) == 1
    assert circuits.receive_datagram(data_of(one), HERE, 0.0) is None


def test_a_circuit_carries_so_much_a_second_and_no_more():
    circuits, one, two = bound_circuit(bytes_per_s=1000, burst_bytes=2000)
    datagram = data_of(one, bytes(488))
    passed = sum(circuits.receive_datagram(datagram, HERE, 0.0) is not None for _ in range(10))
    assert passed == 4
    assert circuits.receive_datagram(data_of(two, bytes(488)), THERE, 0.0) is None
    assert circuits.receive_datagram(datagram, HERE, 0.5) is not None
    assert circuits.receive_datagram(datagram, HERE, 0.5) is None
    assert sum(circuits.receive_datagram(datagram, HERE, 100.0) is not None for _ in range(10)) == 4
    assert circuits.dropped_datagrams["rate"] == 14


def test_so_many_sides_may_be_at_one_address():
    circuits = Circuits(max_sides_a_place=2)
    sides = [circuits.grant(SESSION, epoch, b"a", b"b", 0.0) for epoch in range(3)]

    def bind_at(place: str, grant, counter: int) -> bool:
        return bind(circuits, grant, f"at {place}", counter, place=place) is not None

    assert [bind_at("home", side, 1) for side in sides] == [True, True, False]
    assert circuits.dropped_datagrams == {"too many at one address": 1}
    assert bind_at("home", sides[0], 2)  # again
    assert bind_at("work", sides[0], 3)  # moved away
    assert bind_at("home", sides[2], 2)
    circuits.release_session(SESSION)
    assert not circuits._at_place


def test_all_that_one_address_sends_over_its_circuits_is_limited_together_and_nobody_elses_is():
    circuits = Circuits(place_bytes_per_s=1000, place_burst_bytes=2000)
    pairs = []
    for epoch in range(3):
        pair = [circuits.grant(SESSION, epoch, *ends, 0.0) for ends in ((b"a", b"b"), (b"b", b"a"))]
        for grant, source, place in zip(pair, (HERE, THERE), ("home", f"away{epoch}"), strict=True):
            assert bind(circuits, grant, source, place=place) is not None
        pairs.append(pair)
    out = [data_of(one, bytes(488)) for one, _ in pairs]
    passed = sum(circuits.receive_datagram(out[n % 3], HERE, 0.0) is not None for n in range(12))
    assert passed == 4
    for _, two in pairs:
        assert circuits.receive_datagram(data_of(two, bytes(488)), THERE, 0.0) is not None
    assert circuits.receive_datagram(out[1], HERE, 0.5) is not None
    assert circuits.receive_datagram(out[2], HERE, 0.5) is None
    assert circuits.dropped_datagrams == {"rate of one address": 9}


def test_neither_a_session_nor_the_world_can_have_circuits_without_end():
    circuits = Circuits(max_circuits=3, max_circuits_a_session=2)
    circuits.grant(SESSION, 1, b"a", b"b", 0.0)
    circuits.grant(SESSION, 1, b"a", b"c", 0.0)
    with pytest.raises(CircuitError, match="this session has 2"):
        circuits.grant(SESSION, 1, b"a", b"d", 0.0)
    circuits.grant(SESSION, 1, b"b", b"a", 0.0)
    circuits.grant(b"other", 1, b"a", b"b", 0.0)
    with pytest.raises(CircuitError, match="3 edges already"):
        circuits.grant(b"third", 1, b"a", b"b", 0.0)
    with pytest.raises(CircuitError, match="to itself"):
        circuits.grant(SESSION, 1, b"a", b"a", 0.0)


@given(st.binary(max_size=100), st.booleans())
def test_garbage_is_dropped_without_a_word(data, with_circuit):
    circuits, one, _ = bound_circuit()
    head = relay.MAGIC + (data[:1] or b"\0") + (one.circuit_id if with_circuit else data[1:9].ljust(8, b"\0"))
    assert circuits.receive_datagram(head + data[9:], ELSEWHERE, 0.0) is None
    assert sum(circuits.dropped_datagrams.values()) == 1


class CircuitMachine(RuleBasedStateMachine):
    """Whatever members do, data passes only between the two addresses bound last, and expired means gone."""

    def __init__(self):
        super().__init__()
        self.circuits, self.now = Circuits(), 0.0
        self.counter = 0
        self.bound: dict[bytes, object] = {}
        self.used_at = 0.0
        self.grants = dict(zip((b"a", b"b"), grants(self.circuits), strict=True))

    @rule(side=st.sampled_from([b"a", b"b"]), source=st.integers(0, 5))
    def bind(self, side, source):
        self.counter += 1
        kind = bind(self.circuits, self.grants[side], source, self.counter, self.now)
        if kind is None:
            assert len(self.circuits) == 0
            return
        self.bound[side] = source
        assert (kind is relay.RelayKind.BOUND) == (len(self.bound) == 2)
        if len(self.bound) == 2:
            self.used_at = self.now

    @rule(source=st.integers(0, 5))
    def send(self, source):
        answer = self.circuits.receive_datagram(data_of(self.grants[b"a"]), source, self.now)
        if len(self.circuits) == 0 or len(self.bound) < 2 or source not in self.bound.values():
            assert answer is None
            return
        a, b = self.bound[b"a"], self.bound[b"b"]
        assert answer[1] in ({a, b} - {source} or {a})
        self.used_at = self.now

    @rule(seconds=st.floats(0.1, 40.0))
    def wait(self, seconds):
        self.now += seconds
        self.circuits.handle_timer(self.now)

    @invariant()
    def is_there_as_long_as_it_is_used(self):
        limit = IDLE_S if len(self.bound) == 2 else ALLOCATED_S
        assert len(self.circuits) == (self.now < self.used_at + limit)


TestCircuitMachine = CircuitMachine.TestCase
TestCircuitMachine.settings = settings(max_examples=25, deadline=None)
