"""Statements that must not be altered on the way: a payload, its signer's certificate and a signature.

The signature is ECDSA P-256 over SHA-256 of ``label 00 payload``. The label names what kind of statement it
is, so that one kind can never pass for another; labels hold no zero byte, so the join has one reading.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kafila_proto.certificate import CertificateError, fingerprint, public_key
from kafila_proto.rendezvous_pb2 import Signed

_ALGORITHM = ec.ECDSA(hashes.SHA256())


class Label(StrEnum):
    """What kind of statement a signature covers. The number is that of the statement's layout."""

    HELLO = "kafila hello 1"
    CHARTER = "kafila charter 1"
    REPORT = "kafila report 1"
    PLAN = "kafila plan 1"


class SignatureError(ValueError):
    """A statement that its supposed author did not make."""


class Signer(Protocol):
    """Who can sign: kafila_agent.identity.Identity."""

    @property
    def certificate_der(self) -> bytes:
        """The signer's certificate, DER."""

    def sign(self, label: str, payload: bytes) -> bytes:
        """The signature over ``label`` and ``payload``, DER."""


def make_signature(private_key: ec.EllipticCurvePrivateKey, label: str, payload: bytes) -> bytes:
    """The DER signature over ``label`` and ``payload``."""
    return private_key.sign(_covered(label, payload), _ALGORITHM)


def verify_signature(certificate_der: bytes, label: str, payload: bytes, signature: bytes) -> None:
    """Raise SignatureError unless the certificate's key made ``signature`` over ``label`` and ``payload``."""
    try:
        public_key(certificate_der).verify(signature, _covered(label, payload), _ALGORITHM)
    except CertificateError as error:
        raise SignatureError(f"{label!r} comes with {error}") from error
    except InvalidSignature:
        raise SignatureError(f"the signature on {label!r} does not hold") from None


def seal(signer: Signer, label: str, payload: bytes) -> Signed:
    """``payload`` as a statement of ``signer``."""
    signature = signer.sign(label, payload)
    return Signed(payload=payload, certificate=signer.certificate_der, signature=signature)


def verify(signed: Signed, label: str, expected_fingerprint: bytes) -> bytes:
    """The payload, if the member with ``expected_fingerprint`` (32 bytes) said it under ``label``.

    Raises SignatureError naming the fingerprints, or the label, that do not match.
    """
    signer = fingerprint(signed.certificate)
    if signer != expected_fingerprint:
        raise SignatureError(
            f"{label!r} is signed by {signer.hex()[:16]}, expected {expected_fingerprint.hex()[:16]}"
        )
    verify_signature(signed.certificate, label, signed.payload, signed.signature)
    return signed.payload


def _covered(label: str, payload: bytes) -> bytes:
    name = label.encode("ascii")
    if b"\0" in name:
        raise ValueError(f"a zero byte in the label {label!r}")
    return name + b"\0" + payload
