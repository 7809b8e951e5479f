from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind, adopted_from
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.kv import MAX_FRAME_ROWS
from kafila_agent.model.manifest import read_manifest
from kafila_agent.stage.errors import StageError
from kafila_agent.stage.executor import StageExecutor
from kafila_agent.stage.loop import StageLoop

EPOCH = 5
CONTEXT = 32
WIDTH = 64


class Recorder:
    """A stage loop and all that it tells."""

    def __init__(
        self, directory, start: int, end: int, *, is_last: bool = False, sample=None, **callbacks
    ) -> None:
        is_head = start == 0
        stage = load_stage(read_manifest(directory), start, end, is_head=is_head, dtype="float32")
        self.events: asyncio.Queue[tuple[str, Frame, object]] = asyncio.Queue()
        self.threads: list[str] = []
        self.loop = StageLoop(
            StageExecutor(stage, slots=2, context_tokens=CONTEXT, threads=1),
            epoch=EPOCH,
            is_head=is_head,
            is_last=is_last,
            send=lambda frame: self._tell("send", frame, None),
            sample=sample or (lambda frame, logits: logits.argmax(-1).tolist()),
            on_sampled=lambda frame, result: self._tell("sampled", frame, result),
            on_error=lambda frame, error: self._tell("error", frame, error),
            **callbacks,
        )

    def _tell(self, what: str, frame: Frame, result: object) -> None:
        self.threads.append(threading.current_thread().name)
        self.events.put_nowait((what, frame, result))

    async def run(self, frame: Frame) -> tuple[str, Frame, object]:
        self.loop.submit(frame)
        return await self.events.get()


@pytest.fixture
def directory(checkpoint):
    return checkpoint("llama", tied=True)


@pytest.fixture
async def middle(directory):
    recorder = Recorder(directory, 2, 4)
    yield recorder
    await recorder.loop.close()


@pytest.fixture
async def alone(directory):
    recorder = Recorder(directory, 0, 6, is_last=True)
    yield recorder
    await recorder.loop.close()


def tokens(*ids: int, position: int = 0, **fields: object) -> Frame:
    payload = torch.tensor(ids, dtype=torch.int32).numpy().tobytes()
    frame = Frame(Kind.TOKENS, EPOCH, 1, 0, position, len(ids), Dtype.INT32, rows_wanted=1, payload=payload)
    return replace(frame, **fields)


def hidden(rows: int, position: int = 0, **fields: object) -> Frame:
    payload = torch.randn(rows, WIDTH).numpy().tobytes()
    frame = Frame(
        Kind.HIDDEN, EPOCH, 1, 0, position, rows, Dtype.FLOAT32, WIDTH, rows_wanted=rows, payload=payload
    )
    return replace(frame, **fields)


async def test_a_middle_stage_passes_rows_on_and_adds_its_time(middle) -> None:
    what, frame, _ = await middle.run(hidden(3, rows_wanted=1))
    assert what == "send"
    assert (frame.kind, frame.rows, frame.position, frame.width) == (Kind.HIDDEN, 3, 0, WIDTH)
    assert len(frame.payload) == 3 * WIDTH * 4
    assert len(frame.stage_times) == 1
    assert frame.stage_times[0].compute_ns > 0


async def test_the_last_stage_sends_only_the_rows_wanted(directory) -> None:
    last = Recorder(directory, 4, 6, is_last=True)
    _, frame, _ = await last.run(hidden(5, rows_wanted=2))
    assert (frame.rows, frame.rows_wanted, frame.position) == (2, 2, 3)
    assert len(frame.payload) == 2 * WIDTH * 4
    _, frame, _ = await last.run(hidden(5, position=5, rows_wanted=0))
    assert (frame.rows, frame.position, len(frame.payload)) == (0, 10, 0)
    await last.loop.close()


async def test_a_head_alone_samples_without_sending(alone) -> None:
    what, frame, result = await alone.run(tokens(3, 4, 5))
    assert what == "sampled"
    assert len(result) == 1
    assert (frame.kind, frame.rows, frame.position) == (Kind.HIDDEN, 1, 2)
    assert len(frame.stage_times) == 2
    what, frame, result = await alone.run(tokens(3, 4, position=3, rows_wanted=0))
    assert (what, result, frame.position) == ("sampled", None, 5)


