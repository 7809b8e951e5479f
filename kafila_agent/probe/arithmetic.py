"""Arithmetic throughput of a prefill-shaped matrix product."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from kafila_agent.kernels.linear import use_kernels
from kafila_agent.kernels.packed_linear import PackedLinear, PackedMatrix
from kafila_agent.kernels.packing import GROUP_COLUMNS, PACKINGS
from kafila_planner.predict import CHUNK_TOKENS

_MOST_WIDTH = 4096
_BUDGET_S = 0.1


def measure_flops_per_s(
    width: int, inner_width: int, dtype: torch.dtype, device: str = "cpu", quant: str = "none"
) -> float:
    """FLOP/s of ``[CHUNK_TOKENS, width] @ [width, inner_width]``, the product that a prefill chunk spends its time in.

    By what a stage multiplies with. A median over about a tenth of a second, on the calling thread's number of threads.
    """
    width, inner_width = min(width, _MOST_WIDTH), min(inner_width, _MOST_WIDTH)
    rows = torch.randn(CHUNK_TOKENS, width, device=device).to(dtype)
    product = _product(width, inner_width, dtype, quant, device)
    times: list[float] = []
    deadline = time.monotonic() + _BUDGET_S
    with torch.inference_mode():
        product(rows)
        while len(times) < 3 or time.monotonic() < deadline:
            _settle(device)
            started = time.perf_counter()
            product(rows)
            _settle(device)
            times.append(time.perf_counter() - started)
    return 2.0 * CHUNK_TOKENS * width * inner_width / statistics.median(times)


def _product(width: int, inner_width: int, dtype: torch.dtype, quant: str, device: str) -> nn.Module:
    packing = PACKINGS.get(quant)
    if packing is None or width % GROUP_COLUMNS:
        product = nn.Sequential(nn.Linear(width, inner_width, bias=False, dtype=dtype, device=device))
        use_kernels(product)
        return product
    matrix = PackedMatrix(inner_width, width, packing)
    matrix.packed.zero_()
    return PackedLinear(matrix, None).to(device)


def _settle(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
