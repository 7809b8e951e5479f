"""Who this machine is: a name that people use, and a key that other members and the rendezvous know it by."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from kafila_proto.certificate import KeyedCertificate, load_or_make_certificate
from kafila_proto.names import check_name
from kafila_proto.signed import make_signature

IDENTITY_FILE = "identity.pem"


@dataclass(frozen=True, slots=True)
class Identity:
    """A member's name, key and certificate. The key stays in the file it was read from."""

    name: str
    certificate: KeyedCertificate

    @property
    def certificate_der(self) -> bytes:
        """The self-signed certificate, DER."""
        return self.certificate.certificate_der

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate's DER, 32 bytes."""
        return self.certificate.fingerprint

    @property
    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """The ECDSA P-256 key."""
        return self.certificate.private_key

    def sign(self, label: str, payload: bytes) -> bytes:
        """The DER signature over ``label`` and ``payload``: see kafila_proto.signed."""
        return make_signature(self.private_key, label, payload)


def load_identity(state_dir: Path, name: str) -> Identity:
    """The identity kept in ``state_dir``, made there at first start, under ``name``.

    Raises InvalidName, or CertificateError naming a file that does not hold an identity.
    """
    check_name(name)
    return Identity(name, load_or_make_certificate(state_dir / IDENTITY_FILE, "kafila-agent"))
