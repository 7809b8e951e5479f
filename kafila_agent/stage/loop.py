"""A stage at work: one worker thread runs frames as ``waiting`` has them; the asyncio loop hears of results.

At the head a token frame becomes hidden states of its own blocks and leaves for the next stage (alone in
the ring it goes straight on); what comes back from the ring goes through final norm and LM head and is
sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from kafila_agent.edge.frame import Frame, Kind, StageTime
from kafila_agent.stage.errors import StageError, VoidFrame
from kafila_agent.stage.executor import Admitted, StageExecutor, payload_of
from kafila_agent.stage.waiting import Waiting, WaitingFrames

_T = TypeVar("_T")
# How many of the latest one-row steps the measured stage time is the median of.
_STEPS_REMEMBERED = 64


class StageLoop:
    """Runs frames of one epoch on one executor.

    Called on the asyncio loop that made it: ``send(frame)`` for the next stage, ``on_sampled(frame,
    result)``, and ``on_error(frame, StageError)``. Called on the worker thread: ``sample(frame,
    logits)`` with logits float32 ``[rows_wanted, vocab_size]``; its result is handed to ``on_sampled``
    (None where no row was wanted). Where ``awaits(frame)`` is false, nobody waits for a result and none is computed.
    """

    def __init__(
        self,
        executor: StageExecutor,
        *,
        epoch: int,
        is_head: bool,
        is_last: bool,
        send: Callable[[Frame], None],
        awaits: Callable[[Frame], bool] = lambda frame: True,
        sample: Callable[[Frame, torch.Tensor], object] | None = None,
        on_sampled: Callable[[Frame, Any], None] | None = None,
        on_error: Callable[[Frame, StageError], None],
    ) -> None:
        if is_head and (sample is None or on_sampled is None):
            raise ValueError("the head samples: sample and on_sampled are due")
        self.stale_frames = 0  # of another epoch
        self.void_frames = 0  # of a fence that a later one had overtaken
        self._executor = executor
        self._epoch, self._is_head, self._is_last = epoch, is_head, is_last
        self._send, self._on_sampled, self._on_error = send, on_sampled, on_error
        self._awaits, self._sample = awaits, sample
        self._loop = asyncio.get_running_loop()
        self._arriving: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._waiting = WaitingFrames(executor.rows_together, self._returns)
        self._fences: dict[int, tuple[int, int]] = {}  # slot -> (sequence, its newest fence submitted)
        self._block_steps_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._head_steps_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._thread = threading.Thread(target=self._work, name="stage", daemon=True)
        self._thread.start()

    def submit(self, frame: Frame) -> None:
        """Queue a frame, from the engine or from the previous stage. Never blocks."""
        if frame.kind in (Kind.TOKENS, Kind.HIDDEN) and not self._returns(frame):
            self._fences[frame.slot] = frame.sequence, frame.fence
        self._arriving.put(Waiting(frame, time.monotonic_ns()))

    @property
    def queued_frames(self) -> int:
        """Frames waiting for the worker."""
        return self._arriving.qsize() + len(self._waiting)

    @property
    def measured_stage_s(self) -> float | None:
        """Median seconds of the latest one-row steps; at the head, blocks plus norm and LM head."""
        if not self._block_steps_ns or (self._is_head and not self._head_steps_ns):
            return None
        head_ns = statistics.median(self._head_steps_ns) if self._is_head else 0
        return (statistics.median(self._block_steps_ns) + head_ns) / 1e9

    async def close(self) -> None:
        """Drop what is queued, let the frame at work finish, and end the worker."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._arriving.get_nowait()
        self._arriving.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        self._executor.bind_thread()
        while self._take_in():
            if self._waiting:
                self._run(self._waiting.take(), time.monotonic_ns())

    def _take_in(self) -> bool:
        """All that has come, for which it waits if nothing is left to do; false at the end."""
        while not (self._arriving.empty() and self._waiting):
            waiting = self._arriving.get()
            if waiting is None:
                return False
            self._waiting.put(waiting)
        self.stale_frames += self._waiting.drop(lambda frame: frame.epoch != self._epoch)
        self.void_frames += self._waiting.drop(self._is_overtaken)
        return True

    @contextlib.contextmanager
    def _errors_told(self, *frames: Frame) -> Iterator[None]:
        """What goes wrong within concerns these frames; the worker outlives any."""
        try:
            yield
        except VoidFrame:
            self.void_frames += len(frames)
        except Exception as error:
            named = error if isinstance(error, StageError) else StageError(f"{type(error).__name__}: {error}")
            if named is not error:
                named.__cause__ = error
            for frame in frames:
                self._call(self._on_error, frame, named)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the asyncio loop; one that is closed has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _run(self, group: list[Waiting], started_ns: int) -> None:
        """Frames of one kind; those that concern the cache come alone."""
        first = group[0].frame
        if first.kind is Kind.RELEASE:
            self._tell_cache(self._executor.release, group[0], started_ns)
        elif first.kind is Kind.ADOPT:
            self._tell_cache(self._executor.adopt, group[0], started_ns)
        elif self._returns(first):
            rows = [
                _Rows(waiting.frame, hidden, started_ns - waiting.submitted_ns)
                for waiting, hidden in self._each(group, self._returned)
            ]
            with self._errors_told(*(each.frame for each in rows)):
                self._finish(rows, started_ns)
        else:
            self._step(self._each(group, self._executor.admit), started_ns)

    def _each(self, group: list[Waiting], do: Callable[[Frame], _T]) -> list[tuple[Waiting, _T]]:
        """What comes of each frame; where something goes wrong, it is told and the frame left out."""
        done = []
        for waiting in group:
            with self._errors_told(waiting.frame):
                done.append((waiting, do(waiting.frame)))
        return done

    def _returns(self, frame: Frame) -> bool:
        """Whether it has been round the ring."""
        return self._is_head and frame.kind is Kind.HIDDEN

    def _is_overtaken(self, frame: Frame) -> bool:
        """Whether a frame that waits here, or has passed, voids this one: what it would compute would be cropped."""
        if frame.kind not in (Kind.TOKENS, Kind.HIDDEN):
            return False
        sequence, fence = self._fences.get(frame.slot, (frame.sequence, 0))
        return sequence == frame.sequence and frame.fence < fence

    def _tell_cache(self, tell: Callable[[Frame], None], waiting: Waiting, started_ns: int) -> None:
        """A frame that concerns the cache alone goes round once."""
        frame = waiting.frame
        if self._is_head and frame.stage_times:
            return  # round the whole ring and back
        with self._errors_told(frame):
            tell(frame)
            if not (self._is_head and self._is_last):
                self._call(self._send, _timed(frame, 0, started_ns - waiting.submitted_ns))

    def _step(self, admitted: list[tuple[Waiting, Admitted]], started_ns: int) -> None:
        """The stage's own blocks. Every row has taken as long as all together: that is how long it was here."""
        if not admitted:
            return
        with self._errors_told(*(waiting.frame for waiting, _ in admitted)):
            results = self._executor.run([each for _, each in admitted])
            rows = [
                self._kept(waiting.frame, hidden)
                for (waiting, _), hidden in zip(admitted, results, strict=True)
            ]
            is_alone = self._is_head and self._is_last
            payloads = [
                b"" if is_alone else self._payload(each, hidden)
                for (_, each), hidden in zip(admitted, rows, strict=True)
            ]
            compute_ns = time.monotonic_ns() - started_ns
            if sum(map(len, results)) == 1:
                self._block_steps_ns.append(compute_ns)
            onward = []
            for (waiting, _), hidden, payload in zip(admitted, rows, payloads, strict=True):
                taken = StageTime(compute_ns, started_ns - waiting.submitted_ns)
                onward.append(_Rows(self._onward(waiting.frame, hidden, payload, taken), hidden, 0))
            if is_alone:
                self._finish(onward, time.monotonic_ns())
            else:
                for each in onward:
                    self._call(self._send, each.frame)

    def _kept(self, frame: Frame, hidden: torch.Tensor) -> torch.Tensor:
        """The last stage gives the rows that are wanted alone."""
        return (
            hidden[frame.rows - frame.rows_wanted :]
            if self._is_last and frame.rows_wanted < frame.rows
            else hidden
        )

    @staticmethod
    def _payload(admitted: Admitted, hidden: torch.Tensor) -> memoryview:
        """The bytes of what came of ``admitted``: those that came, where it was written over them."""
        if hidden is admitted.hidden and admitted.memory is not None:
            return admitted.memory
        return payload_of(hidden)

    def _onward(
        self, frame: Frame, hidden: torch.Tensor, payload: bytes | memoryview, taken: StageTime
    ) -> Frame:
        """What leaves this stage of ``frame``; field by field, for ``replace`` takes twice as long."""
        rows, width = hidden.shape
        return Frame(
            kind=Kind.HIDDEN,
            epoch=frame.epoch,
            sequence=frame.sequence,
            slot=frame.slot,
            position=frame.position + frame.rows - rows,
            rows=rows,
            dtype=self._executor.wire_dtype,
            width=width,
            fence=frame.fence,
            rows_wanted=frame.rows_wanted,
            stage_times=(*frame.stage_times, taken),
            payload=payload,
            floor=frame.floor,
        )

    def _returned(self, frame: Frame) -> torch.Tensor:
        hidden = self._executor.hidden_states(frame)
        return hidden[frame.rows - frame.rows_wanted :]

    def _finish(self, group: list[_Rows], started_ns: int) -> None:
        """Norm, LM head and sampling of the rows wanted; each frame is told to ``on_sampled`` either way."""
        assert self._sample is not None
        assert self._on_sampled is not None
        counts = [len(rows.hidden) if len(rows.hidden) and self._awaits(rows.frame) else 0 for rows in group]
        with torch.inference_mode():
            wanted = torch.cat([rows.hidden[:count] for rows, count in zip(group, counts, strict=True)])
            logits = self._executor.logits(wanted) if len(wanted) else wanted
            if len(wanted) == 1:
                self._head_steps_ns.append(time.monotonic_ns() - started_ns)
            for rows, own in zip(group, logits.split(counts), strict=True):
                with self._errors_told(rows.frame):
                    result = self._sample(rows.frame, own) if len(own) else None
                    compute_ns = time.monotonic_ns() - started_ns
                    self._call(self._on_sampled, _timed(rows.frame, compute_ns, rows.queue_ns), result)


@dataclass(slots=True)
class _Rows:
    """What goes on of a frame, its hidden states ``[rows, hidden_size]``, and how long it waited."""

    frame: Frame
    hidden: torch.Tensor
    queue_ns: int


def _timed(frame: Frame, compute_ns: int, queue_ns: int) -> Frame:
    return replace(frame, stage_times=(*frame.stage_times, StageTime(compute_ns, queue_ns)))
