"""The same QUIC by a quicker library (qh3: a core in Rust), where that is installed; only for near members.

It says what aioquic's connection says, in aioquic's events, so that ``connection.py`` need not know. Both speak QUIC
version 1 and TLS 1.3, and either end may be either. It has no congestion control for lossy lines such as
``congestion.py``: on a LAN that does not matter beside what it saves, elsewhere it does.

Its own probing of the path is off, for ``paths.py`` has probed, and the size of its datagrams is given at the start and
never again. So its client tells the server the size that it dials with, in the transport parameter that is there for it
(``max_udp_payload_size``, RFC 9000 section 18.2; the library's own is 1472), and its server keeps to that.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import ipaddress
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from aioquic.quic import events
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kafila_agent.edge.credential import Identity
from kafila_agent.edge.paths import DATAGRAM_BYTES, Address

if TYPE_CHECKING:
    from qh3.quic.events import QuicEvent
    from qh3.quic.packet import QuicTransportParameters
    from qh3.quic.tls_bridge import QuicTlsBridge

IS_INSTALLED = importlib.util.find_spec("qh3") is not None

_FIRST_DATAGRAM_BYTES = 1280  # what the library begins with, whatever the path carries, unless that is less
_PARAMETERS_BYTES = 4096
_PEER = ("127.0.0.1", 1)  # it wants a literal address, and looks at it no further


def load() -> None:
    """Import the library, which takes a while that no handshake should have to wait."""
    importlib.import_module("qh3.quic.connection")


def is_near(address: Address) -> bool:
    """Whether a member's address is one of a LAN or of this machine."""
    return isinstance(address, tuple) and ipaddress.ip_address(address[0]).is_private


class FastConnection:
    """One connection. Raises nothing on hostile bytes: those end it, with a reason."""

    def __init__(
        self,
        identity: Identity,
        *,
        alpn: str,
        is_client: bool,
        datagram_bytes: int,
        original: bytes | None,
        connection_id_bytes: int,
        idle_timeout_s: float,
        window_bytes: tuple[int, int],
    ):
        from qh3.quic.configuration import QuicConfiguration
        from qh3.quic.connection import QuicConnection

        # The server learns what the path carries when it has read the client's parameters.
        is_told = not is_client and datagram_bytes >= _FIRST_DATAGRAM_BYTES
        configuration = QuicConfiguration(
            alpn_protocols=[alpn],
            is_client=is_client,
            connection_id_length=connection_id_bytes,
            idle_timeout=idle_timeout_s,
            max_datagram_size=DATAGRAM_BYTES[0] if is_told else datagram_bytes,
            max_data=window_bytes[0],
            max_stream_data=window_bytes[1],
            probe_datagram_size=False,
            verify_mode=ssl.CERT_NONE,
            verify_hostname=False,
        )
        certificate = x509.load_der_x509_certificate(identity.certificate_der)
        key = identity.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        configuration.load_cert_chain(certificate.public_bytes(Encoding.PEM), key)
        self._quic = QuicConnection(configuration=configuration, original_destination_connection_id=original)
        create_tls = self._quic._create_tls

        def create_sized_tls(remote_source_cid: bytes | None) -> QuicTlsBridge:
            bridge = create_tls(remote_source_cid)
            (_tell_size if is_client else _take_size)(bridge, datagram_bytes)
            return bridge

        self._quic._create_tls = create_sized_tls  # type: ignore[method-assign]
        self._failure: str | None = None
        self._is_started = False

    @property
    def host_cid(self) -> bytes:
        """The first connection id of this end."""
        return self._quic.host_cid

    def connect(self, peer: object, now: float) -> None:
        """Begin the handshake."""
        self._is_started = True
        self._quic.connect(_PEER, now)

    def get_peer_address(self) -> object:
        """None until there is somebody to answer."""
        return _PEER if self._is_started else None

    def receive_datagram(self, data: bytes, peer: object, now: float) -> None:
        """Take a datagram."""
        from qh3.quic.connection import QuicConnectionError

        self._is_started = True
        try:
            # After the handshake quicker than ``receive_datagram``, and the same before.
            self._quic.receive_many_datagrams([data], _PEER, now)
        except QuicConnectionError as error:
            self._failure = str(error)

    def send_datagrams(self, now: float, send: Callable[[bytes], object]) -> None:
        """Hand ``send`` what must go out now."""
        from qh3.quic.connection import QuicConnectionError

        try:
            for data, _ in self._quic.datagrams_to_send(now):
                send(data)
        except QuicConnectionError as error:
            self._failure = str(error)

    def get_timer(self) -> float | None:
        """When to call ``handle_timer``."""
        return self._quic.get_timer()

    def handle_timer(self, now: float) -> None:
        """Act on the time."""
        self._quic.handle_timer(now)

    def next_event(self) -> events.QuicEvent | None:
        """The next event that ``connection.py`` looks at, as aioquic's."""
        while (event := self._quic.next_event()) is not None:
            if (known := _as_aioquic(event)) is not None:
                return known
        return None

    def get_next_available_stream_id(self) -> int:
        """The bidirectional stream that this end opens next."""
        return self._quic.get_next_available_stream_id()

    def send_stream_data(
        self, stream_id: int, data: bytes | bytearray | memoryview, end_stream: bool = False
    ) -> None:
        """Queue bytes."""
        self._quic.send_stream_data(stream_id, data, end_stream)

    def break_stream(self, stream_id: int, code: int) -> None:
        """Stop sending on a stream and ask the peer to; nothing where it is over already."""
        from qh3.quic.connection import QuicConnectionError

        for stop in (self._quic.reset_stream, self._quic.stop_stream):
            with contextlib.suppress(QuicConnectionError, ValueError):
                stop(stream_id, code)

    def close(self, error_code: int = 0, reason_phrase: str = "") -> None:
        """Close, saying why."""
        self._quic.close(error_code=error_code, reason_phrase=reason_phrase)

    def peer_certificate_der(self) -> bytes | None:
        """What the server showed; None before the handshake."""
        certificate = self._quic.get_peercert()
        return None if certificate is None else bytes(certificate.public_bytes())

    def unsent_bytes(self, stream_id: int) -> int:
        """What waits to be sent for the first time."""
        return self._quic.get_send_buffer_size(stream_id)

    def close_event(self) -> events.ConnectionTerminated | None:
        """Why it is over; None while it stands."""
        if self._failure is not None:
            return events.ConnectionTerminated(0, None, self._failure)
        event = self._quic._close_event
        if event is None:
            return None
        return events.ConnectionTerminated(event.error_code, event.frame_type, event.reason_phrase)


