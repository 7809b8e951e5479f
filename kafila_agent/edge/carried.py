"""A connection and the path its datagrams take; which other path it should take, and when."""

from __future__ import annotations

from dataclasses import dataclass

from kafila_agent.edge.connection import EdgeConnection
from kafila_agent.edge.paths import RELAY, Address, PathMeasured, PathReady

SILENCE_S = 3.0  # a ping and its answer are overdue
SETTLE_S = 2.0  # for the peer to follow
BETTER_SHARE = 0.75  # of the round trip in use: less is noise, and not worth a move
BETTER_S = 0.0005


@dataclass(slots=True)
class Carried:
    """``source``: where the last datagram came from; ``heard_at``: when one last came over the path in use, whose round
    trip is ``rtt_s``.

    The dialler chooses: direct rather than relayed, the shortest of those that are direct, and anything rather than
    silence. Whoever sees the connection's datagrams come from a new address follows there, once that is proved; but
    the dialler not to the relay, nor to what it has just left, so that the two cannot chase each other. A path may
    carry less than the one before it: the connection's datagrams are then as large as it carries.
    """

    connection: EdgeConnection
    address: Address
    began_at: float
    source: Address
    heard_at: float
    rtt_s: float | None = None
    left: Address | None = None
    moved_at: float = 0.0
    missed_at: float = float("-inf")

    def hear(self, size: int, source: Address, now: float) -> None:
        """Note a datagram of the connection. One larger than ours shows that the path carries such, both ways."""
        self.source = source
        if source == self.address:
            self.heard_at = now
            if size > self.connection.datagram_bytes:
                self.connection.resize(size)

    def is_silent(self, now: float) -> bool:
        """Whether nothing has come over the path in use for longer than pings allow, nor the peer followed to it."""
        return now - self.heard_at >= SILENCE_S

    def is_missed(self, now: float) -> bool:
        """Whether the peer has said lately that it does not hear us."""
        return now - self.missed_at < SETTLE_S

    def miss(self, now: float) -> bool:
        """Note that the peer says it does not hear us; whether that can be true so soon after a move."""
        if now - max(self.began_at, self.moved_at) < SETTLE_S:
            return False
        self.missed_at = now
        return True

    def measure(self, path: PathReady | PathMeasured) -> None:
        """Take what is known of the path in use."""
        if isinstance(path, PathMeasured):
            self.rtt_s = path.rtt_s
        if path.datagram_bytes > self.connection.datagram_bytes:
            self.connection.resize(path.datagram_bytes)

    def is_followed(self, dials: bool, now: float) -> bool:
        """Whether the last datagram's source is an address to go to."""
        if self.source == self.address:
            return False
        if dials and self.source is RELAY:
            return False
        return not (dials and self.source == self.left and now - self.moved_at < SETTLE_S)

    def should_take(self, path: PathReady | PathMeasured, *, chooses: bool, now: float) -> bool:
        """Whether ``path`` is the one to use from now on; ``chooses``: this end dials."""
        if path.address == self.address:
            return False
        if path.address == self.source and self.is_followed(chooses, now):
            return True
        if not chooses:
            return False
        return self.is_silent(now) or self.is_missed(now) or self._is_better(path)

    def move(self, path: PathReady | PathMeasured, now: float) -> None:
        """Take another path."""
        self.left, self.address, self.rtt_s = self.address, path.address, None
        self.moved_at = self.heard_at = now
        self.missed_at = float("-inf")
        if path.datagram_bytes < self.connection.datagram_bytes:
            self.connection.resize(path.datagram_bytes)
        self.connection.path_changed(now)

    def _is_better(self, path: PathReady | PathMeasured) -> bool:
        if path.datagram_bytes < self.connection.datagram_bytes and not isinstance(path, PathMeasured):
            return False  # larger ones may only be late
        if RELAY in (self.address, path.address):
            return self.address is RELAY
        if not isinstance(path, PathMeasured) or self.rtt_s is None:
            return False
        return path.rtt_s < BETTER_SHARE * self.rtt_s - BETTER_S
