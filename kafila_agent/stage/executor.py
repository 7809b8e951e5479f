"""What a stage does with frames, on the calling thread: check each, then run them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind, adoption_source
from kafila_agent.model.blocks import Run, StageModel
from kafila_agent.model.kv import MAX_FRAME_ROWS
from kafila_agent.stage.errors import StageError
from kafila_agent.stage.kv_cache import KvReservation, SlotCache

_WIRE_DTYPE = {torch.bfloat16: Dtype.BFLOAT16, torch.float16: Dtype.FLOAT16, torch.float32: Dtype.FLOAT32}


@dataclass(frozen=True, slots=True)
class Admitted:
    """Rows ``hidden [rows, hidden_size]`` that go to ``slot`` from ``position`` on.

    ``run`` may write its result over them. ``memory`` is what they lie in, where a frame brought it along.
    """

    slot: SlotCache
    position: int
    hidden: torch.Tensor
    memory: memoryview | None = None


class StageExecutor:
    """A loaded stage with its reserved KV cache. Use it from one thread at a time."""

    def __init__(self, stage: StageModel, *, slots: int, context_tokens: int, threads: int) -> None:
        self.stage = stage
        self.context_tokens = context_tokens
        self.threads = threads
        self.wire_dtype = _WIRE_DTYPE[stage.dtype]
        self._kv = KvReservation(
            stage.kv, slots=slots, context_tokens=context_tokens, dtype=stage.dtype, device=stage.device
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self._kv.nbytes

    def bind_thread(self) -> None:
        """Let the calling thread compute with ``threads`` threads (torch keeps that number per thread)."""
        torch.set_num_threads(self.threads)

    @property
    def rows_together(self) -> int:
        """How many rows of several frames ``run`` and ``logits`` take at once, each as if it were alone."""
        return self.stage.rows_together

    def admit(self, frame: Frame) -> Admitted:
        """Check a TOKENS (head) or HIDDEN frame and make room for its rows, which are to be run next.

        Raises StageError, leaving the cache as it was, if the frame does not fit this stage or its slot, and VoidFrame
        if a later one of its sequence has voided it.
        """
        slot = self._slot(frame.slot)
        if not 1 <= frame.rows <= MAX_FRAME_ROWS:
            raise StageError(f"{frame.rows} rows in a frame, from 1 to {MAX_FRAME_ROWS} can run")
        if frame.position + frame.rows > self.context_tokens:
            raise StageError(
                f"position {frame.position + frame.rows} is over the context of {self.context_tokens}"
            )
        with torch.inference_mode():
            hidden = self._embed(frame) if frame.kind is Kind.TOKENS else self.hidden_states(frame)
        slot.seek(frame.sequence, frame.position, fence=frame.fence, floor=frame.floor)
        slot.advance(frame.rows)
        memory = own_memory(frame) if frame.kind is Kind.HIDDEN else None
        return Admitted(slot, frame.position, hidden, memory)

    def run(self, admitted: Sequence[Admitted]) -> list[torch.Tensor]:
        """The stage's blocks: hidden states ``[rows, hidden_size]`` of each, perhaps where they were before.

        One, or several of at most ``rows_together`` rows; those of one slot side by side, each where the one before it
        ends. If it fails, none has been admitted.
        """
        runs = _runs(admitted)
        try:
            with torch.inference_mode():
                together = [each.hidden for each in admitted]
                hidden = together[0] if len(together) == 1 else torch.cat(together)
                if len(runs) == 1:
                    hidden = self.stage.forward(hidden, runs[0].position, runs[0].cache)
                else:
                    hidden = self.stage.forward_together(hidden, runs)
                self._settle()
        except BaseException:
            for run in runs:
                run.cache.length = run.position
            raise
        if len(admitted) == 1:
            return [hidden]
        return list(hidden.split([len(each.hidden) for each in admitted]))

    def run_blocks(self, frame: Frame) -> torch.Tensor:
        """``admit`` and ``run`` of one frame."""
        return self.run([self.admit(frame)])[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and LM head: float32 ``[rows, vocab_size]``."""
        with torch.inference_mode():
            logits = self.stage.logits(hidden)
            self._settle()
        return logits

    def hidden_states(self, frame: Frame) -> torch.Tensor:
        """The payload of a HIDDEN frame as ``[rows, hidden_size]`` on the stage's device."""
        if frame.width != self.stage.hidden_size or frame.dtype is not self.wire_dtype:
            raise StageError(
                f"frame of width {frame.width} in {frame.dtype.name}, this stage takes"
                f" {self.stage.hidden_size} in {self.wire_dtype.name}"
            )
        flat = self._tensor(frame, self.stage.dtype, frame.rows * frame.width)
        return flat.reshape(frame.rows, frame.width).to(self.stage.device)

    def release(self, frame: Frame) -> None:
        """Free the slot of a RELEASE frame."""
        self._slot(frame.slot).release(frame.sequence)

    def clear(self) -> None:
        """Forget every sequence: those of another epoch may have the same numbers."""
        for slot in self._kv.slots:
            slot.clear()

    def adopt(self, frame: Frame) -> None:
        """Do what an ADOPT frame says. Raises StageError."""
        slot, sequence = adoption_source(frame)
        with torch.inference_mode():
            self._slot(frame.slot).adopt(frame.sequence, frame.position, self._slot(slot), sequence)

    def _slot(self, slot: int) -> SlotCache:
        if slot >= len(self._kv.slots):
            raise StageError(f"slot {slot} of {len(self._kv.slots)}")
        return self._kv.slots[slot]

    def _embed(self, frame: Frame) -> torch.Tensor:
        if not self.stage.is_head:
            raise StageError("token ids came to a stage that is not the head")
        if frame.dtype is not Dtype.INT32:
            raise StageError(f"token ids in {frame.dtype.name}, INT32 is due")
        ids = self._tensor(frame, torch.int32, frame.rows)
        if int(ids.min()) < 0 or int(ids.max()) >= self.stage.vocab_size:
            raise StageError(f"a token id is outside the vocabulary of {self.stage.vocab_size}")
        return self.stage.embed(ids.to(self.stage.device))

    @staticmethod
    def _tensor(frame: Frame, dtype: torch.dtype, elements: int) -> torch.Tensor:
        if len(frame.payload) != elements * dtype.itemsize:
            raise StageError(f"payload of {len(frame.payload)} bytes, {elements * dtype.itemsize} are due")
        if not elements:
            return torch.empty(0, dtype=dtype)
        # torch wants memory that it may write to.
        return torch.frombuffer(own_memory(frame) or bytearray(frame.payload), dtype=dtype)

    def _settle(self) -> None:
        """Wait for the device, so that durations are computing and not queueing."""
        if self.stage.device.type == "cuda":
            torch.cuda.synchronize(self.stage.device)


def own_memory(frame: Frame) -> memoryview | None:
    """A payload that may be written to is the stage's own, as an edge hands it over; one that may not, or None."""
    payload = frame.payload
    return payload if isinstance(payload, memoryview) and not payload.readonly else None


def _runs(admitted: Sequence[Admitted]) -> list[Run]:
    """Whose rows they are, one sequence after the other."""
    runs = []
    for slot, own in itertools.groupby(admitted, lambda each: each.slot):
        first, *others = own
        runs.append(Run(first.position, sum(len(each.hidden) for each in (first, *others)), slot))
    return runs


def payload_of(hidden: torch.Tensor) -> memoryview:
    """Hidden states as frame bytes, to be read alone; without a copy where they lie in host memory already."""
    if not hidden.numel():
        return memoryview(b"")
    return memoryview(hidden.cpu().contiguous().view(torch.uint8).numpy()).cast("B").toreadonly()
