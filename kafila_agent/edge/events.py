"""What the cores of an edge have to tell: a connection to its link, a link to its shell."""

from __future__ import annotations

from dataclasses import dataclass

from kafila_agent.edge.paths import Address


@dataclass(frozen=True, slots=True)
class ConnectionIdAdded:
    """Datagrams for this id are this connection's."""

    connection_id: bytes


@dataclass(frozen=True, slots=True)
class ConnectionIdRemoved:
    """Datagrams for this id no longer are."""

    connection_id: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """Both ends have proved who they are."""


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """One frame, in order; the memory is the receiver's to keep."""

    frame: memoryview


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A ping was answered."""

    rtt_s: float


@dataclass(frozen=True, slots=True)
class StreamReceived:
    """Bytes of an exchange (stream.py), in order; ``ended``: they are its last."""

    stream_id: int
    data: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The peer has broken an exchange off; ``ended``: nothing more of it comes."""

    stream_id: int
    ended: bool


@dataclass(frozen=True, slots=True)
class AddressesReceived:
    """Where the peer says it can be reached now."""

    addresses: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over. ``began``: whether the handshake had been answered by then."""

    reason: str
    began: bool


@dataclass(frozen=True, slots=True)
class CircuitNeeded:
    """No direct path so far: ask the rendezvous for a circuit and hand it to ``bind``."""


@dataclass(frozen=True, slots=True)
class AddressesNeeded:
    """Find out where this end can be reached now and hand it to ``tell_addresses``."""


@dataclass(frozen=True, slots=True)
class Connected:
    """The edge stands, over this path."""

    path: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The edge goes on over another address, direct or relayed."""

    path: str


@dataclass(frozen=True, slots=True)
class AddressKnown:
    """A member that holds the session's key uses this address: a handshake from there is for this link."""

    address: Address


ConnectionEvent = (
    ConnectionIdAdded
    | ConnectionIdRemoved
    | Opened
    | FrameReceived
    | AddressesReceived
    | RoundTrip
    | StreamReceived
    | StreamBroken
    | Closed
)
LinkEvent = (
    ConnectionIdAdded
    | ConnectionIdRemoved
    | FrameReceived
    | RoundTrip
    | StreamReceived
    | StreamBroken
    | Closed
    | CircuitNeeded
    | AddressesNeeded
    | Connected
    | Moved
    | AddressKnown
)
