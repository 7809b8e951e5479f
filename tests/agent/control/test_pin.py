import pytest

from kafila_agent.control.pin import AddressError, PinMismatch, Pins, RendezvousAddress, parse_address

HEX = "ab" * 32
PIN = bytes.fromhex(HEX)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("rv.example:7000", RendezvousAddress("rv.example", 7000), "rv.example:7000"),
        ("rv.example", RendezvousAddress("rv.example", 7470), "rv.example:7470"),
        (" 192.0.2.1:1 ", RendezvousAddress("192.0.2.1", 1), "192.0.2.1:1"),
        ("[2001:db8::1]:7000", RendezvousAddress("2001:db8::1", 7000), "[2001:db8::1]:7000"),
        ("[::1]", RendezvousAddress("::1", 7470), "[::1]:7470"),
        ("2001:db8::1", RendezvousAddress("2001:db8::1", 7470), "[2001:db8::1]:7470"),
        (f"rv:1#{HEX}", RendezvousAddress("rv", 1, PIN), "rv:1"),
        (f"rv#{HEX.upper()}", RendezvousAddress("rv", 7470, PIN), "rv:7470"),
        ("rv#" + ":".join(["ab"] * 32), RendezvousAddress("rv", 7470, PIN), "rv:7470"),
    ],
)
def test_addresses(text, address, shown):
    assert parse_address(text) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    "text", ["", ":7470", "rv:port", "rv:0", "rv:65536", "rv:-1", "[::1]:x", "rv:٧", "::]"]
)
def test_what_is_no_address(text):
    with pytest.raises(AddressError, match="HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("pin", ["ab", "x" * 64, HEX + "00"])
def test_what_is_no_fingerprint(pin):
    with pytest.raises(AddressError, match="64 hex digits"):
        parse_address(f"rv:1#{pin}")


def test_first_contact_is_believed_and_kept(tmp_path):
    address, other = parse_address("rv:1"), parse_address("rv:2")
    Pins(tmp_path).check(address, PIN)
    Pins(tmp_path).keep(address, PIN)
    Pins(tmp_path).check(address, PIN)
    Pins(tmp_path).check(other, bytes(32))  # each address has its own
    with pytest.raises(PinMismatch) as mismatch:
        Pins(tmp_path).check(address, bytes(32))
    message = str(mismatch.value)
    assert HEX in message
    assert bytes(32).hex() in message
    kept = tmp_path / "pins" / "rv:1"
    assert str(kept) in message
    kept.unlink()
    Pins(tmp_path).check(address, bytes(32))


def test_a_fingerprint_in_the_address_is_the_one(tmp_path):
    address = parse_address(f"rv:1#{HEX}")
    Pins(tmp_path).keep(parse_address("rv:1"), bytes(32))
    Pins(tmp_path).check(address, PIN)
    with pytest.raises(PinMismatch, match=HEX):
        Pins(tmp_path).check(address, bytes(32))
    Pins(tmp_path).keep(address, PIN)
    assert (tmp_path / "pins" / "rv:1").read_text().strip() == "00" * 32


def test_a_name_cannot_leave_the_directory(tmp_path):
    Pins(tmp_path).keep(parse_address("../../x:1"), PIN)
    assert [path.name for path in (tmp_path / "pins").iterdir()] == ["..%2F..%2Fx:1"]
