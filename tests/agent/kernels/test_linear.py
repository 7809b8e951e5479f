from __future__ import annotations

import stat

import pytest
import torch
from torch import nn
from torch.nn import functional

from kafila_agent.kernels import library
from kafila_agent.kernels.library import native_kernels
from kafila_agent.kernels.linear import ALIKE_ROWS, Linear, use_kernels

NATIVE = pytest.mark.skipif(native_kernels() is None, reason="no C compiler")


def made(rows: int, columns: int, dtype: torch.dtype, *, bias: bool) -> Linear:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(columns, rows, bias=bias, dtype=dtype)).requires_grad_(False)
    use_kernels(model)
    assert type(model[0]) is Linear
    return model[0]


# 50: no multiple of 32, which is left to torch; 21 and 3: rows beside whole tiles.
@pytest.mark.parametrize("shape", [(21, 96), (3, 32), (64, 50)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("count", [1, 2, ALIKE_ROWS + 1], ids="{} rows".format)
def test_a_product_is_that_of_torch(
    shape: tuple[int, int], dtype: torch.dtype, bias: bool, count: int
) -> None:
    linear = made(*shape, dtype, bias=bias)
    x = torch.randn(1, count, shape[1]).to(dtype)
    y = linear(x)
    exact = functional.linear(
        x.double(), linear.weight.double(), linear.bias.double() if linear.bias is not None else None
    )
    assert y.shape == exact.shape
    assert y.dtype is dtype
    # A rounding to the element type at the end, and those of float32 in any order of adding.
    bound = torch.finfo(dtype).eps * exact.abs() + 16 * torch.finfo(torch.float32).eps
    assert ((y.double() - exact).abs() <= bound).all()


@NATIVE
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
def test_a_row_depends_on_no_other_and_on_no_number_of_threads(bias: bool) -> None:
    linear = made(70, 128, torch.bfloat16, bias=bias)
    x = torch.randn(4 * ALIKE_ROWS + 3, 128).bfloat16()
    assert linear.native is not None
    together = linear.native(x)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = [linear.native(x[i : i + 1]) for i in range(len(x))]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, torch.cat(alone))


@NATIVE
def test_not_a_number_stays_one() -> None:
    linear = made(16, 32, torch.bfloat16, bias=False)
    assert linear(torch.full((1, 32), torch.nan, dtype=torch.bfloat16)).isnan().all()


@NATIVE
def test_the_kernels_are_compiled_once_into_a_directory_of_the_users_own(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = library._compiled()
    assert first.parent == tmp_path / "kafila"
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    before = first.stat().st_mtime_ns
    assert library._compiled() == first
    assert first.stat().st_mtime_ns == before
    assert list(first.parent.iterdir()) == [first]


@pytest.mark.parametrize("compiler", ["", "false", "true"], ids=["absent", "broken", "idle"])
def test_where_they_cannot_be_compiled_torch_does_the_work(tmp_path, monkeypatch, compiler: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler or str(tmp_path / "none"))
    assert native_kernels.__wrapped__() is None
    assert not list(tmp_path.rglob("*.so"))
