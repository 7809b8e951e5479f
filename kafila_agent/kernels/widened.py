"""Products of many narrow rows on processors that multiply only float32: widened, a slice of the matrix at a time.

For these torch's product of bfloat16 is a generic loop: a third of the speed of float32's on an x86 with AVX-512 but
without its bfloat16. Sums are of float32 and rounded once, as torch's are. A slice is as large as stays in the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch
from torch.nn.functional import linear

LEAST_ROWS = 32  # for fewer widening costs more than it gains
_SLICE_ROWS = 512
_MULTIPLIED_BY = {torch.bfloat16: ("avx512_bf16", "amx_bf16"), torch.float16: ("avx512_fp16", "amx_fp16")}


def is_widened(x: torch.Tensor, columns: int) -> bool:
    """Whether ``x [..., columns]`` is better multiplied as float32."""
    if x.numel() < LEAST_ROWS * columns or x.dtype not in _MULTIPLIED_BY or x.device.type != "cpu":
        return False
    return not _is_multiplied(x.dtype)


def widened_product(
    x: torch.Tensor, slices: Iterable[tuple[int, torch.Tensor]], rows: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``x [..., columns]`` times the transpose of a matrix of ``rows``, plus ``bias [rows]``, in the dtype of ``x``.

    ``slices``: some rows of the matrix, float32 ``[some, columns]``, and the first one's number.
    """
    wide, product = x.float(), x.new_empty(*x.shape[:-1], rows)
    for start, part in slices:
        end = start + len(part)
        product[..., start:end] = linear(wide, part, None if bias is None else bias[start:end].float())
    return product


def widened_slices(weight: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """``weight [rows, columns]`` in float32, slice by slice."""
    for start in range(0, len(weight), _SLICE_ROWS):
        yield start, weight[start : start + _SLICE_ROWS].float()


@functools.cache
def _is_multiplied(dtype: torch.dtype) -> bool:
    """Whether the processor has instructions for it; of those that are no x86 nothing is known."""
    capabilities = torch.cpu.get_capabilities()
    if capabilities["architecture"] != "x86_64":
        return True
    return any(capabilities.get(name, False) for name in _MULTIPLIED_BY[dtype])
