from __future__ import annotations

import random

import pytest

from kafila_agent.head.stop import StopStrings


def run(pieces, stops) -> tuple[str, bool]:
    strings, given = StopStrings(stops), ""
    for piece in pieces:
        text, stopped = strings.push(piece)
        given += text
        if stopped:
            return given, True
    return given + strings.flush(), False


@pytest.mark.parametrize(
    ("pieces", "stops", "given", "stopped"),
    [
        (["hello world"], [], "hello world", False),
        (["hello ", "wor", "ld!"], ["world"], "hello ", True),
        (["one\n", "\ntwo"], ["\n\n"], "one", True),
        (["a ST", "OX b"], ["STOP"], "a STOX b", False),
        (["end ST"], ["STOP"], "end ST", False),
        (["aaab"], ["aab"], "a", True),
        (["a", "a", "a", "b"], ["aab"], "a", True),
        (["xabcX"], ["abcX", "b"], "xa", True),
        (["xabc"], ["bc", "c"], "xa", True),
        (["漢字の", "終わり"], ["の終"], "漢字", True),
        (["abc"], [""], "abc", False),
    ],
)
def test_a_stop_string_ends_the_text_before_it(pieces, stops, given, stopped):
    assert run(pieces, stops) == (given, stopped)


def test_text_that_cannot_begin_a_stop_string_is_not_held_back():
    strings = StopStrings(["\n\nUser:"])
    assert strings.push("Hello") == ("Hello", False)
    assert strings.push(" you\n") == (" you", False)
    assert strings.push("\n") == ("", False)
    assert strings.push("More") == ("\n\nMore", False)


def test_the_borders_between_pieces_make_no_difference():
    draw = random.Random(4)
    for _ in range(2000):
        text = "".join(draw.choices("ab ", k=draw.randrange(1, 14)))
        stops = ["".join(draw.choices("ab ", k=draw.randrange(1, 4))) for _ in range(draw.randrange(1, 3))]
        cuts = sorted(draw.sample(range(len(text) + 1), k=draw.randrange(0, min(4, len(text)))))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert run(pieces, stops) == run(list(text), stops) == run([text], stops)
