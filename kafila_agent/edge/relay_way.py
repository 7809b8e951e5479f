"""The way over the rendezvous: a circuit, in reserve from the first, checked when it is wanted. A datagram core.

    NONE      no edge is asked for
    SPARE     the circuit is asked for and bound, seldom: whoever falls silent later may be unable to ask
    WANTED    nothing else carries the edge: bound often, its path checked; asked for again until both ends have bound
    CARRYING  the edge goes over it

Both ends get the circuit, whoever asked for it, and both bind it: one end alone reaches nobody.
"""

from __future__ import annotations

import enum

from kafila_agent.edge.binding import BindingState, CircuitBinding
from kafila_agent.edge.check import PairKey
from kafila_agent.edge.paths import RELAY, Paths

ASK_AGAIN_S = 1.0
ASK_SELDOM_S = 15.0


class RelayUse(enum.StrEnum):
    """What the circuit is for just now."""

    NONE = "none"
    SPARE = "spare"
    WANTED = "wanted"
    CARRYING = "carrying"


class RelayWay:
    """One end's circuit to one peer; ``paths`` holds the one path over it."""

    def __init__(self, key: PairKey, *, dials: bool, sizes: tuple[int, ...]):
        self.use = RelayUse.NONE
        self.paths = Paths(key, dials=dials, sizes=sizes)
        self._binding: CircuitBinding | None = None
        self._ask_at: float | None = None

    @property
    def is_there(self) -> bool:
        """Whether a circuit has been granted."""
        return self._binding is not None

    def spare(self, now: float) -> None:
        """Have a circuit in reserve."""
        if self.use is RelayUse.NONE:
            self._ask_at = now
        self.use = RelayUse.SPARE
        self.paths.stop()
        if self._binding is not None:
            self._binding.spare(now)

    def want(self, now: float) -> None:
        """Have a circuit that works, as soon as can be."""
        if self.use is not RelayUse.WANTED:
            self.use, self._ask_at = RelayUse.WANTED, now
            self.paths.stop()  # what is known of it may be old
        self._prepare(now)

    def carry(self, now: float) -> None:
        """Keep the circuit that carries the edge."""
        self.use = RelayUse.CARRYING
        self._prepare(now)

    def end(self) -> None:
        """Nothing is needed any more."""
        self.use, self._ask_at = RelayUse.NONE, None
        self.paths.stop()
        if self._binding is not None:
            self._binding.release()

    def bind(self, circuit_id: bytes, key: bytes, now: float) -> None:
        """Use a granted circuit, the newest."""
        if self._binding is None or self._binding.circuit_id != circuit_id:
            self._binding = CircuitBinding(circuit_id, key, now, is_spare=True)
        if self.use is RelayUse.NONE:
            self._binding.release()
        elif self.use is not RelayUse.SPARE:
            self._prepare(now)

    def receive_datagram(self, data: bytes, now: float) -> None:
        """Take the rendezvous's answer about the circuit."""
        if self._binding is not None:
            self._binding.receive_datagram(data, now)

    def wrap(self, data: bytes) -> bytes:
        """``data`` as a datagram of the circuit, which must be there."""
        assert self._binding is not None
        return self._binding.wrap(data)

    def datagrams_to_send(self, now: float) -> list[bytes]:
        """Datagrams for the rendezvous."""
        if self._binding is None:
            return []
        checks = [self._binding.wrap(data) for data, _ in self.paths.datagrams_to_send(now)]
        return self._binding.datagrams_to_send(now) + checks

    def get_timer(self) -> float | None:
        """When ``handle_timer`` or ``datagrams_to_send`` must be called."""
        times = [self._ask_at]
        if self._binding is not None:
            times += [self._binding.get_timer(), self.paths.get_timer()]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> bool:
        """Act on the time; whether the rendezvous must be asked for the circuit."""
        if self._ask_at is None or now < self._ask_at:
            return False
        is_urgent = self.use is not RelayUse.SPARE
        self._ask_at = now + (ASK_AGAIN_S if is_urgent else ASK_SELDOM_S)
        if is_urgent:
            self._prepare(now)
        binding = self._binding
        if binding is None or binding.is_mute:
            return True
        return is_urgent and binding.state is not BindingState.BOUND

    def _prepare(self, now: float) -> None:
        if self._binding is not None:
            self._binding.keep(now)
            if self.use is RelayUse.WANTED:
                self.paths.insist(RELAY, now)
