from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.api.choices import joined
from kafila_agent.api.errors import event_of


@given(st.text(st.characters(exclude_categories=())))
def test_an_event_is_one_line_however_lines_are_told_apart(text):
    """Half a surrogate pair, too, which a model may write in a call."""
    event = event_of({"content": text}).decode()
    assert event.splitlines() == [event.removesuffix("\n\n"), ""]
    assert json.loads(event.removeprefix("data: ")) == {"content": text}


def test_deltas_are_joined_by_what_they_are():
    deltas = [
        {"index": 1, "delta": {"content": "a"}, "logprobs": None},
        {
            "index": 1,
            "delta": {"content": "b", "tool_calls": [1]},
            "logprobs": {"content": [1], "refusal": None},
        },
        {"index": 1, "delta": {}, "logprobs": {"content": [2, 3], "refusal": None}},
        {"index": 1, "delta": {"tool_calls": [2]}, "logprobs": None},
    ]
    assert joined(deltas) == {
        "index": 1,
        "delta": {"content": "ab", "tool_calls": [1, 2]},
        "logprobs": {"content": [1, 2, 3], "refusal": None},
    }
    assert joined([]) == {}
