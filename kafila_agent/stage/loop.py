"""A stage at work: one worker thread runs frames in order of arrival; the asyncio loop hears of results.

At the head a token frame becomes hidden states of its own blocks and leaves for the next stage (alone in
the ring it goes straight on); what comes back from the ring goes through final norm and LM head and is
sampled.
"""

from __future__ import annotations

import asyncio
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kafila_agent.edge.frame import Frame, Kind, StageTime
from kafila_agent.stage.errors import StageError, VoidFrame
from kafila_agent.stage.executor import StageExecutor, payload_of

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
        self._frames: queue.SimpleQueue[tuple[Frame, int] | None] = queue.SimpleQueue()
        self._fences: dict[int, tuple[int, int]] = {}  # slot -> (sequence, its newest fence submitted)
        self._block_steps_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._head_steps_ns: deque[int] = deque(maxlen=_STEPS_REMEMBERED)
        self._thread = threading.Thread(target=self._work, name="stage", daemon=True)
        self._thread.start()

    def submit(self, frame: Frame) -> None:
        """Queue a frame, from the engine or from the previous stage. Never blocks."""
        if frame.kind in (Kind.TOKENS, Kind.HIDDEN) and not self._returns(frame):
            self._fences[frame.slot] = frame.sequence, frame.fence
        self._frames.put((frame, time.monotonic_ns()))

    @property
    def queued_frames(self) -> int:
        """Frames waiting for the worker."""
        return self._frames.qsize()

    @property
    def measured_stage_s(self) -> float | None:
        """Median seconds of the latest one-row steps; at the head, blocks plus norm and LM head."""
        if not self._block_steps_ns or (self._is_head and not self._head_steps_ns):
            return None
        head_ns = statistics.median(self._head_steps_ns) if self._is_head else 0
        return (statistics.median(self._block_steps_ns) + head_ns) / 1e9

    async def close(self) -> None:
        """Drop what is queued, let the frame at work finish, and end the worker."""
        while not self._frames.empty():
            self._frames.get_nowait()
        self._frames.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        self._executor.bind_thread()
        while (item := self._frames.get()) is not None:
            frame, submitted_ns = item
            if frame.epoch != self._epoch:
                self.stale_frames += 1
                continue
            try:
                self._run(frame, submitted_ns)
            except VoidFrame:
                self.void_frames += 1
            except StageError as error:
                self._call(self._on_error, frame, error)
            except Exception as error:  # the worker outlives any frame
                named = StageError(f"{type(error).__name__}: {error}")
                named.__cause__ = error
                self._call(self._on_error, frame, named)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the asyncio loop; one that is closed has nobody left to tell."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _run(self, frame: Frame, submitted_ns: int) -> None:
        started_ns = time.monotonic_ns()
        queue_ns = started_ns - submitted_ns
        if frame.kind is Kind.RELEASE:
            self._tell_cache(self._executor.release, frame, queue_ns)
        elif frame.kind is Kind.ADOPT:
            self._tell_cache(self._executor.adopt, frame, queue_ns)
        elif self._is_overtaken(frame):
            raise VoidFrame
        elif self._returns(frame):
            self._finish(frame, self._returned(frame), started_ns, queue_ns)
        else:
            self._step(frame, started_ns, queue_ns)

    def _returns(self, frame: Frame) -> bool:
        """Whether it has been round the ring."""
        return self._is_head and frame.kind is Kind.HIDDEN

    def _is_overtaken(self, frame: Frame) -> bool:
        """Whether a frame that waits here, or has passed, voids this one: what it would compute would be cropped."""
        sequence, fence = self._fences.get(frame.slot, (frame.sequence, 0))
        return sequence == frame.sequence and frame.fence < fence

    def _tell_cache(self, tell: Callable[[Frame], None], frame: Frame, queue_ns: int) -> None:
        """A frame that concerns the cache alone goes round once."""
        if self._is_head and frame.stage_times:
            return  # round the whole ring and back
        tell(frame)
        if not (self._is_head and self._is_last):
            self._call(self._send, _timed(frame, 0, queue_ns))

    def _step(self, frame: Frame, started_ns: int, queue_ns: int) -> None:
        """The stage's own blocks."""
        hidden = self._executor.run_blocks(frame)
        skipped = frame.rows - frame.rows_wanted if self._is_last else 0
        hidden = hidden[skipped:]
        onward = replace(
            frame,
            kind=Kind.HIDDEN,
            rows=hidden.shape[0],
            position=frame.position + skipped,
            dtype=self._executor.wire_dtype,
            width=hidden.shape[1],
            payload=b"" if self._is_head and self._is_last else payload_of(hidden),
        )
        compute_ns = time.monotonic_ns() - started_ns
        if frame.rows == 1:
            self._block_steps_ns.append(compute_ns)
        onward = _timed(onward, compute_ns, queue_ns)
        if self._is_head and self._is_last:
            self._finish(onward, hidden, time.monotonic_ns(), 0)
        else:
            self._call(self._send, onward)

    def _returned(self, frame: Frame) -> torch.Tensor:
        hidden = self._executor.hidden_states(frame)
        return hidden[frame.rows - frame.rows_wanted :]

    def _finish(self, frame: Frame, hidden: torch.Tensor, started_ns: int, queue_ns: int) -> None:
        """Norm, LM head and sampling of the rows wanted; the frame is told to ``on_sampled`` either way."""
        assert self._sample is not None
        assert self._on_sampled is not None
        result = None
        if frame.rows_wanted and self._awaits(frame):
            with torch.inference_mode():
                logits = self._executor.logits(hidden)
                if frame.rows_wanted == 1:
                    self._head_steps_ns.append(time.monotonic_ns() - started_ns)
                result = self._sample(frame, logits)
        self._call(self._on_sampled, _timed(frame, time.monotonic_ns() - started_ns, queue_ns), result)


def _timed(frame: Frame, compute_ns: int, queue_ns: int) -> Frame:
    return replace(frame, stage_times=(*frame.stage_times, StageTime(compute_ns, queue_ns)))