async def test_several_rows_may_be_wanted(alone) -> None:
    _, _, whole = await alone.run(tokens(3, 4, 5, rows_wanted=3))
    one_by_one = []
    for position, token in enumerate((3, 4, 5)):
        _, _, result = await alone.run(tokens(token, position=position))
        one_by_one += result
    assert whole == one_by_one


async def test_a_head_in_a_ring_sends_and_samples_what_returns(directory) -> None:
    head = Recorder(directory, 0, 2)
    what, frame, _ = await head.run(tokens(3, 4))
    assert (what, frame.kind, frame.rows) == ("send", Kind.HIDDEN, 2)
    what, frame, result = await head.run(replace(frame, rows_wanted=1))  # untrimmed: the last row counts
    assert (what, len(result), len(frame.stage_times)) == ("sampled", 1, 2)
    await head.loop.close()


async def test_callbacks_run_on_the_loop_and_sampling_on_the_worker(directory) -> None:
    sampled_on = []
    recorder = Recorder(
        directory, 0, 6, is_last=True, sample=lambda *_: sampled_on.append(threading.current_thread().name)
    )
    await recorder.run(tokens(3))
    assert recorder.threads == [threading.current_thread().name]
    assert sampled_on == ["stage"]
    await recorder.loop.close()


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (
            hidden(1, width=32, payload=b"\0" * 128),
            "frame of width 32 in FLOAT32, this stage takes 64 in FLOAT32",
        ),
        (hidden(1, dtype=Dtype.BFLOAT16), "in BFLOAT16"),
        (hidden(1, payload=b"\0" * 8), "payload of 8 bytes, 256 are due"),
        (hidden(1, slot=2), "slot 2 of 2"),
        (hidden(1, position=3), "gap: position 3, but only 2 tokens are cached"),
        (hidden(1, position=2, sequence=9), "sequence 9 at position 2 does not own its slot"),
        (hidden(31, position=2), "position 33 is over the context of 32"),
        (hidden(0), f"0 rows in a frame, from 1 to {MAX_FRAME_ROWS} can run"),
        (hidden(MAX_FRAME_ROWS + 1), f"{MAX_FRAME_ROWS + 1} rows in a frame"),
        (tokens(3), "token ids came to a stage that is not the head"),
    ],
)
async def test_a_frame_that_does_not_fit_is_named_and_the_stage_goes_on(
    middle, frame, complaint: str
) -> None:
    await middle.run(hidden(2))
    what, failed, error = await middle.run(frame)
    assert what == "error"
    assert failed is frame
    assert isinstance(error, StageError)
    assert complaint in str(error)
    what, _, _ = await middle.run(hidden(1, position=2))
    assert what == "send"


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (tokens(3, 128), "a token id is outside the vocabulary of 128"),
        (tokens(-1), "a token id is outside the vocabulary"),
        (tokens(3, dtype=Dtype.FLOAT32), "token ids in FLOAT32, INT32 is due"),
    ],
)
async def test_tokens_that_do_not_fit_are_named(alone, frame, complaint: str) -> None:
    _, _, error = await alone.run(frame)
    assert isinstance(error, StageError)
    assert complaint in str(error)
    assert (await alone.run(tokens(3)))[0] == "sampled"


async def test_an_error_in_sampling_is_named_and_the_stage_goes_on(directory) -> None:
    answers = iter([ValueError("no such token"), 7])

    def sample(frame, logits):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recorder = Recorder(directory, 0, 6, is_last=True, sample=sample)
    what, _, error = await recorder.run(tokens(3))
    assert (what, str(error)) == ("error", "ValueError: no such token")
    assert (await recorder.run(tokens(3)))[2] == 7
    await recorder.loop.close()


