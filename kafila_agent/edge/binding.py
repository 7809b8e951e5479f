"""A member's side of a circuit: binds the address it is seen from, and keeps it bound.

A datagram core beside ``kafila_rendezvous.circuits``; the bytes are drawn in ``kafila_proto.relay``.
"""

from __future__ import annotations

import enum

from kafila_proto import relay

_RETRY_S = (0.1, 0.2, 0.4)  # unanswered; the last one repeats
_REFRESH_S = 2.0  # well under the edge's idle timeout: the circuit follows a changed address within that
_HALF_BOUND_S = 0.25


class BindingState(enum.StrEnum):
    """What the rendezvous last said."""

    UNANSWERED = "unanswered"
    HALF_BOUND = "half-bound"
    BOUND = "bound"


class CircuitBinding:
    """One grant in use."""

    def __init__(self, circuit_id: bytes, key: bytes, now: float):
        self.circuit_id = circuit_id
        self.state = BindingState.UNANSWERED
        self._key = key
        self._header = relay.data_header(circuit_id)
        # Above every counter that an earlier binding of this agent used, so that a lost edge can come back over
        # the same circuit: nobody binds a million times a second.
        self._counter = int(now * 1_000_000)
        self._unanswered = 0
        self._bind_at = now

    def wrap(self, data: bytes) -> bytes:
        """``data`` as a datagram of this circuit."""
        return self._header + data

    def receive_datagram(self, data: bytes, now: float) -> None:
        """Take the rendezvous's answer; anything else is ignored."""
        answer = relay.parse_binding(data)
        if answer is None or answer.kind is relay.RelayKind.BIND or answer.circuit_id != self.circuit_id:
            return
        if answer.counter != self._counter or not answer.is_authentic(self._key):
            return
        bound = answer.kind is relay.RelayKind.BOUND
        self.state = BindingState.BOUND if bound else BindingState.HALF_BOUND
        self._unanswered = 0
        self._bind_at = now + (_REFRESH_S if bound else _HALF_BOUND_S)

    def datagrams_to_send(self, now: float) -> list[bytes]:
        """A BIND, if one is due."""
        if now < self._bind_at:
            return []
        self._counter += 1
        self._bind_at = now + _RETRY_S[min(self._unanswered, len(_RETRY_S) - 1)]
        self._unanswered += 1
        return [relay.encode_binding(relay.RelayKind.BIND, self.circuit_id, self._counter, self._key)]

    def keep(self, now: float) -> None:
        """Bind again and again, also after a ``release``."""
        self._bind_at = min(self._bind_at, now + _REFRESH_S)

    def release(self) -> None:
        """Bind no more: the rendezvous forgets the circuit when nothing has moved over it for a while."""
        self._bind_at = float("inf")

    def get_timer(self) -> float:
        """When the next BIND is due."""
        return self._bind_at
