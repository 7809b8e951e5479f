from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.frame import Dtype, Frame, Kind, adopted_from
from kafila_agent.stage.waiting import Waiting, WaitingFrames

MOST_ROWS = 8


def row(slot: int, position: int = 0, **fields: object) -> Frame:
    frame = Frame(Kind.TOKENS, 1, slot, slot, position, 1, Dtype.INT32, rows_wanted=1)
    return replace(frame, **fields)


def returned(slot: int, position: int = 0, **fields: object) -> Frame:
    return row(slot, position, kind=Kind.HIDDEN, dtype=Dtype.BFLOAT16, width=64, **fields)


def release(slot: int) -> Frame:
    return Frame(Kind.RELEASE, 1, slot, slot, 0, 0)


def adopt(slot: int) -> Frame:
    return Frame(Kind.ADOPT, 1, slot, slot, 0, **adopted_from(0, 1))


def groups(*frames: Frame, most_rows: int = MOST_ROWS) -> list[list[Frame]]:
    waiting = WaitingFrames(most_rows, lambda frame: frame.kind is Kind.HIDDEN)
    for index, frame in enumerate(frames):
        waiting.put(Waiting(frame, index))
    taken = []
    while waiting:
        taken.append([each.frame for each in waiting.take()])
    return taken


def test_rows_of_several_slots_go_together() -> None:
    assert groups(row(0), row(2), row(1)) == [[row(0), row(1), row(2)]]


def test_rows_of_one_slot_go_on_where_the_last_ended() -> None:
    assert groups(row(0, 5), row(1), row(0, 6)) == [[row(0, 5), row(0, 6), row(1)]]
    assert groups(row(0, 5), row(0, 5, fence=1)) == [[row(0, 5)], [row(0, 5, fence=1)]]
    assert groups(row(0, 5), row(0, 6, sequence=9)) == [[row(0, 5)], [row(0, 6, sequence=9)]]


def test_no_more_rows_than_come_out_as_if_alone() -> None:
    assert groups(row(0), row(1), row(2), most_rows=2) == [[row(0), row(1)], [row(2)]]
    assert groups(row(0), row(1), most_rows=1) == [[row(0)], [row(1)]]
    prompt = row(1, rows=256)
    assert groups(row(0), prompt, row(2)) == [[row(0)], [prompt], [row(2)]]
    assert groups(row(1, rows=5), row(2, rows=3), row(3)) == [[row(1, rows=5), row(2, rows=3)], [row(3)]]


def test_nothing_passes_what_changes_whose_a_slot_is() -> None:
    for owns in (release(0), adopt(0)):
        assert groups(row(0), owns, row(1)) == [[row(0)], [owns], [row(1)]]


def test_rows_that_have_been_round_go_together_by_what_is_wanted_of_them() -> None:
    many = returned(1, rows=40, rows_wanted=1)
    frames = [returned(0), row(2), many, row(3), returned(1, 9)]
    assert groups(*frames) == [[returned(0), many, returned(1, 9)], [row(2), row(3)]]


def test_what_is_void_is_dropped_and_counted() -> None:
    waiting = WaitingFrames(MOST_ROWS, lambda _: False)
    for slot in range(4):
        waiting.put(Waiting(row(slot), 0))
    assert waiting.drop(lambda frame: frame.slot % 2 == 1) == 2
    assert [each.frame.slot for each in waiting.take()] == [0, 2]


def _kinds() -> st.SearchStrategy[Frame]:
    slots, positions = st.integers(0, 2), st.integers(0, 3)
    return st.one_of(
        st.builds(row, slots, positions, rows=st.integers(1, 9), sequence=st.integers(0, 1)),
        st.builds(returned, slots, positions, rows_wanted=st.integers(0, 9)),
        st.builds(release, slots),
        st.builds(adopt, slots),
    )


@given(st.lists(_kinds(), max_size=20))
def test_every_frame_is_taken_once_and_a_slots_own_keep_their_order(frames: list[Frame]) -> None:
    numbered = [replace(frame, epoch=number) for number, frame in enumerate(frames)]
    taken = groups(*numbered)
    order = [frame for group in taken for frame in group]
    assert sorted(order, key=lambda frame: frame.epoch) == numbered
    for slot in range(3):
        for of_kind in (_computes, _returns):
            own = [frame.epoch for frame in order if frame.slot == slot and of_kind(frame)]
            assert own == sorted(own)
    for group in taken:
        assert len({_returns(frame) for frame in group}) == 1
        if len(group) > 1:
            assert all(frame.kind in (Kind.TOKENS, Kind.HIDDEN) for frame in group)
            assert sum(f.rows_wanted if _returns(f) else f.rows for f in group) <= MOST_ROWS
            _assert_runs(group)


def _assert_runs(group: list[Frame]) -> None:
    slots = [frame.slot for frame in group]
    assert slots == sorted(slots)
    for before, after in itertools.pairwise(group):
        if before.slot == after.slot and not _returns(before):
            assert (after.sequence, after.position) == (before.sequence, before.position + before.rows)


def _returns(frame: Frame) -> bool:
    return frame.kind is Kind.HIDDEN


def _computes(frame: Frame) -> bool:
    return not _returns(frame)
