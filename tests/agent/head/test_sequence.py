from __future__ import annotations

import itertools

import pytest

from kafila_agent.head.sequence import Event, IllegalEvent, Row, Sequence, State, Verdict

LEGAL = {
    (State.WAITING, Event.ADMIT): State.PREFILL,
    (State.WAITING, Event.END): State.FINISHED,
    (State.PREFILL, Event.FIRST_TOKEN): State.DECODE,
    (State.PREFILL, Event.END): State.FINISHED,
    (State.DECODE, Event.END): State.FINISHED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_event_moves_on_or_raises(state, event):
    sequence = Sequence(5, (1, 2), 9, state=state)
    if (state, event) in LEGAL:
        sequence.handle(event)
        assert sequence.state is LEGAL[state, event]
    else:
        with pytest.raises(IllegalEvent, match=f"sequence 5: {event} cannot happen while {state}"):
            sequence.handle(event)
        assert sequence.state is state


@pytest.fixture
def line() -> Sequence:
    """A sequence in DECODE: two prompt tokens, and the first of the answer."""
    sequence = Sequence(5, (1, 2), 9)
    sequence.chunk(4)
    sequence.commit(3)
    return sequence


def test_the_newest_token_goes_first_and_the_guesses_follow(line):
    line.extend(line.line(), [4, 5], "a")
    assert line.next_row() == Row(2, 3, 0, 2, "")
    assert line.next_row() == Row(3, 4, 0, 2, "a")
    line.extend(line.line(), [6], "b")
    assert [line.next_row(), line.next_row(), line.next_row()] == [
        Row(4, 5, 0, 2, "a"),
        Row(5, 6, 0, 2, "b"),
        None,
    ]
    assert line.rows_in_flight == 4


def test_right_guesses_settle_one_by_one_and_a_wrong_one_starts_the_line_anew(line):
    line.extend(line.line(), [4, 5, 6], "a")
    while line.next_row():
        pass
    assert line.commit(4) == Verdict("a", True)
    assert (line.rows_in_flight, line.settled, line.fence) == (3, 3, 0)
    assert line.awaits(0, 3)
    assert line.commit(9) == Verdict("a", False)
    assert not line.awaits(0, 4), "of the old fence"
    assert line.next_row() == Row(4, 9, 1, 4, "")
    assert line.awaits(1, 4)
    assert line.commit(7) is None, "nobody had guessed"


def test_guesses_that_come_late_count_if_what_was_sampled_meanwhile_agrees(line):
    before = line.line()
    line.next_row()
    line.commit(4)
    line.extend(before, [9, 9], "a")
    assert line.guesses == 0
    line.extend(before, [4, 5], "a")
    assert line.next_row() == Row(3, 4, 0, 3, "")
    assert line.next_row() == Row(4, 5, 0, 3, "a")
    line.extend(before, [4, 5], "a")
    assert line.guesses == 1, "it was answered already"


def test_guesses_for_a_line_that_proved_wrong_mean_nothing(line):
    line.extend(line.line(), [4], "a")
    before = line.line()
    line.next_row()
    line.commit(8)
    line.extend(before, [5, 6], "a")
    assert line.guesses == 0


def test_a_line_tells_what_is_new_since_it_was_asked_last(line):
    line.commit(4)
    line.extend(line.line(), [5], "a")
    told = line.line(1)
    assert (told.output, told.guesses, told.length) == ([4], [5], 3)
