"""A member's side of a circuit: binds the address it is seen from, and keeps it bound.

A datagram core beside ``kafila_rendezvous.circuits``; the bytes are drawn in ``kafila_proto.relay``.
"""

from __future__ import annotations

import enum

from kafila_proto import relay

_FIRST_RETRY_S = 0.1  # doubled while nobody answers
_LONGEST_RETRY_S = 0.4
_REFRESH_S = 2.0  # well under the edge's idle timeout: the circuit follows a changed address within that
_HALF_BOUND_S = 0.25
_SPARE_REFRESH_S = 15.0  # in reserve: well under what the rendezvous forgets after, and what NATs do
_MUTE_TRIES = 4


class BindingState(enum.StrEnum):
    """What the rendezvous last said."""

    UNANSWERED = "unanswered"
    HALF_BOUND = "half-bound"
    BOUND = "bound"


class CircuitBinding:
    """One grant in use, or, where ``is_spare``, in reserve."""

    def __init__(self, circuit_id: bytes, key: bytes, now: float, *, is_spare: bool = False):
        self.circuit_id = circuit_id
        self.state = BindingState.UNANSWERED
        self._key = key
        self._is_spare = is_spare
        self._header = relay.data_header(circuit_id)
        # Above every counter that an earlier binding of this agent used, so that a lost edge can come back over
        # the same circuit: nobody binds a million times a second.
        self._counter = int(now * 1_000_000)
        self._answered = self._counter
        self._token = relay.NO_TOKEN
        self._unanswered = 0
        self._bind_at = now

    @property
    def is_mute(self) -> bool:
        """Whether nobody answers any more: the rendezvous may have forgotten the circuit."""
        return self._unanswered >= _MUTE_TRIES

    def wrap(self, data: bytes) -> bytes:
        """``data`` as a datagram of this circuit."""
        return self._header + data

    def receive_datagram(self, data: bytes, now: float) -> None:
        """Take the rendezvous's answer; anything else is ignored."""
        answer = relay.parse_binding(data)
        if answer is None or answer.kind is relay.RelayKind.BIND or answer.circuit_id != self.circuit_id:
            return
        if not self._answered < answer.counter <= self._counter or not answer.is_authentic(self._key):
            return
        self._answered, self._unanswered = answer.counter, 0
        if answer.kind is relay.RelayKind.CHALLENGE:
            self._token, self._bind_at = answer.token, now
            return
        bound = answer.kind is relay.RelayKind.BOUND
        self.state = BindingState.BOUND if bound else BindingState.HALF_BOUND
        if self._is_spare:
            self._bind_at = now + _SPARE_REFRESH_S
        else:
            self._bind_at = now + (_REFRESH_S if bound else _HALF_BOUND_S)

    def datagrams_to_send(self, now: float) -> list[bytes]:
        """A BIND, if one is due."""
        if now < self._bind_at:
            return []
        self._counter += 1
        longest_s = _SPARE_REFRESH_S if self._is_spare else _LONGEST_RETRY_S
        self._bind_at = now + min(_FIRST_RETRY_S * 2 ** min(self._unanswered, 16), longest_s)
        self._unanswered += 1
        kind = relay.RelayKind.BIND
        return [relay.encode_binding(kind, self.circuit_id, self._counter, self._key, self._token)]

    def keep(self, now: float) -> None:
        """Bind at once and often: something depends on it."""
        if self._is_spare:
            self._is_spare, self._bind_at = False, now

    def spare(self, now: float) -> None:
        """Bind seldom from now on, as long as nothing depends on it."""
        self._is_spare = True
        self._bind_at = now + _SPARE_REFRESH_S if self.state is BindingState.BOUND else now

    def release(self) -> None:
        """Bind no more: the rendezvous forgets the circuit when nothing has moved over it for a while."""
        self._is_spare, self._bind_at = True, float("inf")

    def get_timer(self) -> float:
        """When the next BIND is due."""
        return self._bind_at
