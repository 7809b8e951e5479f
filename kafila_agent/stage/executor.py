"""What a stage does with one frame, on the calling thread: check it, then run it."""

from __future__ import annotations

import torch

from kafila_agent.edge.frame import Dtype, Frame, Kind, adoption_source
from kafila_agent.model.blocks import StageModel
from kafila_agent.model.kv import MAX_FRAME_ROWS
from kafila_agent.stage.errors import StageError
from kafila_agent.stage.kv_cache import KvReservation, SlotCache

_WIRE_DTYPE = {torch.bfloat16: Dtype.BFLOAT16, torch.float16: Dtype.FLOAT16, torch.float32: Dtype.FLOAT32}


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

    def run_blocks(self, frame: Frame) -> torch.Tensor:
        """The stage's blocks on a TOKENS (head) or HIDDEN frame: hidden states ``[rows, hidden_size]``.

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
            hidden = self.stage.forward(hidden, frame.position, slot)
            self._settle()
        slot.advance(frame.rows)
        return hidden

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
        # A copy: torch wants memory that it may write to, and received frames are read-only.
        return torch.frombuffer(bytearray(frame.payload), dtype=dtype)

    def _settle(self) -> None:
        """Wait for the device, so that durations are computing and not queueing."""
        if self.stage.device.type == "cuda":
            torch.cuda.synchronize(self.stage.device)


def payload_of(hidden: torch.Tensor) -> memoryview:
    """Hidden states as frame bytes, without a copy where they lie in host memory already."""
    flat = hidden.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
