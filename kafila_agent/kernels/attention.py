"""One row's attention over cached keys and values, by the native kernel."""

from __future__ import annotations

import math

import torch

from kafila_agent.kernels.library import native_kernels

_GROUP = 32


def attends_natively(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether ``attend_row`` takes these: one row, bfloat16, in host memory, heads of whole groups of 32."""
    return (
        query.shape[0] == 1
        and query.shape[2] == 1
        and query.dtype is torch.bfloat16
        and query.device.type == "cpu"
        and query.shape[3] % _GROUP == 0
        and value.shape[3] % _GROUP == 0
        and key.stride(3) == 1
        and value.stride(3) == 1
        and native_kernels() is not None
    )


def attend_row(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """``query [1, heads, 1, dim]`` over all of ``key, value [1, kv heads, tokens, dim]``: ``[1, 1, heads, dim]``."""
    library = native_kernels()
    assert library is not None
    heads, k_dim, v_dim = query.shape[1], query.shape[3], value.shape[3]
    query = query.contiguous()
    out = torch.empty(1, 1, heads, v_dim, dtype=torch.bfloat16)
    failed = library.kafila_attend(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        out.data_ptr(),
        heads,
        key.shape[1],
        key.shape[2],
        key.stride(1),
        key.stride(2),
        value.stride(1),
        value.stride(2),
        k_dim,
        v_dim,
        scale * math.log2(math.e),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory to attend to {key.shape[2]} tokens")
    return out
