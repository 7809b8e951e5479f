"""Transcripts: what enters the ring, in which order."""

from __future__ import annotations

import pytest

from kafila_agent.head.scheduler import QueueFull, Release, Scheduler
from kafila_agent.head.sequence import IllegalEvent, Sequence, State


def scheduler(**options) -> Scheduler:
    settings = {"slots": 2, "prefill_chunk": 4, "chunks_in_flight": 2, "waiting_limit": 3}
    return Scheduler(**(settings | options))


def sequence(number: int, tokens: int) -> Sequence:
    return Sequence(number, tuple(range(100 * number, 100 * number + tokens)))


def shown(commands) -> list[tuple]:
    """(number, "release") or (number, first position, last position, whether it is sampled)."""
    return [
        (c.sequence.number, "release")
        if isinstance(c, Release)
        else (c.sequence.number, c.position, c.position + len(c.ids) - 1, c.wanted)
        for c in commands
    ]


def token(core: Scheduler, of: Sequence, value: int = 9) -> None:
    core.returned(of.number)
    of.output.append(value)
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
