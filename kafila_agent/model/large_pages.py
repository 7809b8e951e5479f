"""Weights in pages of 2 MiB, where the system has them.

A step reads every weight once, and the processor would spend a tenth of that on looking pages of 4 KiB up. What lies in
memory already is moved, 2 MiB at a time: asking torch's allocator for such pages instead takes twice the memory while a
model is loaded.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable

import torch

_PAGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25  # linux/mman.h, since Linux 6.1; an older one refuses, and all stays as it is


def use_large_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Gather what lies of each tensor in host memory, as far as it fills large pages alone."""
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for tensor in tensors:
        if tensor.device.type != "cpu":
            continue
        storage = tensor.untyped_storage()
        start = -(-storage.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
        end = (storage.data_ptr() + storage.nbytes()) // _PAGE_BYTES * _PAGE_BYTES
        if end > start:
            madvise(start, end - start, _MADV_COLLAPSE)
