"""All that Kafila knows of aioquic's insides, in one place; a test fails when they move.

The library has no public way to read the peer's certificate, what a stream still has to send, or that the
peer has closed before the closing period is over; and it gives the datagrams of a flight all together.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

from aioquic.buffer import Buffer  # type: ignore[attr-defined]  # public in the documentation
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import CipherSuite
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from kafila_agent.edge import congestion
from kafila_agent.edge.credential import Identity
from kafila_agent.edge.fast_quic import FastConnection

ALPN = "kafila/1"
CONNECTION_ID_BYTES = 8
IDLE_TIMEOUT_S = 8.0
_CONNECTION_WINDOW_BYTES = 64 << 20
_STREAM_WINDOW_BYTES = 32 << 20
# Nobody looks at it. The other library counts no padding in what it may answer before the path is proved, and fails
# instead of waiting: a hello of some 700 bytes is answered in full.
_SERVER_NAME = ".".join(["kafila-member-with-a-name-of-some-length"] * 6)

Send = Callable[[bytes], object]


class PromptConnection(QuicConnection):
    """aioquic's connection, that lets go of each datagram as soon as it is sealed: while the second is made, the peer
    opens the first.
    """

    def send_datagrams(self, now: float, send: Send) -> None:
        """Hand ``send``, which must not raise, what must go out now."""
        self._sealed = _Sealed(send)
        for data, _ in self.datagrams_to_send(now)[len(self._sealed) :]:
            send(data)  # of a handshake, or a farewell

    def _write_application(self, builder: QuicPacketBuilder, *args: Any) -> None:
        if not builder._datagrams:
            builder._datagrams = self._sealed
        super()._write_application(builder, *args)


class _Sealed(list[bytes]):
    """A builder's datagrams, each of which is handed on when it is put here."""

    def __init__(self, send: Send):
        super().__init__()
        self._send = send

    def append(self, data: bytes) -> None:
        super().append(data)
        self._send(data)


Quic = PromptConnection | FastConnection


def new_connection(
    identity: Identity,
    *,
    is_client: bool,
    datagram_bytes: int,
    original: bytes | None = None,
    fast: bool = False,
) -> Quic:
    """A client's connection, or the server's for the Initial that was sent to the id ``original``.

    ``fast``: by the other library, which must be installed.
    """
    if fast:
        return FastConnection(
            identity,
            alpn=ALPN,
            is_client=is_client,
            datagram_bytes=datagram_bytes,
            original=original,
            connection_id_bytes=CONNECTION_ID_BYTES,
            idle_timeout_s=IDLE_TIMEOUT_S,
            window_bytes=(_CONNECTION_WINDOW_BYTES, _STREAM_WINDOW_BYTES),
        )
    configuration = configure(identity, is_client=is_client, datagram_bytes=datagram_bytes)
    return PromptConnection(configuration=configuration, original_destination_connection_id=original)


def configure(identity: Identity, *, is_client: bool, datagram_bytes: int) -> QuicConfiguration:
    """TLS 1.3 with self-signed certificates: no chain is looked at, the fingerprint is
    (``peer_fingerprint``).

    The peer's signature over the handshake is checked all the same, so a pinned certificate is proved held.
    """
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=is_client,
        connection_id_length=CONNECTION_ID_BYTES,
        congestion_control_algorithm=congestion.NAME,
        idle_timeout=IDLE_TIMEOUT_S,
        max_datagram_size=datagram_bytes,
        max_data=_CONNECTION_WINDOW_BYTES,
        max_stream_data=_STREAM_WINDOW_BYTES,
        verify_mode=ssl.CERT_NONE,
        supported_versions=[QuicProtocolVersion.VERSION_1],
        server_name=_SERVER_NAME if is_client else None,
        cipher_suites=[CipherSuite.AES_128_GCM_SHA256, CipherSuite.CHACHA20_POLY1305_SHA256],
    )
    configuration.certificate = x509.load_der_x509_certificate(identity.certificate_der)
    configuration.private_key = identity.private_key
    return configuration


