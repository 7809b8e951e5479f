from __future__ import annotations

import pytest

from kafila_agent.head.sequence import Sequence
from kafila_agent.head.slots import Slots

CHUNK = 4
CHAT = tuple(range(100, 140))


def prefilled(slots: Slots, number: int, prompt: tuple[int, ...]) -> tuple[Sequence, int]:
    """A sequence that has a slot and has sent all of its prompt; and how much of it was there already."""
    sequence = Sequence(number, prompt, 9)
    adopt = slots.take(sequence)
    kept = adopt.tokens if adopt else 0
    assert kept == sequence.kept == sequence.launched
    while sequence.launched < len(prompt):
        sequence.chunk(CHUNK)
    return sequence, kept


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (CHAT[:10], CHAT[:20], 8),  # whole chunks of what was a prompt before
        (CHAT[:12], CHAT[:20], 12),
        (CHAT[:12], CHAT[:12], 8),  # something must be left to sample from
        (CHAT[:12], CHAT[:13], 12),
        (CHAT[:3], CHAT[:20], 0),
        (CHAT[:20], (*CHAT[:9], 7, *CHAT[10:20]), 8),  # another word in the third chunk
        (CHAT[:20], (7, *CHAT[1:20]), 0),
    ],
)
def test_whole_chunks_that_both_begin_with_are_kept(first, second, kept):
    slots = Slots(1, chunk=CHUNK)
    one, nothing = prefilled(slots, 1, first)
    assert nothing == 0
    slots.give_back(one)
    assert prefilled(slots, 2, second)[1] == kept


def test_only_what_was_launched_is_there():
    slots = Slots(2, chunk=CHUNK)
    one = Sequence(1, CHAT, 9)
    slots.take(one)
    one.chunk(CHUNK)
    assert prefilled(slots, 2, CHAT)[1] == CHUNK


def test_the_next_turn_goes_on_in_its_own_slot_and_others_take_the_oldest():
    slots = Slots(3, chunk=CHUNK)
    turns = [prefilled(slots, n, (n, *CHAT[:11]))[0] for n in range(3)]
    for each in turns:
        slots.give_back(each)
    again, kept = prefilled(slots, 7, (1, *CHAT))
    assert (again.slot, kept) == (turns[1].slot, 12)
    other, kept = prefilled(slots, 8, CHAT[20:])
    assert (other.slot, kept) == (turns[0].slot, 0)


def test_whoever_shares_only_a_beginning_gets_a_copy_and_leaves_the_rest_to_its_owner():
    slots = Slots(2, chunk=CHUNK)
    long = Sequence(1, CHAT, 9)
    slots.take(long)
    while long.launched < len(CHAT):
        long.chunk(CHUNK)
    slots.give_back(long)
    fork = Sequence(2, (*CHAT[:8], 7, 7), 9)
    adopt = slots.take(fork)
    assert (adopt.tokens, adopt.slot, adopt.source) == (8, long.slot, long)
    assert fork.slot != long.slot
    slots.give_back(fork)
    assert prefilled(slots, 3, (*CHAT, 1))[1] == 40


def test_what_a_taken_slot_held_is_gone():
    slots = Slots(1, chunk=CHUNK)
    one, _ = prefilled(slots, 1, CHAT)
    slots.give_back(one)
    two, _ = prefilled(slots, 2, CHAT[20:])
    slots.give_back(two)
    assert prefilled(slots, 3, CHAT)[1] == 0


def test_what_a_failed_sequence_left_is_not_relied_on():
    slots = Slots(1, chunk=CHUNK)
    one, _ = prefilled(slots, 1, CHAT)
    slots.give_back(one, intact=False)
    assert prefilled(slots, 2, CHAT)[1] == 0


def test_stages_that_keep_a_window_are_not_asked_to_go_back_further_than_they_can():
    slots = Slots(1, chunk=CHUNK, rollback_tokens=6)
    one, _ = prefilled(slots, 1, CHAT[:10])
    for _ in range(5):
        one.commit(1)
        one.next_row()
    assert one.reach == 15
    slots.give_back(one)
    two, kept = prefilled(slots, 2, CHAT[:20])  # from 15 to 8 it is 7
    assert kept == 0
    slots.give_back(two)
    assert prefilled(slots, 3, CHAT)[1] == 20
