"""Reading of weights: each tensor once, from its file into memory, in the serving dtype."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from kafila_agent.model.tensors import TensorEntry, read_bytes

_STORED = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def torch_dtype(name: str) -> torch.dtype:
    """torch's own of a dtype that is served (``precision.DTYPES``)."""
    return getattr(torch, name)


def read_raw(entry: TensorEntry) -> torch.Tensor:
    """The tensor's bytes as they are stored: uint8 ``[nbytes]``."""
    raw = torch.empty(entry.nbytes, dtype=torch.uint8)
    read_bytes(entry, memoryview(raw.numpy()))
    return raw


def read_tensor(entry: TensorEntry, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in its checkpoint's element type, or in ``dtype`` if it is stored in quantised blocks."""
    raw = read_raw(entry)
    if entry.encoding in _STORED:
        return raw.view(_STORED[entry.encoding]).reshape(entry.shape)
    from kafila_agent.model.gguf_file import dequantize

    return dequantize(raw, entry, dtype)


class WeightReader:
    """Hands transformers' loader tensors that are read when it asks, and counts what was read.

    ``on_progress(loaded, total)`` counts bytes as stored and is called from the loader's threads.
    """

    def __init__(
        self,
        entries: Iterable[TensorEntry],
        dtype: torch.dtype,
        on_progress: Callable[[int, int], None] | None = None,
        transform: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._entries = list(entries)
        self._dtype = dtype
        self._on_progress = on_progress
        self.transform = transform
        self._lock = threading.Lock()
        self.total_bytes = sum(entry.nbytes for entry in self._entries)
        self.read_bytes = 0
        self.error: Exception | None = None

    def state_dict(self) -> dict[str, Any]:
        """``{name: a lazy tensor}`` in the form transformers' loader takes: ``tensor[...]`` reads it."""
        return {
            key: _Lazy(self, entry, shape) for entry in self._entries for key, shape in [self.place(entry)]
        }

    def place(self, entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
        """Where in the model's own state dictionary the tensor goes, and its shape there."""
        return entry.name, entry.shape

    def make(self, entry: TensorEntry) -> torch.Tensor:
        """The tensor as it is held."""
        tensor = read_tensor(entry, self._dtype)
        return self.transform(entry.stored_name, tensor) if self.transform else tensor

    def read(self, entry: TensorEntry) -> torch.Tensor:
        """Read one tensor now; the first error is kept, for the loader swallows it."""
        try:
            tensor = self.make(entry)
        except Exception as error:
            self.error = self.error or error
            raise
        with self._lock:
            self.read_bytes += entry.nbytes
            if self._on_progress:
                self._on_progress(self.read_bytes, self.total_bytes)
        return tensor


class _Lazy:
    """A tensor that is not read yet."""

    def __init__(self, reader: WeightReader, entry: TensorEntry, shape: tuple[int, ...]) -> None:
        self._reader = reader
        self._entry = entry
        self.shape = torch.Size(shape)

    def __getitem__(self, _whole: object) -> torch.Tensor:
        return self._reader.read(self._entry)
