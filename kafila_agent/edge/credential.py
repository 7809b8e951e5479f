"""How who dialled an edge proves who it is, inside the connection (the server has proved itself by then).

    +-----------------+---------------------+---------------------+
    | length (16)     | certificate, DER    | signature, DER      |
    +-----------------+---------------------+---------------------+

The signature (ECDSA P-256, SHA-256) covers a label, the version, the session, the epoch, who proves itself
to whom, and the nonce of the one who was dialled, so it is worth nothing anywhere else or at any other
time. Every field has a fixed length. It stands in for TLS client certificates, which QUIC libraries do not
all have.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kafila_proto.certificate import CertificateError, public_key

NONCE_BYTES = 32
MAX_CREDENTIAL_BYTES = 1024

_LABEL = b"kafila edge credential"
_VERSION = 1
_LENGTH = struct.Struct("!H")


class CredentialError(Exception):
    """A proof that proves nothing."""


class Identity(Protocol):
    """Who this agent is."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def certificate_der(self) -> bytes: ...  # noqa: D102
    @property
    def fingerprint(self) -> bytes: ...  # noqa: D102
    @property
    def private_key(self) -> ec.EllipticCurvePrivateKey: ...  # noqa: D102


def statement(
    session_id: bytes, epoch: int, by: tuple[str, bytes], to: tuple[str, bytes], nonce: bytes
) -> bytes:
    """The bytes a credential signs. ``by`` proves itself ``to``: name and fingerprint each.

    Names are hashed, as is the session's id, which gives every field a fixed length.
    """
    head = _LABEL + struct.pack("!BI", _VERSION, epoch) + hashlib.sha256(session_id).digest()
    parties = b"".join(hashlib.sha256(name.encode()).digest() + fingerprint for name, fingerprint in (by, to))
    return head + parties + nonce


def encode_credential(identity: Identity, stated: bytes) -> bytes:
    """The proof of ``identity`` over ``stated``."""
    signature = identity.private_key.sign(stated, ec.ECDSA(hashes.SHA256()))
    return _LENGTH.pack(len(identity.certificate_der)) + identity.certificate_der + signature


def check_credential(data: bytes, fingerprint: bytes, stated: bytes) -> None:
    """Raise CredentialError unless the holder of the certificate ``fingerprint`` names signed ``stated``."""
    if len(data) < _LENGTH.size:
        raise CredentialError("no certificate")
    (length,) = _LENGTH.unpack_from(data)
    certificate = bytes(data[_LENGTH.size : _LENGTH.size + length])
    signature = bytes(data[_LENGTH.size + length :])
    if hashlib.sha256(certificate).digest() != fingerprint:
        raise CredentialError("a certificate that is not this member's")
    try:
        public_key(certificate).verify(signature, stated, ec.ECDSA(hashes.SHA256()))
    except CertificateError as error:
        raise CredentialError(str(error)) from error
    except InvalidSignature:
        raise CredentialError("a signature that does not fit") from None
