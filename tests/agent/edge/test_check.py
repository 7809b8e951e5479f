from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.check import CHECK_BYTES, CheckKind, PairKey, is_check, parse_check

ONE, OTHER = b"1" * 32, b"2" * 32
KEY = PairKey.derive(b"session", 1, ONE, OTHER)


@given(
    st.sampled_from(CheckKind),
    st.binary(min_size=8, max_size=8),
    st.booleans(),
    st.integers(CHECK_BYTES, 9000),
)
def test_a_check_comes_back_as_it_was(kind, transaction, from_dialer, size):
    data = KEY.encode(kind, transaction, from_dialer=from_dialer, size=size)
    check = KEY.parse(data)
    assert len(data) == size
    assert (check.kind, check.transaction, check.from_dialer, check.size) == (
        kind,
        transaction,
        from_dialer,
        size,
    )
    assert check.pair_id == KEY.pair_id


@given(st.binary(max_size=100))
def test_garbage_is_no_check(data):
    assert KEY.parse(data) is None
    assert KEY.parse(b"\x9bkc" + data) is None


@given(st.integers(0, CHECK_BYTES - 1), st.integers(1, 255))
def test_a_changed_check_is_no_check(position, flip):
    data = bytearray(KEY.encode(CheckKind.REQUEST, b"8 bytes!", from_dialer=True))
    data[position] ^= flip
    assert KEY.parse(bytes(data)) is None


def test_a_check_that_was_cut_short_does_not_prove_its_size():
    data = KEY.encode(CheckKind.ANSWER, b"8 bytes!", from_dialer=False, size=1200)
    assert is_check(data)
    assert parse_check(data[:-1]) is None
    assert parse_check(data + b"\0") is None


def test_the_key_is_one_for_a_pair_and_another_for_every_other_pair_session_and_epoch():
    assert PairKey.derive(b"session", 1, OTHER, ONE) == KEY
    others = [
        PairKey.derive(b"session", 2, ONE, OTHER),
        PairKey.derive(b"another", 1, ONE, OTHER),
        PairKey.derive(b"session", 1, ONE, b"3" * 32),
    ]
    data = KEY.encode(CheckKind.REQUEST, b"8 bytes!", from_dialer=True)
    assert len({key.pair_id for key in [KEY, *others]}) == 4
    assert all(key.parse(data) is None for key in others)
