"""Members without machines: identities, and worlds in which two of them are linked."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kafila_agent.edge.link import Link
from kafila_agent.edge.session import EdgeSession
from tests.agent.edge.world import SESSION_ID, End, World


@dataclass(frozen=True)
class Member:
    """What an agent's identity offers."""

    name: str
    certificate_der: bytes
    fingerprint: bytes
    private_key: ec.EllipticCurvePrivateKey


def make_member(name: str) -> Member:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today)
        .not_valid_after(today + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    der = certificate.public_bytes(Encoding.DER)
    return Member(name, der, hashlib.sha256(der).digest(), key)


@pytest.fixture(scope="session")
def members() -> list[Member]:
    """Four members by rising fingerprint: of two, the one that comes first dials."""
    return sorted((make_member(f"member-{i}") for i in range(4)), key=lambda m: m.fingerprint)


@pytest.fixture
def session_of() -> Callable[..., EdgeSession]:
    def make(own: Member, *others: Member, epoch: int = 1) -> EdgeSession:
        roster = {m.fingerprint: m.name for m in (own, *others)}
        return EdgeSession(SESSION_ID, epoch, own.name, roster)

    return make


@pytest.fixture
def world_of(members, session_of) -> Callable[..., World]:
    """Two links of the first two members; keyword arguments go to both. ``fast``: who has the quicker library."""

    def make(fast: tuple[bool, bool] = (False, False), **options) -> World:
        one, two = members[:2]
        links = (
            Link(own, session_of(own, peer), peer.fingerprint, fast_core=has_it, **options)
            for own, peer, has_it in ((one, two, fast[0]), (two, one, fast[1]))
        )
        addresses = (("10.0.0.1", 1), ("10.0.0.2", 2))
        ends = [End(*each) for each in zip(links, (one, two), addresses, strict=True)]
        return World(ends)

    return make
