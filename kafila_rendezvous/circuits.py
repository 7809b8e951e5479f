"""Circuits: relayed paths between two members, as a core that takes datagrams and the time and keeps no
socket.

A circuit is ALLOCATED when a member of an edge asks for it. Each side binds the address it is seen from,
with the key it was granted: the first makes the circuit HALF_BOUND, the second BOUND, and from then on
whatever comes from one side's address goes to the other's, unread. A side may bind again from a new
address; the key proves the right, the counter that it is not an old datagram, and a token that was sent to
that address that its source is not forged. A circuit that nobody binds,
or over which nothing moves, is EXPIRED. Datagrams of unknown or unbound circuits are dropped without a
word: an answer would serve only a stranger.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kafila_proto import relay

ALLOCATED_S = 60.0  # to bind both sides in
IDLE_S = 60.0  # without a datagram, once bound
BYTES_PER_S = 25_000_000
BURST_BYTES = 8_000_000
PLACE_BYTES_PER_S = 50_000_000  # of all that one network sends
PLACE_BURST_BYTES = 16_000_000
MAX_CIRCUITS = 16384  # some 1 KiB each; every edge has one, most of them in reserve
MAX_CIRCUITS_A_SESSION = 128
MAX_SIDES_A_PLACE = 256  # several agents may share one address

Source = Any  # whatever the shell names an address by; compared, never read
Place = Any  # the network a source is of; likewise
Answer = tuple[bytes, Source] | None


class CircuitState(enum.StrEnum):
    """How far a circuit has come."""

    ALLOCATED = "allocated"
    HALF_BOUND = "half-bound"
    BOUND = "bound"
    EXPIRED = "expired"


class CircuitEvent(enum.StrEnum):
    """What moves a circuit on."""

    SIDE_BOUND = "a side bound for the first time"
    RAN_OUT = "nobody bound it or used it for too long, or its session is over"


TRANSITIONS = {
    (CircuitState.ALLOCATED, CircuitEvent.SIDE_BOUND): CircuitState.HALF_BOUND,
    (CircuitState.HALF_BOUND, CircuitEvent.SIDE_BOUND): CircuitState.BOUND,
    (CircuitState.ALLOCATED, CircuitEvent.RAN_OUT): CircuitState.EXPIRED,
    (CircuitState.HALF_BOUND, CircuitEvent.RAN_OUT): CircuitState.EXPIRED,
    (CircuitState.BOUND, CircuitEvent.RAN_OUT): CircuitState.EXPIRED,
}


class CircuitError(Exception):
    """A circuit that cannot be granted."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one side of a circuit is told: the fields of a CircuitGrant message."""

    circuit_id: bytes
    key: bytes


@dataclass(slots=True)
class Bucket:
    """So many bytes a second, and some at once."""

    bytes_per_s: float
    burst_bytes: float
    refilled_at: float
    tokens: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.burst_bytes

    def holds(self, size: int, now: float) -> bool:
        """Whether there is room for ``size`` bytes, with what has come in since the last time it was asked."""
        if self.tokens < size:
            self.tokens = min(self.burst_bytes, self.tokens + (now - self.refilled_at) * self.bytes_per_s)
            self.refilled_at = now
        return self.tokens >= size


@dataclass(slots=True)
class _Residents:
    """The sides that are at one place, and what all of them together may send."""

    bucket: Bucket
    sides: int = 0


@dataclass(slots=True)
class Side:
    """One end of a circuit."""

    member: bytes
    key: bytes
    source: Source | None = None
    place: Place | None = None
    counter: int = 0
    place_bucket: Bucket | None = None
    challenged: tuple[Source, bytes] | None = None  # an address, and the token that proves it

    def must_prove(self, source: Source, token: bytes) -> bytes | None:
        """The token that ``source`` must return before it is bound; None if it need not, or just has."""
        if source == self.source or (source, token) == self.challenged:
            self.challenged = None
            return None
        if self.challenged is None or self.challenged[0] != source:
            self.challenged = source, os.urandom(relay.TOKEN_BYTES)
        return self.challenged[1]


