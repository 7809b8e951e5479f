from __future__ import annotations

import pytest
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kafila_agent.model.kv import MAX_FRAME_ROWS, MAX_ROLLBACK_TOKENS, BlockKv
from kafila_agent.stage.errors import StageError, VoidFrame
from kafila_agent.stage.kv_cache import KvReservation, SlotCache

CONTEXT = 4000
WINDOW = 96


def _slot(*windows: int | None, slots: int = 1, context: int = CONTEXT) -> SlotCache:
    blocks = tuple(BlockKv(2, 4, 2, 6, window) for window in windows)
    kv = KvReservation(
        blocks, slots=slots, context_tokens=context, dtype=torch.float32, device=torch.device("cpu")
    )
    return kv.slots[0]


def _rows(count: int, dim: int) -> torch.Tensor:
    return torch.randn(1, 2, count, dim)


def test_what_is_reserved_is_what_was_described() -> None:
    blocks = (BlockKv(2, 4, 2, 6, None), BlockKv(1, 8, 1, 8, WINDOW))
    kv = KvReservation(
        blocks, slots=3, context_tokens=CONTEXT, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    assert kv.nbytes == sum(3 * b.tokens_kept(CONTEXT) * b.elements_per_token * 2 for b in blocks)
    assert blocks[1].tokens_kept(CONTEXT) < CONTEXT
    assert blocks[1].tokens_kept(50) == 50


@pytest.mark.parametrize("seed", range(3))
def test_views_and_masks_are_those_of_transformers_caches(seed: int) -> None:
    """Frames of random length, past many windows: the same keys, values, mask sizes and offsets at every step."""
    torch.manual_seed(seed)
    slot = _slot(None, WINDOW)
    theirs = (DynamicLayer(), DynamicSlidingWindowLayer(sliding_window=WINDOW))
    position = 0
    while position < CONTEXT - MAX_FRAME_ROWS:
        rows = (
            int(torch.randint(1, MAX_FRAME_ROWS + 1, ()))
            if torch.rand(()) < 0.3
            else 1 + int(torch.rand(()) * 3)
        )
        slot.seek(7, position)
        for ours, other in zip(slot.layers, theirs, strict=True):
            assert ours.get_mask_sizes(rows) == other.get_mask_sizes(rows)
            keys, values = _rows(rows, 4), _rows(rows, 6)
            for mine, expected in zip(ours.update(keys, values), other.update(keys, values), strict=True):
                assert torch.equal(mine, expected)
            assert ours.get_seq_length() == other.get_seq_length()
        slot.advance(rows)
        position += rows


@pytest.mark.parametrize("window", [None, WINDOW])
def test_going_back_is_as_if_what_follows_had_never_been(window: int | None) -> None:
    torch.manual_seed(3)
    kept = [(_rows(1, 4), _rows(1, 6)) for _ in range(1500)]
    wrong = [(_rows(1, 4), _rows(1, 6)) for _ in range(MAX_ROLLBACK_TOKENS)]
    straight, detours = _slot(window), _slot(window)
    for position, row in enumerate(kept):
        straight.seek(1, position)
        expected = straight.layers[0].update(*row)
        straight.advance(1)
        if position % 97 == 0:
            for ahead, other in enumerate(wrong):
                detours.seek(1, position + ahead)
                detours.layers[0].update(*other)
                detours.advance(1)
        detours.seek(1, position)
        seen = detours.layers[0].update(*row)
        detours.advance(1)
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_going_back_further_than_the_window_reaches_is_refused() -> None:
    slot = _slot(WINDOW)
    for position in range(0, 2048, 512):
        slot.seek(1, position)
        slot.layers[0].update(_rows(512, 4), _rows(512, 6))
        slot.advance(512)
    with pytest.raises(StageError, match=f"position 200 is more than {MAX_ROLLBACK_TOKENS} tokens back"):
        slot.seek(1, 200)
    slot.seek(1, 0)  # from the start all is well again
    assert slot.layers[0].get_mask_sizes(5) == (5, 0)


def test_a_gap_is_refused_and_so_is_anothers_slot() -> None:
    slot = _slot(None)
    slot.seek(1, 0)
    slot.layers[0].update(_rows(3, 4), _rows(3, 6))
    slot.advance(3)
    with pytest.raises(StageError, match="gap: position 4, but only 3 tokens are cached"):
        slot.seek(1, 4)
    with pytest.raises(StageError, match="sequence 2 at position 3 does not own its slot"):
        slot.seek(2, 3)
    slot.seek(2, 0)
    with pytest.raises(StageError, match="sequence 1 at position 3 does not own"):
        slot.seek(1, 3)


def test_a_released_slot_belongs_to_nobody() -> None:
    slot = _slot(None)
    slot.seek(1, 0)
    slot.advance(3)
    slot.release(2)  # not the owner: a late release of who was here before
    slot.seek(1, 3)
    slot.release(1)
    with pytest.raises(StageError, match="does not own"):
        slot.seek(1, 3)


def test_a_step_that_failed_half_way_leaves_the_length_as_it_was() -> None:
    slot = _slot(None, None)
    slot.seek(1, 0)
    for layer in slot.layers:
        layer.update(_rows(2, 4), _rows(2, 6))
    slot.advance(2)
    slot.seek(1, 2)
    slot.layers[0].update(_rows(1, 4), _rows(1, 6))  # and then the second block failed: no advance
    slot.seek(1, 2)
    assert [layer.get_seq_length() for layer in slot.layers] == [2, 2]


def _fill(slot: SlotCache, sequence: int, tokens: int, *, start: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """Run ``tokens`` of a sequence through the slot, one by one; what each saw in every block."""
    seen = []
    for position in range(start, tokens):
        slot.seek(sequence, position)
        for layer in slot.layers:
            seen.append(layer.update(_rows(1, 4), _rows(1, 6)))
        slot.advance(1)
    return seen


def test_a_frame_that_a_later_fence_has_voided_changes_nothing() -> None:
    slot = _slot(None)
    _fill(slot, 1, 6)
    slot.seek(1, 4, fence=2, floor=3)
    slot.advance(1)
    with pytest.raises(VoidFrame):
        slot.seek(1, 5, fence=1)
    assert slot.length == 5


def test_what_is_settled_is_never_cropped() -> None:
    slot = _slot(None)
    _fill(slot, 1, 6)
    slot.seek(1, 6, floor=5)
    with pytest.raises(StageError, match="position 4 is settled: the floor is 5"):
        slot.seek(1, 4)
    slot.seek(1, 5)
    slot.seek(2, 0)  # another sequence has a floor and fence of its own
    assert (slot.floor, slot.fence) == (0, 0)


@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("in_place", [True, False])
def test_an_adopted_beginning_is_as_if_it_had_been_computed(window: int | None, in_place: bool) -> None:
    torch.manual_seed(5)
    blocks = (BlockKv(2, 4, 2, 6, window),)
    kv = KvReservation(
        blocks, slots=2, context_tokens=CONTEXT, dtype=torch.float32, device=torch.device("cpu")
    )
    source, target = kv.slots[0], kv.slots[0 if in_place else 1]
    _fill(source, 1, 1000)
    expected = [buffer.clone() for buffer in _seen(source, 1, 920)]
    source.seek(1, 920)
    _fill(source, 1, 1000, start=920)
    source.release(1)
    target.adopt(2, 920, source, 1)
    assert (target.sequence, target.length, target.floor) == (2, 920, 920)
    assert all(torch.equal(a, b) for a, b in zip(_seen(target, 2, 920), expected, strict=True))
    if not in_place:
        assert source.holder == 1


def _seen(slot: SlotCache, sequence: int, position: int) -> tuple[torch.Tensor, ...]:
    """What a row of zeros at ``position`` sees."""
    slot.seek(sequence, position)
    return slot.layers[0].update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 6))


def test_what_is_not_there_is_not_adopted() -> None:
    slot = _slot(None, WINDOW)
    _fill(slot, 1, 900)
    slot.release(1)
    for tokens, holder in ((901, 1), (500, 7)):
        with pytest.raises(StageError, match=f"the first {tokens} tokens of sequence {holder} are not in"):
            slot.adopt(2, tokens, slot, holder)
    with pytest.raises(StageError, match="outside the window"):
        slot.adopt(2, 100, slot, 1)
    slot.adopt(2, 900, slot, 1)
    with pytest.raises(StageError, match="does not own"):
        slot.seek(1, 900)
