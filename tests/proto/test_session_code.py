import re

import pytest

from kafila_proto.session_code import (
    PREFIX_LENGTH,
    SessionCode,
    SessionCodeError,
    make_number,
    make_words,
    parse_session_code,
    password,
    word_list,
)


def test_the_list_is_long_and_its_words_are_told_apart_by_four_letters():
    words = word_list()
    assert len(words) >= 1024
    assert list(words) == sorted(set(words))
    assert len({word[:PREFIX_LENGTH] for word in words}) == len(words)
    assert all(re.fullmatch(r"[a-z]{4,8}", word) for word in words)


@pytest.mark.parametrize(
    "typed",
    [
        "123456-walnut-otter",
        "  123456 Walnut OTTER ",
        "123 456 walnut otter",
        "123456_walnut,otter",
        "123456-waln-otte",
        "123456-walnuts-otters",
        "123456.walnit.otterr",
    ],
)
def test_forgiving_of_how_it_is_typed(typed):
    assert parse_session_code(typed) == SessionCode("123456", ("walnut", "otter"))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("123456-wlanut-otter", "'wlanut'.*walnut"),
        ("123456-walnut-ottre", "'ottre'.*otter"),
        ("123456-walnut-zzzzz", "'zzzzz'.*read the code out again"),
        ("123456-wal-otter", "'wal'"),
        ("12345-walnut-otter", "6 digits, not '12345'"),
        ("walnut-otter", "6 digits"),
        ("123456", "2 words.*here are 0"),
        ("123456-walnut", "here are 1"),
        ("123456-walnut-otter-acorn", "here are 3"),
        ("١٢٣٤٥٦-walnut-otter", "6 digits"),
        ("", "123456-walnut-otter"),
    ],
)
def test_the_bad_part_is_named(typed, named):
    with pytest.raises(SessionCodeError, match=named):
        parse_session_code(typed)


def test_codes_are_random_and_read_back():
    codes = {str(SessionCode(make_number(), make_words())) for _ in range(200)}
    assert len(codes) == 200
    assert all(str(parse_session_code(code)) == code for code in codes)


def test_the_words_stay_out_of_logs():
    code = parse_session_code("123456-walnut-otter")
    assert "walnut" not in repr(code)
    assert password(code.words) == b"walnut-otter"
