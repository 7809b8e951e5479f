import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.signed import Label, SignatureError, make_signature, seal, verify, verify_signature


class Author:
    """The least that can sign."""

    def __init__(self):
        self.certificate = make_certificate("x")
        self.certificate_der = self.certificate.certificate_der
        self.fingerprint = self.certificate.fingerprint

    def sign(self, label: str, payload: bytes) -> bytes:
        return make_signature(self.certificate.private_key, label, payload)


@pytest.fixture(scope="module")
def author():
    return Author()


def test_what_is_sealed_can_be_verified(author):
    signed = pb.Signed.FromString(seal(author, Label.PLAN, b"payload").SerializeToString())
    assert verify(signed, Label.PLAN, author.fingerprint) == b"payload"


def test_one_kind_of_statement_never_passes_for_another(author):
    signed = seal(author, Label.REPORT, b"payload")
    with pytest.raises(SignatureError, match="kafila plan"):
        verify(signed, Label.PLAN, author.fingerprint)


def test_label_and_payload_have_one_reading(author):
    signature = author.sign("ab", b"c")
    with pytest.raises(SignatureError):
        verify_signature(author.certificate_der, "a", b"bc", signature)
    with pytest.raises(ValueError, match="zero byte"):
        author.sign("a\0b", b"c")


@pytest.mark.parametrize("field", ["payload", "signature", "certificate"])
def test_a_changed_byte_is_noticed(author, field):
    signed = seal(author, Label.PLAN, b"payload")
    data = bytearray(getattr(signed, field))
    data[-1] ^= 1
    setattr(signed, field, bytes(data))
    with pytest.raises(SignatureError):
        verify(signed, Label.PLAN, author.fingerprint)


def test_another_author_is_named(author):
    signed = seal(Author(), Label.PLAN, b"payload")
    with pytest.raises(SignatureError, match=author.fingerprint.hex()[:16]):
        verify(signed, Label.PLAN, author.fingerprint)


def test_a_signature_of_garbage_is_refused(author):
    for signature in (b"", b"garbage", b"\x30\x00"):
        with pytest.raises(SignatureError):
            verify_signature(author.certificate_der, Label.PLAN, b"payload", signature)
    with pytest.raises(SignatureError):
        verify_signature(b"no certificate", Label.PLAN, b"payload", author.sign(Label.PLAN, b"payload"))