async def test_a_frame_of_another_epoch_is_dropped(middle) -> None:
    middle.loop.submit(hidden(1, epoch=EPOCH - 1))
    middle.loop.submit(hidden(1, epoch=EPOCH + 1))
    what, frame, _ = await middle.run(hidden(2))
    assert (what, frame.rows, middle.loop.stale_frames) == ("send", 2, 2)


async def test_a_release_frees_the_slot_and_goes_round_once(directory, middle) -> None:
    release = Frame(Kind.RELEASE, EPOCH, 1, 0, 0, 0)
    await middle.run(hidden(2))
    what, passed, _ = await middle.run(release)
    assert (what, passed.kind) == ("send", Kind.RELEASE)
    assert (await middle.run(hidden(1, position=2)))[0] == "error"

    head = Recorder(directory, 0, 2)
    _, sent, _ = await head.run(release)
    head.loop.submit(sent)  # back from the ring: no further
    assert (await head.run(tokens(3)))[1].kind is Kind.HIDDEN
    await head.loop.close()


async def test_one_row_steps_are_timed(middle, alone) -> None:
    assert middle.loop.measured_stage_s is None
    await middle.run(hidden(2))
    assert middle.loop.measured_stage_s is None
    _, frame, _ = await middle.run(hidden(1, position=2))
    assert middle.loop.measured_stage_s == frame.stage_times[0].compute_ns / 1e9
    await alone.run(tokens(3))
    assert alone.loop.measured_stage_s > 0


async def test_slots_do_not_see_each_other(alone) -> None:
    _, _, first = await alone.run(tokens(3, 4, 5))
    await alone.run(tokens(9, 8, 7, sequence=2, slot=1))
    _, _, expected = await alone.run(tokens(6, position=3))
    await alone.run(tokens(3, 4, 5, sequence=3, slot=1))
    _, _, other = await alone.run(tokens(6, position=3, sequence=3, slot=1))
    assert other == expected
    assert first is not None


async def test_a_row_that_waits_here_is_dropped_once_a_later_fence_has_come(middle) -> None:
    await middle.run(hidden(2))
    for position in (2, 3, 4):
        middle.loop.submit(hidden(1, position=position))
    what, frame, _ = await middle.run(hidden(1, position=2, fence=1, floor=2))
    while frame.fence == 0:  # those that were run before it came
        _, frame, _ = await middle.events.get()
    assert (what, frame.position) == ("send", 2)
    assert middle.events.empty()
    middle.loop.submit(hidden(1, position=3))  # and one that comes after it
    await middle.run(hidden(1, position=3, fence=1, floor=2))
    assert 1 <= middle.loop.void_frames <= 4


async def test_what_nobody_awaits_is_not_computed(directory) -> None:
    awaited = iter([True, False])
    recorder = Recorder(directory, 0, 6, is_last=True, awaits=lambda frame: next(awaited))
    _, _, result = await recorder.run(tokens(3))
    assert len(result) == 1
    what, frame, result = await recorder.run(tokens(4, position=1))
    assert (what, frame.position, result) == ("sampled", 1, None)
    await recorder.loop.close()


async def test_an_adoption_goes_round_once_and_its_failure_is_told(directory, middle) -> None:
    adopt = Frame(Kind.ADOPT, EPOCH, 2, 1, 2, **adopted_from(0, 1))
    await middle.run(hidden(3))
    what, passed, _ = await middle.run(adopt)
    assert (what, passed.kind, passed.payload) == ("send", Kind.ADOPT, adopt.payload)
    assert (await middle.run(hidden(1, position=2, sequence=2, slot=1)))[0] == "send"
    what, _, error = await middle.run(replace(adopt, position=9))
    assert (what, "are not in the slot named" in str(error)) == ("error", True)
    what, _, error = await middle.run(replace(adopt, **adopted_from(9, 1)))
    assert (what, str(error)) == ("error", "slot 9 of 2")
    head = Recorder(directory, 0, 2)
    await head.run(tokens(3, 4, 5))
    _, sent, _ = await head.run(adopt)
    head.loop.submit(sent)  # back from the ring: no further
    assert (await head.run(tokens(3, position=2, sequence=2, slot=1)))[1].kind is Kind.HIDDEN
    await head.loop.close()
