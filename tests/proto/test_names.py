import pytest

from kafila_proto.names import MAX_SHOWN_LENGTH, InvalidName, check_name, derive_name, printable


@pytest.mark.parametrize("name", ["a", "desk", "My-Laptop_2.home", "x" * 32])
def test_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 33, "a b", "naïve", "a/b", "a\n", "\0"])
def test_what_is_no_name(name):
    with pytest.raises(InvalidName, match="--name"):
        check_name(name)


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("desk.lan", "desk"),
        ("Ada's Mac", "Ada-s-Mac"),
        ("日本", "member"),
        ("", "member"),
        ("h" * 40, "h" * 32),
    ],
)
def test_a_machine_has_a_name_already(hostname, name):
    assert check_name(derive_name(hostname)) == name


def test_what_others_say_cannot_drive_a_terminal():
    assert printable("no\x1b[2J such\r\nmodel\u202e: naïve") == "no [2J such  model : naïve"
    assert len(printable("x" * 10**6)) == MAX_SHOWN_LENGTH
