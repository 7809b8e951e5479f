from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.credential import (
    MAX_CREDENTIAL_BYTES,
    CredentialError,
    check_credential,
    encode_credential,
    statement,
)

ONE, TWO = ("one", b"1" * 32), ("two", b"2" * 32)
FIELDS = [b"session", 7, ONE, TWO, b"n" * 32]
CHANGED = [
    [b"sessioN", 7, ONE, TWO, b"n" * 32],
    [b"session", 8, ONE, TWO, b"n" * 32],
    [b"session", 7, ("onE", ONE[1]), TWO, b"n" * 32],
    [b"session", 7, ("one", TWO[1]), TWO, b"n" * 32],
    [b"session", 7, ONE, ("twO", TWO[1]), b"n" * 32],
    [b"session", 7, ONE, ("two", ONE[1]), b"n" * 32],
    [b"session", 7, TWO, ONE, b"n" * 32],
    [b"session", 7, ONE, TWO, b"m" * 32],
]


def test_a_member_proves_that_it_is_itself(members):
    stated = statement(*FIELDS)
    proof = encode_credential(members[0], stated)
    assert len(proof) < MAX_CREDENTIAL_BYTES
    check_credential(proof, members[0].fingerprint, stated)


def test_another_members_proof_is_refused(members):
    stated = statement(*FIELDS)
    with pytest.raises(CredentialError, match="not this member's"):
        check_credential(encode_credential(members[1], stated), members[0].fingerprint, stated)


def test_a_stolen_certificate_without_its_key_is_refused(members):
    stated = statement(*FIELDS)
    der = members[0].certificate_der
    signature = members[1].private_key.sign(stated, ec.ECDSA(hashes.SHA256()))
    with pytest.raises(CredentialError, match="does not fit"):
        check_credential(len(der).to_bytes(2) + der + signature, members[0].fingerprint, stated)


@pytest.mark.parametrize("fields", CHANGED)
def test_every_field_is_signed(members, fields):
    proof = encode_credential(members[0], statement(*FIELDS))
    with pytest.raises(CredentialError, match="does not fit"):
        check_credential(proof, members[0].fingerprint, statement(*fields))


def test_names_cannot_lend_each_other_letters():
    stated = {statement(b"s", 1, (a, b"1" * 32), (b, b"2" * 32), b"") for a, b in (("ab", "c"), ("a", "bc"))}
    assert len(stated) == 2


def test_a_certificate_that_is_none_is_refused():
    der = b"not a certificate"
    with pytest.raises(CredentialError, match="not a certificate"):
        check_credential(len(der).to_bytes(2) + der, hashlib.sha256(der).digest(), b"")


@given(st.binary(max_size=300))
def test_garbage_is_refused(data):
    with pytest.raises(CredentialError):
        check_credential(data, b"f" * 32, b"stated")
