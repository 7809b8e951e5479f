"""Transcripts: what enters the ring, in which order."""

from __future__ import annotations

import pytest

from kafila_agent.head.scheduler import Chunk, QueueFull, Release, Scheduler
from kafila_agent.head.sequence import IllegalEvent, Sequence, State
from kafila_agent.head.slots import Adopt


def scheduler(**options) -> Scheduler:
    settings = {"slots": 2, "prefill_chunk": 4, "chunks_in_flight": 2, "waiting_limit": 3}
    return Scheduler(**(settings | options))


def sequence(number: int, tokens: int, member: str = "") -> Sequence:
    return Sequence(number, tuple(range(100 * number, 100 * number + tokens)), 50, member)


def shown(commands) -> list[tuple]:
    """(number, "release"), (number, "adopt", tokens), or (number, first position, last position, is it sampled)."""

    def one(command) -> tuple:
        match command:
            case Release():
                return ("release",)
            case Adopt():
                return "adopt", command.tokens, command.slot
            case Chunk():
                return command.position, command.position + len(command.ids) - 1, command.wanted
        return command.row.position, command.row.position, True

    return [(command.sequence.number, *one(command)) for command in commands]


def token(core: Scheduler, of: Sequence, value: int = 9) -> None:
    core.returned(of.number)
    of.commit(value)
    core.proceed(of)


def test_a_prompt_goes_in_chunks_that_start_at_multiples_and_are_bounded_in_flight():
    core, one = scheduler(), sequence(1, 10)
    core.add(one)
    assert shown(core.schedule()) == [(1, 0, 3, False), (1, 4, 7, False)]
    assert core.schedule() == []
    core.returned(1)
    assert shown(core.schedule()) == [(1, 8, 9, True)]
    core.returned(1)
    assert core.schedule() == []
    token(core, one)
    assert shown(core.schedule()) == [(1, 10, 10, True)]
    assert one.state is State.DECODE


@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 9])
def test_chunks_cover_every_prompt_length_once(tokens):
    core, one = scheduler(chunks_in_flight=99), sequence(1, tokens)
    core.add(one)
    launches = core.schedule()
    assert [i for launch in launches for i in launch.ids] == list(one.prompt)
    assert [launch.wanted for launch in launches] == [False] * (len(launches) - 1) + [True]
    assert all(launch.position % 4 == 0 for launch in launches)


def test_prompts_take_turns_and_a_known_token_goes_before_them():
    core, one, two, three = scheduler(slots=3), sequence(1, 2), sequence(2, 12), sequence(3, 12)
    for each in (one, two, three):
        core.add(each)
    assert shown(core.schedule()) == [(1, 0, 1, True), (2, 0, 3, False)]
    token(core, one)
    core.returned(2)
    assert shown(core.schedule()) == [(1, 2, 2, True), (3, 0, 3, False), (2, 4, 7, False)]


def test_first_come_first_served_up_to_the_slots_and_then_the_limit():
    core = scheduler()
    sequences = [sequence(n, 1) for n in range(1, 7)]
    for each in sequences[:5]:
        core.add(each)
        core.schedule()
    with pytest.raises(QueueFull, match="3 requests are waiting"):
        core.add(sequences[5])
    assert [s.state for s in sequences[:5]] == [State.PREFILL] * 2 + [State.WAITING] * 3
    core.end(sequences[3])  # one that waits leaves no trace
    core.end(sequences[1])
    core.returned(2)
    assert shown(core.schedule()) == [(2, "release"), (3, 0, 0, True)]  # in this order
    assert sequences[2].slot == sequences[1].slot


def test_all_slots_may_be_taken_before_any_is_scheduled_even_without_a_queue():
    core = scheduler(waiting_limit=0)
    core.add(sequence(1, 1))
    core.add(sequence(2, 1))
    with pytest.raises(QueueFull):
        core.add(sequence(3, 1))


