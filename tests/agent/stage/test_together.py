"""Rows of several sequences in one step: to the bit what each gives alone, whatever goes with it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.kernels.library import native_kernels
from kafila_agent.kernels.linear import ALIKE_ROWS
from kafila_agent.model.blocks import StageModel, load_stage
from kafila_agent.model.manifest import read_manifest
from kafila_agent.probe.random_stage import random_stage
from kafila_agent.stage.errors import StageError, VoidFrame
from kafila_agent.stage.executor import Admitted, StageExecutor, payload_of
from kafila_agent.stage.loop import StageLoop
from kafila_agent.stage.waiting import Waiting, WaitingFrames
from tests.checkpoints import tiny_config

NATIVE = pytest.mark.skipif(native_kernels() is None, reason="no C compiler")
SLOTS, CONTEXT, BLOCKS = 3, 48, 2
KINDS = (
    ("qwen3", "none"),
    ("mistral", "none"),
    ("qwen2", "int8"),
    ("llama", "int4"),
)  # mistral's has a window


@functools.cache
def stage_of(family: str, quant: str = "none", **changes: object) -> StageModel:
    torch.manual_seed(3)
    config = tiny_config(family, tied=False, head_dim=32, max_position_embeddings=512, **changes)
    return random_stage(config, BLOCKS, torch.bfloat16, quant=quant)


def executor_of(stage: StageModel, threads: int = 1) -> StageExecutor:
    return StageExecutor(stage, slots=SLOTS, context_tokens=CONTEXT, threads=threads)


def frame_of(stage: StageModel, slot: int, position: int, rows: int, fence: int = 0, floor: int = 0) -> Frame:
    """Rows that are another sequence's, or another guess's, are other numbers."""
    generator = torch.Generator().manual_seed(1 + slot * 1000 + position * 20 + fence)
    hidden = torch.randn(rows, stage.hidden_size, generator=generator).bfloat16()
    return Frame(
        Kind.HIDDEN,
        1,
        slot,
        slot,
        position,
        rows,
        Dtype.BFLOAT16,
        stage.hidden_size,
        fence,
        rows,
        payload=payload_of(hidden),
        floor=floor,
    )


@dataclass
class Line:
    """One sequence as its head sends it: rows ahead, and now and then back to where a guess was wrong."""

    slot: int
    position: int = 0
    fence: int = 0
    floor: int = 0

    def send(self, stage: StageModel, rows: int, back: int) -> Frame | None:
        if back:
            self.position = max(self.floor, self.position - back)
            self.fence += 1
        self.floor = max(self.floor, self.position - 6)
        if self.position + rows > CONTEXT:
            return None
        frame = frame_of(stage, self.slot, self.position, rows, self.fence, self.floor)
        self.position += rows
        return frame


@dataclass
class Compared:
    """The same frames by one executor in groups, and by another one by one."""

    stage: StageModel
    waiting: WaitingFrames = field(init=False)

    def __post_init__(self) -> None:
        self.together, self.alone = executor_of(self.stage), executor_of(self.stage)
        self.waiting = WaitingFrames(self.together.rows_together, lambda _: False)

    def run_what_waits(self) -> None:
        while self.waiting:
            frames = [waiting.frame for waiting in self.waiting.take()]
            results = self.together.run([self.together.admit(frame) for frame in frames])
            for frame, own in zip(frames, results, strict=True):
                assert torch.equal(own, self.alone.run_blocks(frame))

    def assert_same_caches(self) -> None:
        for own, other in zip(self.together._kv.slots, self.alone._kv.slots, strict=True):
            assert own.length == other.length
            for layer, alone in zip(own.layers, other.layers, strict=True):
                assert layer._base == alone._base
                kept = own.length - layer._base
                assert torch.equal(layer.keys[:, :, :kept], alone.keys[:, :, :kept])
                assert torch.equal(layer.values[:, :, :kept], alone.values[:, :, :kept])


# (slot, rows, how far back first, whether the stage takes what waits now)
STEPS = st.lists(
    st.tuples(
        st.integers(0, SLOTS - 1),
        st.sampled_from([1, 1, 1, 2, 5]),
        st.sampled_from([0, 0, 0, 1, 4]),
        st.booleans(),
    ),
    min_size=4,
    max_size=40,
)


@NATIVE
@pytest.mark.parametrize(("family", "quant"), KINDS)
@given(steps=STEPS)
def test_rows_together_are_rows_alone(
    family: str, quant: str, steps: list[tuple[int, int, int, bool]]
) -> None:
    stage = stage_of(family, quant)
    compared, lines = Compared(stage), [Line(slot) for slot in range(SLOTS)]
    for slot, rows, back, takes in steps:
        if (frame := lines[slot].send(stage, rows, back)) is not None:
            compared.waiting.put(Waiting(frame, 0))
        if takes:
            compared.run_what_waits()
    compared.run_what_waits()
    compared.assert_same_caches()


@NATIVE
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_full_step_of_all_slots_on_several_threads(threads: int) -> None:
    stage = stage_of("qwen3")
    together, alone = executor_of(stage, threads), executor_of(stage)
    frames = [frame_of(stage, slot, 0, rows) for slot, rows in ((0, 3), (1, 1), (2, 4))]
    before = torch.get_num_threads()
    together.bind_thread()
    try:
        results = together.run([together.admit(frame) for frame in frames])
    finally:
        torch.set_num_threads(before)
    assert sum(map(len, results)) == ALIKE_ROWS
    assert all(torch.equal(own, alone.run_blocks(frame)) for own, frame in zip(results, frames, strict=True))


@NATIVE
def test_a_window_that_moves_takes_along_the_rows_that_go_together() -> None:
    stage = stage_of("mistral", sliding_window=9)
    # Beyond the window and the slack that its cache has, so that the window moves to the front of its buffer.
    context = 9 + 640 + 40
    ones = [StageExecutor(stage, slots=2, context_tokens=context, threads=1) for _ in range(2)]
    for executor in ones:
        for slot in range(2):
            for position in (0, 320):
                executor.run_blocks(frame_of(stage, slot, position, 320))
    moved = False
    for position in range(640, context - 3, 3):
        frames = [frame_of(stage, slot, position + i, 1) for slot in range(2) for i in range(3)]
        results = ones[0].run([ones[0].admit(frame) for frame in frames])
        assert all(
            torch.equal(a, ones[1].run_blocks(frame)) for a, frame in zip(results, frames, strict=True)
        )
        moved = moved or ones[0]._kv.slots[0].layers[0]._base > 0
    assert moved


@NATIVE
def test_a_step_that_fails_has_admitted_nobody(monkeypatch) -> None:
    stage = stage_of("qwen3")
    executor, alone = executor_of(stage), executor_of(stage)
    frames = [frame_of(stage, slot, 0, 2) for slot in (0, 1)]

    def fail(*_: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as here:
        here.setattr(stage, "_program", fail)
        with pytest.raises(MemoryError):
            executor.run([executor.admit(frame) for frame in frames])
    with pytest.raises(StageError, match="gap"):
        executor.admit(frame_of(stage, 0, 2, 1))
    results = executor.run([executor.admit(frame) for frame in frames])
    assert all(torch.equal(own, alone.run_blocks(frame)) for own, frame in zip(results, frames, strict=True))


@NATIVE
def test_a_frame_that_is_refused_leaves_what_goes_with_it_alone() -> None:
    stage = stage_of("qwen3")
    executor, alone = executor_of(stage), executor_of(stage)
    good = executor.admit(frame_of(stage, 0, 0, 1, fence=2))
    with pytest.raises(StageError, match="does not own its slot"):
        executor.admit(frame_of(stage, 1, 3, 1))
    with pytest.raises(VoidFrame):
        executor.admit(frame_of(stage, 0, 1, 1, fence=1))
    also = executor.admit(frame_of(stage, 0, 1, 1, fence=2))
    results = executor.run([good, also])
    for own, position in zip(results, (0, 1), strict=True):
        assert torch.equal(own, alone.run_blocks(frame_of(stage, 0, position, 1, fence=2)))


class HeldExecutor(StageExecutor):
    """Begins its first step when it may, and notes how many rows each step had."""

    def hold(self) -> None:
        self.may_begin, self.steps, self.heads = threading.Event(), [], []

    def run(self, admitted: Sequence[Admitted]) -> list[torch.Tensor]:
        self.may_begin.wait()
        self.steps.append(sum(len(each.hidden) for each in admitted))
        return super().run(admitted)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.heads.append(len(hidden))
        return super().logits(hidden)


@NATIVE
@pytest.mark.parametrize("is_last", [False, True], ids=["in a ring", "alone"])
async def test_a_loop_takes_what_waits_together_and_answers_each(checkpoint, is_last: bool) -> None:
    manifest = read_manifest(checkpoint("llama", tied=True, head_dim=32))
    stage = load_stage(manifest, 0, 2, is_head=True, dtype="bfloat16")
    executor = HeldExecutor(stage, slots=4, context_tokens=CONTEXT, threads=1)
    executor.hold()
    told: asyncio.Queue[tuple[str, Frame, object]] = asyncio.Queue()

    def sample(frame: Frame, logits: torch.Tensor) -> int:
        if frame.slot == 2:
            raise ValueError("no such token")
        return int(logits[-1].argmax())

    loop = StageLoop(
        executor,
        epoch=1,
        is_head=True,
        is_last=is_last,
        send=lambda frame: told.put_nowait(("sent", frame, None)),
        sample=sample,
        on_sampled=lambda frame, token: told.put_nowait(("sampled", frame, token)),
        on_error=lambda frame, error: told.put_nowait(("error", frame, error)),
    )
    for slot in range(4):
        token = torch.tensor([slot + 3], dtype=torch.int32).numpy().tobytes()
        position = 1 if slot == 3 else 0  # of which nothing is there
        loop.submit(Frame(Kind.TOKENS, 1, slot, slot, position, 1, Dtype.INT32, rows_wanted=1, payload=token))
    executor.may_begin.set()
    answers = {
        frame.slot: (what, frame, result) for what, frame, result in [await told.get() for _ in range(4)]
    }
    if not is_last:
        assert [answers[slot][0] for slot in range(4)] == ["sent", "sent", "sent", "error"]
        for slot in range(3):
            loop.submit(answers[slot][1])
        answers |= {
            frame.slot: (what, frame, result) for what, frame, result in [await told.get() for _ in range(3)]
        }
    await loop.close()
    assert [answers[slot][0] for slot in range(4)] == ["sampled", "sampled", "error", "error"]
    assert sum(executor.steps) == sum(executor.heads) == 3
    assert max(executor.steps) > 1  # those that came while the first was held
    alone = StageExecutor(stage, slots=1, context_tokens=CONTEXT, threads=1)
    for slot in range(2):
        token = torch.tensor([slot + 3], dtype=torch.int32).numpy().tobytes()
        hidden = alone.run_blocks(Frame(Kind.TOKENS, 1, slot, 0, 0, 1, Dtype.INT32, payload=token))
        assert answers[slot][2] == int(alone.logits(hidden)[-1].argmax())


@NATIVE
@pytest.mark.parametrize("rows", [1, ALIKE_ROWS, ALIKE_ROWS + 1])
async def test_a_frame_s_own_memory_is_written_over_and_another_s_is_not(rows: int) -> None:
    """Bytes that came over an edge are the stage's; what may only be read is left as it was. Both give the same."""
    stage = stage_of("qwen3")
    sent: asyncio.Queue[Frame] = asyncio.Queue()
    another = frame_of(stage, 0, 0, rows)
    before = bytes(another.payload)
    own = replace(another, payload=memoryview(bytearray(before)))
    results = []
    for frame in (another, own):
        loop = StageLoop(
            executor_of(stage),
            epoch=1,
            is_head=False,
            is_last=False,
            send=sent.put_nowait,
            on_error=lambda frame, error: sent.put_nowait(frame),
        )
        loop.submit(frame)
        results.append((await sent.get()).payload)
        await loop.close()
    assert results[0] == results[1] != before
    assert another.payload == before
    assert (results[1].obj is own.payload.obj) is (rows <= ALIKE_ROWS)


def test_what_would_not_be_alike_is_not_taken_together() -> None:
    """Where torch multiplies, and where the highest position in a step decides how all its rows are turned."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    turned = tiny_config("llama", tied=False, head_dim=32, rope_parameters=rope)
    assert random_stage(turned, 1, torch.bfloat16).rows_together == 1
    assert random_stage(tiny_config("llama", tied=False, head_dim=32), 1, torch.float32).rows_together == 1
