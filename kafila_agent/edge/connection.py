"""One QUIC connection between two members: handshake, proof of who dialled, then frames. A datagram core.

The smaller fingerprint dials. HANDSHAKE: TLS 1.3; the dialler holds the certificate shown against the one
it wants. PROVING: the dialled sends a nonce on the first stream, the dialler answers with its credential,
the dialled accepts. OPEN: frames both ways on that same stream. Until then nothing else is read, a message
may have 1 KiB, and five seconds is all the time there is. A connection is CLOSED once, with a reason in
words.
"""

from __future__ import annotations

import enum
import os
import struct
from collections import deque
from collections.abc import Iterable
from statistics import median

from aioquic.quic import events as quic_events

from kafila_agent.edge import quic as adapter
from kafila_agent.edge.candidate import encode_addresses, parse_addresses
from kafila_agent.edge.congestion import SMALL_BYTES
from kafila_agent.edge.credential import (
    MAX_CREDENTIAL_BYTES,
    NONCE_BYTES,
    CredentialError,
    Identity,
    check_credential,
    encode_credential,
    statement,
)
from kafila_agent.edge.events import (
    AddressesReceived,
    Closed,
    ConnectionEvent,
    ConnectionIdAdded,
    ConnectionIdRemoved,
    FrameReceived,
    Opened,
    RoundTrip,
    StreamBroken,
    StreamReceived,
)
from kafila_agent.edge.messages import MessageError, MessageKind, MessageReader, message_header
from kafila_agent.edge.session import EdgeSession

PROVING_S = 5.0
PING_EVERY_S = 2.0
FIRST_PINGS_S = 0.1
FIRST_PINGS = 5
RTTS_REMEMBERED = 9
QUIET_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 257 << 20  # a frame's largest payload, and its header
MAX_UNACKNOWLEDGED_BYTES = 1 << 30
STREAM = 1  # the first bidirectional stream that the dialled opens (RFC 9000 section 2.1)

_PEER = ("peer", 0)  # QUIC's idea of an address: paths are kept, and proved, below it (paths.py)
_PING_ID = struct.Struct("!Q")


class ConnectionState(enum.StrEnum):
    """How far a connection has come."""

    HANDSHAKE = "handshake"
    PROVING = "proving"
    OPEN = "open"
    CLOSED = "closed"


class CloseCode(enum.IntEnum):
    """Application error codes of CONNECTION_CLOSE, and the last of a stream's."""

    LEAVING = 0x100
    WRONG_PEER = 0x101
    REFUSED = 0x102
    PROTOCOL = 0x103
    OVERRUN = 0x104
    BROKEN_OFF = 0x105