@dataclass(slots=True)
class Circuit:
    """One relayed path and what it has carried."""

    circuit_id: bytes
    owner: tuple[bytes, int]
    sides: tuple[Side, Side]
    expires_at: float
    bucket: Bucket
    state: CircuitState = CircuitState.ALLOCATED
    forwarded_datagrams: int = 0
    forwarded_bytes: int = 0
    dropped_datagrams: int = 0

    def advance(self, event: CircuitEvent) -> None:
        """Move to the state the table gives. Raises KeyError for an event this state cannot have."""
        self.state = TRANSITIONS[self.state, event]

    def side_of(self, member: bytes) -> Side:
        """The side that belongs to ``member`` (a fingerprint)."""
        return self.sides[0] if self.sides[0].member == member else self.sides[1]


@dataclass(slots=True)
class Circuits:
    """Every circuit of one rendezvous. Rates are per circuit, both directions together, and per place that sends."""

    bytes_per_s: float = BYTES_PER_S
    burst_bytes: float = BURST_BYTES
    place_bytes_per_s: float = PLACE_BYTES_PER_S
    place_burst_bytes: float = PLACE_BURST_BYTES
    max_circuits: int = MAX_CIRCUITS
    max_circuits_a_session: int = MAX_CIRCUITS_A_SESSION
    max_sides_a_place: int = MAX_SIDES_A_PLACE
    forwarded_datagrams: int = 0
    forwarded_bytes: int = 0
    dropped_datagrams: Counter[str] = field(default_factory=Counter)
    _by_id: dict[bytes, Circuit] = field(default_factory=dict)
    _by_edge: dict[tuple[bytes, int, frozenset[bytes]], Circuit] = field(default_factory=dict)
    _by_session: Counter[bytes] = field(default_factory=Counter)
    _at_place: dict[Place, _Residents] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_id)

    def count_by_state(self) -> Counter[CircuitState]:
        """How many circuits there are of each state."""
        return Counter(circuit.state for circuit in list(self._by_id.values()))

    def grant(self, session_id: bytes, epoch: int, member: bytes, peer: bytes, now: float) -> Grant:
        """``member``'s side of the circuit to ``peer`` (fingerprints); both ends get the same circuit.

        Asking again gives the same answer while the circuit lives. Raises CircuitError where the rendezvous or
        the session has as many as it may.
        """
        if member == peer:
            raise CircuitError("a member needs no circuit to itself")
        edge = (session_id, epoch, frozenset((member, peer)))
        circuit = self._by_edge.get(edge)
        if circuit is None:
            circuit = self._allocate(session_id, epoch, member, peer, now)
            self._by_edge[edge] = circuit
        return Grant(circuit.circuit_id, circuit.side_of(member).key)

    def receive_datagram(self, data: bytes, source: Source, now: float, place: Place = None) -> Answer:
        """What to send for one datagram of a circuit, and where; None where it is dropped.

        ``place`` is looked at for those that bind: so many sides may be at one, if it is given.
        """
        circuit = self._by_id.get(data[4 : relay.HEADER_BYTES])
        if circuit is None:
            return self._drop(None, "unknown circuit")
        if data[3] == relay.RelayKind.DATA:
            return self._forward(circuit, data, source, now)
        return self._bind(circuit, data, source, now, place)

    def release_session(self, session_id: bytes, *, before_epoch: int | None = None) -> None:
        """Expire a session's circuits, or only those of plans older than ``before_epoch``."""
        for circuit in list(self._by_id.values()):
            owner, epoch = circuit.owner
            if owner == session_id and (before_epoch is None or epoch < before_epoch):
                self._expire(circuit)

    def get_timer(self) -> float | None:
        """When the next circuit may run out; None where there is none."""
        return min((circuit.expires_at for circuit in self._by_id.values()), default=None)

    def handle_timer(self, now: float) -> None:
        """Expire what has run out by ``now``."""
        for circuit in [c for c in self._by_id.values() if c.expires_at <= now]:
            self._expire(circuit)

    def _allocate(self, session_id: bytes, epoch: int, member: bytes, peer: bytes, now: float) -> Circuit:
        if len(self._by_id) >= self.max_circuits:
            raise CircuitError(f"this rendezvous relays {self.max_circuits} edges already; try another one")
        if self._by_session[session_id] >= self.max_circuits_a_session:
            raise CircuitError(f"this session has {self.max_circuits_a_session} relayed edges already")
        circuit = Circuit(
            os.urandom(relay.CIRCUIT_ID_BYTES),
            (session_id, epoch),
            (Side(member, os.urandom(relay.KEY_BYTES)), Side(peer, os.urandom(relay.KEY_BYTES))),
            expires_at=now + ALLOCATED_S,
            bucket=Bucket(self.bytes_per_s, self.burst_bytes, now),
        )
        self._by_id[circuit.circuit_id] = circuit
        self._by_session[session_id] += 1
        return circuit

    def _bind(self, circuit: Circuit, data: bytes, source: Source, now: float, place: Place) -> Answer:
        binding = relay.parse_binding(data)
        if binding is None or binding.kind is not relay.RelayKind.BIND:
            return self._drop(circuit, "malformed")
        side = next((s for s in circuit.sides if binding.is_authentic(s.key)), None)
        if side is None:
            return self._drop(circuit, "wrong key")
        if binding.counter <= side.counter:
            return self._drop(circuit, "played again")
        side.counter = binding.counter
        answer = circuit.circuit_id, binding.counter, side.key
        token = side.must_prove(source, binding.token)
        if token is not None:
            return relay.encode_binding(relay.RelayKind.CHALLENGE, *answer, token), source
        if not self._settle(side, place, now):
            return self._drop(circuit, "too many at one address")
        if side.source is None:
            circuit.advance(CircuitEvent.SIDE_BOUND)
        side.source = source
        bound = circuit.state is CircuitState.BOUND
        if bound:
            circuit.expires_at = now + IDLE_S
        kind = relay.RelayKind.BOUND if bound else relay.RelayKind.HALF_BOUND
        return relay.encode_binding(kind, *answer), source

    def _forward(
        self, circuit: Circuit, data: bytes, source: Source, now: float
    ) -> tuple[bytes, Source] | None:
        if circuit.state is not CircuitState.BOUND:
            return self._drop(circuit, "unbound")
        first, second = circuit.sides
        if source == first.source:
            target, place = second.source, first.place_bucket
        elif source == second.source:
            target, place = first.source, second.place_bucket
        else:
            return self._drop(circuit, "unbound")
        size, bucket = len(data), circuit.bucket
        if bucket.tokens < size and not bucket.holds(size, now):
            return self._drop(circuit, "rate")
        if place is not None:
            if place.tokens < size and not place.holds(size, now):
                return self._drop(circuit, "rate of one address")
            place.tokens -= size
        bucket.tokens -= size
        circuit.expires_at = now + IDLE_S
        circuit.forwarded_datagrams += 1
        circuit.forwarded_bytes += size
        self.forwarded_datagrams += 1
        self.forwarded_bytes += size
        return data, target

    def _settle(self, side: Side, place: Place, now: float) -> bool:
        """Let a side be at ``place``, if there is room for one more."""
        if place == side.place or place is None:
            return True
        residents = self._at_place.get(place)
        if residents is None:
            bucket = Bucket(self.place_bytes_per_s, self.place_burst_bytes, now)
            residents = self._at_place[place] = _Residents(bucket)
        if residents.sides >= self.max_sides_a_place:
            return False
        residents.sides += 1
        self._unsettle(side)
        side.place, side.place_bucket = place, residents.bucket
        return True

    def _unsettle(self, side: Side) -> None:
        if side.place is not None:
            residents = self._at_place[side.place]
            residents.sides -= 1
            if not residents.sides:
                del self._at_place[side.place]
            side.place = side.place_bucket = None

    def _drop(self, circuit: Circuit | None, why: str) -> Answer:
        self.dropped_datagrams[why] += 1
        if circuit is not None:
            circuit.dropped_datagrams += 1
        return None

    def _expire(self, circuit: Circuit) -> None:
        circuit.advance(CircuitEvent.RAN_OUT)
        del self._by_id[circuit.circuit_id]
        for side in circuit.sides:
            self._unsettle(side)
        session_id, epoch = circuit.owner
        del self._by_edge[session_id, epoch, frozenset(side.member for side in circuit.sides)]
        self._by_session[session_id] -= 1
        if not self._by_session[session_id]:
            del self._by_session[session_id]
