import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from kafila_proto.certificate import (
    CertificateError,
    common_name,
    fingerprint,
    load_or_make_certificate,
    make_certificate,
    public_key,
)


def test_every_certificate_has_a_key_and_a_common_name_of_its_own():
    one, other = make_certificate("kafila-agent"), make_certificate("kafila-agent")
    assert isinstance(one.private_key.curve, ec.SECP256R1)
    assert common_name(one.certificate_der) != common_name(other.certificate_der)
    assert common_name(one.certificate_der).startswith("kafila-agent-")
    assert len(one.fingerprint) == 32
    assert one.fingerprint != other.fingerprint
    assert public_key(one.certificate_der) == one.private_key.public_key()


def test_valid_for_ten_years_from_yesterday():
    certificate = x509.load_der_x509_certificate(make_certificate("x").certificate_der)
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(hours=23)
    assert now + timedelta(days=3649) < certificate.not_valid_after_utc < now + timedelta(days=3651)


def test_made_at_first_start_and_kept(tmp_path):
    path = tmp_path / "state" / "identity.pem"
    made = load_or_make_certificate(path, "kafila-agent")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    again = load_or_make_certificate(path, "kafila-agent")
    assert again.certificate_der == made.certificate_der
    assert again.private_key_pem == made.private_key_pem
    assert [entry.name for entry in path.parent.iterdir()] == ["identity.pem"]


def test_starts_at_once_agree_on_one(tmp_path):
    path, found = tmp_path / "identity.pem", []
    threads = [
        threading.Thread(target=lambda: found.append(load_or_make_certificate(path, "x").fingerprint))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "damage", [lambda pem: b"", lambda pem: pem[: len(pem) // 2], lambda pem: pem[:-200]]
)
def test_a_damaged_file_is_named_and_kept(tmp_path, damage):
    path = tmp_path / "identity.pem"
    load_or_make_certificate(path, "x")
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(CertificateError, match=r"identity\.pem.*remove it"):
        load_or_make_certificate(path, "x")
    assert path.read_bytes() == damaged


def test_a_certificate_of_another_key_is_refused(tmp_path):
    one, other = make_certificate("x"), make_certificate("x")
    path = tmp_path / "identity.pem"
    path.write_bytes(one.private_key_pem + other.certificate_pem)
    path.chmod(0o600)
    with pytest.raises(CertificateError, match="not this key's"):
        load_or_make_certificate(path, "x")


def test_keys_of_other_kinds_are_refused():
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .sign(key, None)
        .public_bytes(Encoding.DER)
    )
    with pytest.raises(CertificateError, match="P-256"):
        public_key(certificate)
    with pytest.raises(CertificateError, match="not a certificate"):
        public_key(b"\x30\x03abc")
    assert len(fingerprint(b"")) == 32


@pytest.mark.parametrize("version", [1, 3, 5, 255])
def test_a_certificate_of_a_version_that_there_is_not_is_refused(version):
    certificate = make_certificate("x").certificate_der
    strange = certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01" + bytes([version]))
    assert strange != certificate
    for read in (public_key, common_name):
        with pytest.raises(CertificateError):
            read(strange)


def test_a_certificate_on_another_curve_or_none_that_is_known_is_refused():
    certificate = make_certificate("x").certificate_der
    p256 = bytes.fromhex("2a8648ce3d030107")
    assert p256 in certificate
    with pytest.raises(CertificateError):
        public_key(certificate.replace(p256, bytes.fromhex("008648ce3d030107")))
