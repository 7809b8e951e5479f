"""Self-signed certificates: members and rendezvous know each other by their fingerprints and nothing else.

Keys are ECDSA P-256, which both TLS stacks in use (gRPC's and QUIC's) accept. Every certificate has a common
name of its own: TLS stacks look up pinned roots by subject, and two alike would shadow each other. Names,
dates and chains carry no trust; the SHA-256 of the certificate's DER does (RFC 8122 section 5).
"""

from __future__ import annotations

import datetime
import os
import secrets
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

VALID_DAYS = 3650
FINGERPRINT_BYTES = 32

_NOT_THE_OWNERS = stat.S_IRWXG | stat.S_IRWXO
_CLOCK_SLACK = datetime.timedelta(days=1)  # a peer's clock may be behind ours
_UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)


class CertificateError(ValueError):
    """A certificate, or the file of one, that cannot be used."""


@dataclass(frozen=True, slots=True)
class KeyedCertificate:
    """A certificate and the private key it speaks for."""

    private_key: ec.EllipticCurvePrivateKey
    certificate_der: bytes

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate's DER, 32 bytes."""
        return fingerprint(self.certificate_der)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as PEM."""
        certificate = x509.load_der_x509_certificate(self.certificate_der)
        return certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def private_key_pem(self) -> bytes:
        """The private key as unencrypted PKCS #8 PEM."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def fingerprint(certificate_der: bytes) -> bytes:
    """SHA-256 of a certificate's DER, 32 bytes."""
    return sha256(certificate_der).digest()


def make_certificate(prefix: str) -> KeyedCertificate:
    """A new key and self-signed certificate, valid ten years; its common name is ``prefix`` and random."""
    key = ec.generate_private_key(ec.SECP256R1())
    common_name = f"{prefix}-{secrets.token_hex(16)}"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(common_name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyedCertificate(key, certificate.public_bytes(serialization.Encoding.DER))


def load_or_make_certificate(path: Path, prefix: str) -> KeyedCertificate:
    """The certificate and key kept in the file ``path``; made and put there, mode 0600, if there is none.

    Of two processes that start at once, the second to finish takes what the first put there.
    Raises CertificateError naming the file if it holds anything else, or if others than its owner can read it.
    """
    if not path.exists():
        _publish(path, make_certificate(prefix))
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _NOT_THE_OWNERS:
            raise CertificateError(
                f"{path} holds a private key and is open to others (mode {mode:03o}): chmod 600 {path}, or remove"
                " it to become a new identity if somebody may have read it"
            )
        return _parse_pem(path.read_bytes())
    except CertificateError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(
            f"{path} does not hold a key and its certificate ({error}); remove it to become a new identity"
        ) from error


def public_key(certificate_der: bytes) -> ec.EllipticCurvePublicKey:
    """The P-256 key of a certificate from elsewhere. Raises CertificateError."""
    try:
        key = x509.load_der_x509_certificate(certificate_der).public_key()
    except _UNREADABLE as error:
        raise CertificateError(f"not a certificate: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise CertificateError("a certificate whose key is not ECDSA P-256")
    return key


def common_name(certificate_der: bytes) -> str:
    """The subject's common name. Raises CertificateError if there is none."""
    try:
        subject = x509.load_der_x509_certificate(certificate_der).subject
        return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    except (*_UNREADABLE, IndexError) as error:
        raise CertificateError(f"a certificate without a common name: {error}") from error


def _publish(path: Path, keyed: KeyedCertificate) -> None:
    """Write the whole file beside ``path``, then link it there: it never exists half-written."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(keyed.private_key_pem + keyed.certificate_pem)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was first
    finally:
        draft.unlink()


def _parse_pem(data: bytes) -> KeyedCertificate:
    key = serialization.load_pem_private_key(data, password=None)
    certificate = x509.load_pem_x509_certificate(data)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the certificate is not this key's")
    return KeyedCertificate(key, certificate.public_bytes(serialization.Encoding.DER))
