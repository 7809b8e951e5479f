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


def test_the_key_is_its_owners_alone(tmp_path):
    state = tmp_path / "state"
    load_identity(state, "desk")
    file = state / IDENTITY_FILE
    assert (state.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    for mode in (0o640, 0o604, 0o660):
        file.chmod(mode)
        with pytest.raises(CertificateError, match=rf"mode {mode:o}.*chmod 600"):
            load_identity(state, "desk")
    file.chmod(0o400)
    load_identity(state, "desk")


def test_a_file_that_is_no_identity_is_named(tmp_path):
    (tmp_path / IDENTITY_FILE).write_text("hello")
    (tmp_path / IDENTITY_FILE).chmod(0o600)
    with pytest.raises(CertificateError, match=IDENTITY_FILE):
        load_identity(tmp_path, "desk")
