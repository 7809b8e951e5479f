"""Products in float32 of rows that the processor cannot multiply as they are."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kafila_agent.kernels import widened
from kafila_agent.kernels.linear import Linear
from kafila_agent.kernels.widened import LEAST_ROWS, is_widened


@pytest.fixture
def processor(monkeypatch):
    """``processor(**capabilities)``: what the processor is said to be from now on."""

    def be(**capabilities) -> None:
        widened._is_multiplied.cache_clear()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64"} | capabilities)

    yield be
    monkeypatch.undo()
    widened._is_multiplied.cache_clear()


@pytest.mark.parametrize("rows", [1, widened._SLICE_ROWS, widened._SLICE_ROWS + 3], ids="{} rows".format)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_the_product_is_rounded_once(processor, rows: int, dtype: torch.dtype, bias: bool) -> None:
    processor()
    linear = Linear(48, rows, bias=bias, dtype=dtype)
    x = torch.randn(2, LEAST_ROWS, 48).to(dtype)
    with torch.inference_mode():
        assert is_widened(x, 48)
        y = linear(x)
        exact = functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    assert (y.shape, y.dtype) == (exact.shape, dtype)
    bound = torch.finfo(dtype).eps * exact.abs() + 16 * torch.finfo(torch.float32).eps
    assert ((y.double() - exact).abs() <= bound).all()


def test_what_is_not_widened(processor) -> None:
    many = torch.zeros(LEAST_ROWS, 8)
    processor()
    assert is_widened(many.bfloat16(), 8)
    assert not is_widened(many[1:].bfloat16(), 8), "too few rows"
    assert not is_widened(many, 8), "float32 is wide"
    processor(avx512_bf16=True)
    assert not is_widened(many.bfloat16(), 8), "the processor multiplies it"
    assert is_widened(many.half(), 8)
    processor(amx_bf16=True, avx512_fp16=True)
    assert not is_widened(many.bfloat16(), 8)
    assert not is_widened(many.half(), 8)
    processor(architecture="arm64")
    assert not is_widened(many.bfloat16(), 8), "nothing is known of it"