def test_ending_in_the_middle_of_a_prompt_sends_no_more_of_it_and_frees_its_share_of_the_ring():
    core, one, two = scheduler(), sequence(1, 40), sequence(2, 4)
    core.add(one)
    assert len(core.schedule()) == 2
    core.end(one)
    core.add(two)
    assert shown(core.schedule()) == [(1, "release")]
    core.returned(1)
    assert shown(core.schedule()) == [(2, 0, 3, True)]
    core.returned(1)
    core.returned(1)  # one more than it had
    with pytest.raises(IllegalEvent):
        core.end(one)


def test_a_token_that_came_before_the_end_is_not_sent_after_it():
    core, one = scheduler(), sequence(1, 4)
    core.add(one)
    core.schedule()
    token(core, one)
    core.end(one)
    assert shown(core.schedule()) == [(1, "release")]


def test_a_sequence_that_no_stage_has_heard_of_needs_no_release():
    core, one, two = scheduler(chunks_in_flight=1), sequence(1, 8), sequence(2, 4)
    core.add(one)
    core.add(two)
    assert shown(core.schedule()) == [(1, 0, 3, False)]
    assert two.state is State.PREFILL
    core.end(two)
    assert core.schedule() == []
    core.add(sequence(3, 4))
    core.returned(1)
    assert shown(core.schedule()) == [(1, 4, 7, True)]
    core.returned(1)
    assert shown(core.schedule()) == [(3, 0, 3, True)]


def test_members_take_turns_however_many_requests_one_of_them_has_waiting():
    core = scheduler(slots=1, waiting_limit=9)
    for number in range(1, 5):
        core.add(sequence(number, 1, "busy"))
    core.add(sequence(5, 1, "late"))
    core.add(sequence(6, 1, "later"))
    served = []
    for _ in range(6):
        [launch] = [each for each in core.schedule() if isinstance(each, Chunk)]
        served.append(launch.sequence.number)
        core.returned(launch.sequence.number)
        core.end(launch.sequence)
    assert served == [1, 5, 6, 2, 3, 4]
    assert core.waiting == 0


def decoding(core: Scheduler, number: int, guesses: int, window: int = 9) -> Sequence:
    """A sequence with its newest token known, and guesses at what follows."""
    one = sequence(number, 1)
    core.add(one)
    core.schedule()
    token(core, one)
    one.extend(one.line(), list(range(guesses)), "test")
    one.window = window
    return one


def test_guesses_take_the_places_that_are_left_and_take_turns():
    core = scheduler(slots=3)
    one, two = decoding(core, 1, 5), decoding(core, 2, 2)
    assert (one.rows_in_flight, two.rows_in_flight) == (1, 0)
    assert shown(core.schedule(places=6)) == [
        (2, 1, 1, True),
        (1, 2, 2, True),
        (2, 2, 2, True),
        (1, 3, 3, True),
        (2, 3, 3, True),
    ]
    assert core.schedule(places=6) == []
    assert shown(core.schedule(places=99)) == [(1, 4, 4, True), (1, 5, 5, True), (1, 6, 6, True)]
    assert (one.rows_in_flight, two.rows_in_flight) == (6, 3)


def test_a_line_keeps_to_its_own_window_and_what_it_may_become():
    core = scheduler()
    one = decoding(core, 1, 60, window=3)
    assert len(core.schedule(places=99)) == 3
    one.window = 99
    core.schedule(places=99)
    assert one.launched == len(one.prompt) + one.max_tokens - 1, "the last token is not sent round"


def test_nothing_is_guessed_while_a_prompt_is_under_way():
    core = scheduler(chunks_in_flight=1)
    decoding(core, 1, 5)
    core.add(sequence(2, 6))
    assert shown(core.schedule(places=9)) == [(1, 1, 1, True), (2, 0, 3, False)]
    core.returned(2)
    assert shown(core.schedule(places=9)) == [(2, 4, 5, True)]
    core.returned(2)
    assert len(core.schedule(places=9)) == 5


def test_a_wrong_guess_voids_what_was_launched_and_the_line_goes_on_at_once():
    core = scheduler()
    one = decoding(core, 1, 3)
    assert len(core.schedule(places=9)) == 4
    one.commit(77)
    core.proceed(one)
    [again] = core.schedule(places=9)
    assert (again.row.position, again.row.token, again.row.fence, again.row.floor) == (2, 77, 1, 2)