class EdgeConnection:
    """The core. ``dial`` makes the client's end, ``accept`` the server's."""

    def __init__(
        self,
        quic: adapter.Quic,
        identity: Identity,
        session: EdgeSession,
        peer: bytes,
        now: float,
        *,
        dials: bool,
        datagram_bytes: int,
    ):
        self.state = ConnectionState.HANDSHAKE
        self.rtt_s: float | None = None
        self._quic = quic
        self._identity = identity
        self._session = session
        self._peer = peer
        self._dialled_by_us = dials
        self._reader = MessageReader(MAX_CREDENTIAL_BYTES)
        self._nonce = b"" if self._dialled_by_us else os.urandom(NONCE_BYTES)
        self._events: deque[ConnectionEvent] = deque()
        self.connection_ids: set[bytes] = set()
        self._add_connection_id(quic.host_cid)
        self._proved_by = now + PROVING_S
        self._pings_sent = 0
        self._next_ping_at = float("inf")
        self._ping_sent_at: dict[bytes, float] = {}
        self._rtts_s: deque[float] = deque(maxlen=RTTS_REMEMBERED)
        self.datagram_bytes = datagram_bytes

    @classmethod
    def dial(
        cls,
        identity: Identity,
        session: EdgeSession,
        peer: bytes,
        datagram_bytes: int,
        now: float,
        *,
        fast: bool = False,
    ) -> EdgeConnection:
        """Begin a handshake with the member whose fingerprint is ``peer``."""
        quic = adapter.new_connection(identity, is_client=True, datagram_bytes=datagram_bytes, fast=fast)
        connection = cls(quic, identity, session, peer, now, dials=True, datagram_bytes=datagram_bytes)
        quic.connect(_PEER, now)
        return connection

    @classmethod
    def accept(
        cls,
        identity: Identity,
        session: EdgeSession,
        peer: bytes,
        initial: bytes,
        now: float,
        *,
        fast: bool = False,
    ) -> EdgeConnection:
        """Answer the handshake that ``initial`` begins, of whoever will prove to be ``peer``.

        A client fills its first datagram, so its length is one that the path carries.
        """
        original = adapter.destination_connection_id(initial) or b""
        size = len(initial)
        quic = adapter.new_connection(
            identity, is_client=False, datagram_bytes=size, original=original, fast=fast
        )
        connection = cls(quic, identity, session, peer, now, dials=False, datagram_bytes=size)
        connection._add_connection_id(original)
        return connection

    def receive_datagram(self, data: bytes, now: float) -> None:
        """Take one datagram of this connection, from whatever address."""
        if self.state is ConnectionState.CLOSED:
            return
        try:
            self._quic.receive_datagram(data, _PEER, now)
        except (
            Exception
        ) as error:  # what a stranger sends may be a fault of the library's: it ends this connection
            self.close(f"the peer is not understood ({type(error).__name__})", CloseCode.PROTOCOL)
            return
        self._take_events(now)
        self._fit()

    def send_datagrams(self, now: float, send: adapter.Send) -> None:
        """Hand ``send`` what must go out now; also after the close, which has a datagram of its own."""
        if self._quic.get_peer_address() is None:
            return  # accepted on bytes that turned out to be no handshake
        self._quic.send_datagrams(now, send)

    def path_changed(self, now: float) -> None:
        """Datagrams take another path from now on: try at once what went unanswered on the old one."""
        if self.state is ConnectionState.OPEN:
            adapter.path_changed(self._quic, now)

    def resize(self, datagram_bytes: int) -> None:
        """Send datagrams of so many bytes at most from now on."""
        self.datagram_bytes = datagram_bytes
        adapter.resize(self._quic, datagram_bytes)

    def _fit(self) -> None:
        if self.datagram_bytes > SMALL_BYTES and adapter.loses_large(self._quic):
            self.resize(SMALL_BYTES)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` must be called, if nothing happens before; None once closed."""
        if self.state is ConnectionState.CLOSED:
            return None
        own = self._next_ping_at if self.state is ConnectionState.OPEN else self._proved_by
        library = self._quic.get_timer()
        return own if library is None else min(own, library)

    def handle_timer(self, now: float) -> None:
        """Act on the time."""
        if self.state is ConnectionState.CLOSED:
            return
        timer = self._quic.get_timer()
        if timer is not None and timer <= now:
            self._quic.handle_timer(now)
            self._take_events(now)
            self._fit()
        if self.state is ConnectionState.OPEN:
            if self._next_ping_at <= now:
                self._ping(now)
        elif self._proved_by <= now:
            self.close(f"no proof of identity within {PROVING_S:.0f} s", CloseCode.REFUSED)

    def next_event(self) -> ConnectionEvent | None:
        """The next thing that happened."""
        return self._events.popleft() if self._events else None

    def send_frame(self, frame: bytes | bytearray | memoryview) -> None:
        """Queue one frame behind those before it. Closes the edge if the peer has stopped taking them in."""
        if self.state is not ConnectionState.OPEN:
            return
        if self.unacknowledged_bytes > MAX_UNACKNOWLEDGED_BYTES:
            self.close("the peer takes in less than it is sent", CloseCode.OVERRUN)
            return
        self._quic.send_stream_data(STREAM, message_header(MessageKind.FRAME, len(frame)))
        self._quic.send_stream_data(STREAM, frame)  # type: ignore[arg-type]  # any buffer: it is copied

    def send_addresses(self, addresses: Iterable[tuple[str, int]]) -> None:
        """Tell the peer where this end can be reached."""
        if self.state is ConnectionState.OPEN:
            self._send(MessageKind.ADDRESSES, encode_addresses(addresses))

    @property
    def is_amid_message(self) -> bool:
        """Whether a part of one has come, and the rest is on its way."""
        return self._reader.is_amid_message

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes written and not yet acknowledged."""
        return adapter.unacknowledged_bytes(self._quic, STREAM)

    @property
    def packets_lost(self) -> int:
        """Packets that were given up and whose content was sent again."""
        return adapter.packets_lost(self._quic)

    def open_stream(self) -> int:
        """Begin an exchange beside the frames; its number. See stream.py."""
        stream_id = self._quic.get_next_available_stream_id()
        self._quic.send_stream_data(stream_id, b"")
        return stream_id

    def send_stream(self, stream_id: int, data: bytes, *, end: bool) -> None:
        """Queue bytes of an exchange."""
        if self.state is ConnectionState.OPEN:
            self._quic.send_stream_data(stream_id, data, end_stream=end)

    def break_stream(self, stream_id: int) -> None:
        """Send no more of an exchange, and take no more of it."""
        if self.state is ConnectionState.OPEN:
            adapter.break_stream(self._quic, stream_id, CloseCode.BROKEN_OFF)

    def unacknowledged_stream_bytes(self, stream_id: int) -> int:
        """Bytes of an exchange that were written and not been acknowledged yet."""
        return adapter.unacknowledged_bytes(self._quic, stream_id)

    def close(self, reason: str, code: CloseCode = CloseCode.LEAVING) -> None:
        """Close and tell the peer why; its end learns it from one more datagram."""
        if self.state is not ConnectionState.CLOSED:
            self._quic.close(error_code=code, reason_phrase=reason)
            self._end(reason)

    def _end(self, reason: str) -> None:
        began = self.state is not ConnectionState.HANDSHAKE
        self.state = ConnectionState.CLOSED
        self._events.append(Closed(reason, began))

    def _add_connection_id(self, connection_id: bytes) -> None:
        self.connection_ids.add(connection_id)
        self._events.append(ConnectionIdAdded(connection_id))

    def _take_events(self, now: float) -> None:
        while self.state is not ConnectionState.CLOSED and (event := self._quic.next_event()) is not None:
            match event:
                case quic_events.StreamDataReceived():
                    self._take_stream(event, now)
                case quic_events.HandshakeCompleted():
                    self._handshake_completed()
                case quic_events.ConnectionIdIssued():
                    self._add_connection_id(event.connection_id)
                case quic_events.ConnectionIdRetired():
                    self.connection_ids.discard(event.connection_id)
                    self._events.append(ConnectionIdRemoved(event.connection_id))
                case quic_events.StreamReset() | quic_events.StopSendingReceived():
                    if event.stream_id == STREAM or self.state is not ConnectionState.OPEN:
                        self.close("the peer broke off the stream", CloseCode.PROTOCOL)
                    else:
                        ended = isinstance(event, quic_events.StreamReset)
                        self._events.append(StreamBroken(event.stream_id, ended))
                case _:
                    pass  # acknowledged pings, negotiated protocols, the termination that is looked at below
        reason = adapter.close_reason(self._quic)
        if reason is not None and self.state is not ConnectionState.CLOSED:
            self._end(reason)

    def _handshake_completed(self) -> None:
        self.state = ConnectionState.PROVING
        if not self._dialled_by_us:
            self._send(MessageKind.NONCE, self._nonce)
        elif adapter.peer_fingerprint(self._quic) != self._peer:
            self.close("another machine answers at this member's address", CloseCode.WRONG_PEER)

    def _take_stream(self, event: quic_events.StreamDataReceived, now: float) -> None:
        if event.stream_id != STREAM and self.state is ConnectionState.OPEN:
            self._events.append(StreamReceived(event.stream_id, event.data, event.end_stream))
            return
        if event.stream_id != STREAM or event.end_stream:
            self.close(f"unexpected use of stream {event.stream_id}", CloseCode.PROTOCOL)
            return
        try:
            for kind, body in self._reader.feed(event.data):
                self._take_message(kind, body, now)
                if self.state is ConnectionState.CLOSED:
                    return
        except MessageError as error:
            self.close(str(error), CloseCode.PROTOCOL)
        except CredentialError as error:
            self.close(f"refused: {error}", CloseCode.REFUSED)

    def _take_message(self, kind: MessageKind, body: memoryview, now: float) -> None:
        if self.state is not ConnectionState.OPEN:
            self._take_proof(kind, body, now)
        elif kind is MessageKind.FRAME:
            self._events.append(FrameReceived(body))
        elif kind is MessageKind.PING and len(body) == _PING_ID.size:
            self._send(MessageKind.PONG, body)
        elif kind is MessageKind.PONG:
            self._take_pong(bytes(body), now)
        elif kind is MessageKind.ADDRESSES:
            self._events.append(AddressesReceived(tuple(parse_addresses(bytes(body)))))
        else:
            raise MessageError(f"{kind.name} out of turn")

    def _take_proof(self, kind: MessageKind, body: memoryview, now: float) -> None:
        match kind:
            case MessageKind.NONCE if self._dialled_by_us and not self._nonce and len(body) == NONCE_BYTES:
                self._nonce = bytes(body)
                self._send(MessageKind.CREDENTIAL, encode_credential(self._identity, self._statement()))
            case MessageKind.CREDENTIAL if not self._dialled_by_us:
                check_credential(bytes(body), self._peer, self._statement())
                self._send(MessageKind.ACCEPTED, b"")
                self._open(now)
            case MessageKind.ACCEPTED if self._dialled_by_us and self._nonce and not body:
                self._open(now)
            case _:
                raise MessageError(f"{kind.name} out of turn")

    def _statement(self) -> bytes:
        session, own = self._session, self._identity.fingerprint
        ours, theirs = (session.own_name, own), (session.roster[self._peer], self._peer)
        by, to = (ours, theirs) if self._dialled_by_us else (theirs, ours)
        return statement(session.session_id, session.epoch, by, to, self._nonce)

    def _open(self, now: float) -> None:
        self.state = ConnectionState.OPEN
        self._reader.limit = MAX_MESSAGE_BYTES
        self._events.append(Opened())
        self._ping(now)

    def _ping(self, now: float) -> None:
        if (
            self.unacknowledged_bytes > QUIET_BYTES
        ):  # it would measure the queue, and the edge is in use anyway
            self._next_ping_at = now + FIRST_PINGS_S
            return
        ping_id = _PING_ID.pack(self._pings_sent)
        self._pings_sent += 1
        self._ping_sent_at[ping_id] = now
        self._next_ping_at = now + (FIRST_PINGS_S if self._pings_sent < FIRST_PINGS else PING_EVERY_S)
        self._send(MessageKind.PING, ping_id)

    def _take_pong(self, ping_id: bytes, now: float) -> None:
        sent_at = self._ping_sent_at.pop(ping_id, None)
        if sent_at is None:
            raise MessageError("PONG without PING")
        self._rtts_s.append(now - sent_at)
        self._events.append(RoundTrip(now - sent_at))
        # A pong that waited for a busy event loop says nothing of the path, and may wait for long: not the mean.
        self.rtt_s = median(self._rtts_s)

    def _send(self, kind: MessageKind, body: bytes | memoryview) -> None:
        self._quic.send_stream_data(STREAM, message_header(kind, len(body)) + bytes(body))
