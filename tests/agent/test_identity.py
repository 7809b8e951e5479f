import pytest

from kafila_agent.identity import IDENTITY_FILE, load_identity
from kafila_proto.certificate import CertificateError
from kafila_proto.names import InvalidName
from kafila_proto.signed import Label, seal, verify


def test_made_once_and_kept(tmp_path):
    one, again = load_identity(tmp_path, "desk"), load_identity(tmp_path, "desk")
    assert one.fingerprint == again.fingerprint
    assert one.certificate_der == again.certificate_der
    assert verify(seal(one, Label.REPORT, b"x"), Label.REPORT, again.fingerprint) == b"x"


def test_another_name_is_the_same_identity(tmp_path):
    assert load_identity(tmp_path, "a").fingerprint == load_identity(tmp_path, "b").fingerprint


def test_a_bad_name_makes_nothing(tmp_path):
    with pytest.raises(InvalidName):
        load_identity(tmp_path, "not a name")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_identity_is_named(tmp_path):
    (tmp_path / IDENTITY_FILE).write_text("hello")
    with pytest.raises(CertificateError, match=IDENTITY_FILE):
        load_identity(tmp_path, "desk")
