from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kafila_agent.kernels.attention import attend_row, attends_natively
from kafila_agent.kernels.library import native_kernels

pytestmark = pytest.mark.skipif(native_kernels() is None, reason="no C compiler")


def made(heads: int, kv_heads: int, tokens: int, k_dim: int, v_dim: int) -> list[torch.Tensor]:
    """A query, and keys and values as the cache hands them out: views into longer buffers."""
    torch.manual_seed(tokens)
    query = torch.randn(1, heads, 1, k_dim)
    buffers = [torch.randn(1, kv_heads, tokens + 9, dim) for dim in (k_dim, v_dim)]
    return [query.bfloat16(), *(buffer.bfloat16()[:, :, 4 : 4 + tokens] for buffer in buffers)]


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 300])
@pytest.mark.parametrize("shape", [(9, 3, 64, 64), (4, 4, 32, 96), (8, 1, 256, 256)], ids=str)
def test_it_is_attention(shape: tuple[int, ...], tokens: int) -> None:
    heads, kv_heads, k_dim, v_dim = shape
    query, key, value = made(heads, kv_heads, tokens, k_dim, v_dim)
    assert attends_natively(query, key, value)
    out = attend_row(query, key, value, k_dim**-0.5)
    wide = [one.double().repeat_interleave(heads // one.shape[1], 1) for one in (query, key, value)]
    expected = functional.scaled_dot_product_attention(*wide).transpose(1, 2)
    assert out.shape == expected.shape
    assert ((out.double() - expected).abs() <= 0.004 * expected.abs() + 1e-4).all()


def test_scores_far_apart_do_not_overflow() -> None:
    query, key, value = made(2, 1, 40, 32, 32)
    key[:, :, 7] = query[:, :1, 0] * 100
    out = attend_row(query * 30, key, value, 1.0)
    assert torch.equal(out[0, 0, 0], value[0, 0, 7])


def test_it_does_not_depend_on_the_number_of_threads() -> None:
    query, key, value = made(6, 2, 50, 64, 64)
    alone = attend_row(query, key, value, 0.1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(attend_row(query, key, value, 0.1), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("rows", "dim", "dtype"),
    [(2, 64, torch.bfloat16), (1, 48, torch.bfloat16), (1, 64, torch.float32)],
    ids=["two rows", "48 wide", "float32"],
)
def test_what_it_is_not_made_for(rows: int, dim: int, dtype: torch.dtype) -> None:
    query, key = torch.zeros(1, 2, rows, dim, dtype=dtype), torch.zeros(1, 2, 5, dim, dtype=dtype)
    assert not attends_natively(query, key, key)