def peer_fingerprint(quic: Quic) -> bytes | None:
    """SHA-256 of the DER of the certificate the server showed; None before the handshake."""
    if isinstance(quic, FastConnection):
        der = quic.peer_certificate_der()
        return None if der is None else hashlib.sha256(der).digest()
    certificate = quic.tls._peer_certificate
    return None if certificate is None else hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()


def unacknowledged_bytes(quic: Quic, stream_id: int) -> int:
    """What has been written to a stream and not been acknowledged yet; nothing of one that is over.

    Of the other library's: not been sent yet.
    """
    if isinstance(quic, FastConnection):
        return quic.unsent_bytes(stream_id)
    stream = quic._streams.get(stream_id)
    return 0 if stream is None else stream.sender._buffer_stop - stream.sender._buffer_start


def break_stream(quic: Quic, stream_id: int, code: int) -> None:
    """Stop sending on a stream and ask the peer to, unless it is over on that side."""
    if isinstance(quic, FastConnection):
        quic.break_stream(stream_id, code)
        return
    stream = quic._streams.get(stream_id)
    if stream is not None:
        stream.sender.reset(code)
        if not stream.receiver.is_finished:
            stream.receiver.stop(code)


def packets_lost(quic: Quic) -> int:
    """How many packets the congestion control has been told are lost; 0 where it does not say."""
    control = _control(quic)
    return 0 if control is None else control.packets_lost


def loses_large(quic: Quic) -> bool:
    """Whether the path has come to carry small datagrams alone, as far as the congestion control can tell."""
    control = _control(quic)
    return control is not None and control.loses_large


def _control(quic: Quic) -> congestion.EdgeCongestionControl | None:
    """Ours; None with the other library, and where another is compared with it."""
    if isinstance(quic, FastConnection):
        return None
    control = quic._loss._cc
    return control if isinstance(control, congestion.EdgeCongestionControl) else None


def path_changed(quic: Quic, now: float) -> None:
    """Send what is unacknowledged again at once: neither the old path's silence nor its round trip means anything.

    The other library is left to its own timers.
    """
    if isinstance(quic, FastConnection):
        return
    quic._loss._pto_count = 0
    control = _control(quic)
    if control is not None:
        control.path_changed()
    quic._loss.reschedule_data(now=now)


def resize(quic: Quic, datagram_bytes: int) -> None:
    """Make datagrams of so many bytes at most; what is lost of larger ones is cut anew."""
    if not isinstance(quic, FastConnection):
        quic._max_datagram_size = datagram_bytes


def close_reason(quic: Quic) -> str | None:
    """Why the connection is over, from the moment it is; None while it stands."""
    event = quic.close_event() if isinstance(quic, FastConnection) else quic._close_event
    if event is None:
        return None
    if event.reason_phrase == "Idle timeout":
        return f"no answer for {IDLE_TIMEOUT_S:.0f} s"
    if event.error_code == QuicErrorCode.APPLICATION_ERROR and event.frame_type is not None:
        return "the peer refused the handshake"  # and says no more than that yet (RFC 9000 section 10.2.3)
    return event.reason_phrase or f"closed with QUIC error {event.error_code:#x}"


def destination_connection_id(data: bytes) -> bytes | None:
    """The connection id a QUIC datagram is for; None if it is not QUIC."""
    if not data or not data[0] & 0x40:
        return None
    if not data[0] & 0x80:  # a short header: the id follows the first byte (RFC 9000 section 17.3.1)
        return data[1 : 1 + CONNECTION_ID_BYTES] if len(data) > CONNECTION_ID_BYTES else None
    header = _long_header(data)
    return None if header is None else header.destination_cid


def is_initial(data: bytes) -> bool:
    """Whether a datagram may open a connection: a version 1 Initial of at least 1200 bytes (section 14.1)."""
    if len(data) < 1200 or not data[0] & 0x80:
        return False
    header = _long_header(data)
    return (
        header is not None
        and header.packet_type is QuicPacketType.INITIAL
        and header.version == QuicProtocolVersion.VERSION_1
        and len(header.destination_cid) >= CONNECTION_ID_BYTES
    )


def _long_header(data: bytes) -> QuicHeader | None:
    try:
        return pull_quic_header(Buffer(data=data), host_cid_length=CONNECTION_ID_BYTES)
    except ValueError:
        return None