def _tell_size(bridge: QuicTlsBridge, datagram_bytes: int) -> None:
    """Say in the client's parameters how large a datagram the server may send."""
    from qh3._hazmat import Buffer
    from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
    from qh3.tls import ExtensionType

    parameters = pull_quic_transport_parameters(Buffer(data=bridge.serialize_transport_parameters()))
    parameters.max_udp_payload_size = datagram_bytes
    buffer = Buffer(capacity=_PARAMETERS_BYTES)
    push_quic_transport_parameters(buffer, parameters)
    bridge.tls.handshake_extensions = [(ExtensionType.QUIC_TRANSPORT_PARAMETERS, buffer.data)]


def _take_size(bridge: QuicTlsBridge, datagram_bytes: int) -> None:
    """Let the server send what the client said; to one that says nothing, as much as came first."""
    parse = bridge.parse_transport_parameters

    def parse_and_size(data: bytes, **options: bool) -> QuicTransportParameters:
        parameters = parse(data, **options)
        if parameters.max_udp_payload_size is None:
            parameters.max_udp_payload_size = datagram_bytes
        return parameters

    bridge.parse_transport_parameters = parse_and_size  # type: ignore[method-assign]


def _as_aioquic(event: QuicEvent) -> events.QuicEvent | None:
    from qh3.quic import events as fast

    match event:
        case fast.StreamDataReceived():
            return events.StreamDataReceived(event.data, event.end_stream, event.stream_id)
        case fast.HandshakeCompleted():
            return events.HandshakeCompleted(event.alpn_protocol, False, False)
        case fast.ConnectionIdIssued():
            return events.ConnectionIdIssued(event.connection_id)
        case fast.ConnectionIdRetired():
            return events.ConnectionIdRetired(event.connection_id)
        case fast.StreamReset():
            return events.StreamReset(event.error_code, event.stream_id)
        case fast.StopSendingReceived():
            return events.StopSendingReceived(event.error_code, event.stream_id)
        case _:
            return None
