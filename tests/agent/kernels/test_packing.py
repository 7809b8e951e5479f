from __future__ import annotations

import ctypes
import platform

import pytest
import torch

from kafila_agent.kernels import library, packed_linear
from kafila_agent.kernels.library import native_kernels
from kafila_agent.kernels.packed_linear import PackedEmbedding, PackedLinear, PackedMatrix
from kafila_agent.kernels.packing import INT4, INT8, Packing, pack, quantise, unpack

PACKINGS = pytest.mark.parametrize("packing", [INT8, INT4], ids=["int8", "int4"])
# Rows and columns that do not fill their last tile and piece, and ones that do.
SHAPES = pytest.mark.parametrize("shape", [(21, 96), (32, 128), (3, 32)], ids=str)


def random_matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def packed_matrix(weight: torch.Tensor, packing: Packing) -> PackedMatrix:
    matrix = PackedMatrix(*weight.shape, packing)
    matrix.packed = pack(quantise(weight, packing), packing)
    return matrix


def held(weight: torch.Tensor, packing: Packing) -> torch.Tensor:
    """What the definition of the packing says that ``weight`` is held as."""
    one = quantise(weight, packing)
    groups = one.q.float().view(weight.shape[0], -1, 32) * one.scale.float()[..., None]
    return (groups if one.low is None else groups + one.low.float()[..., None]).view(weight.shape)


def in_groups(x: torch.Tensor) -> torch.Tensor:
    """``x`` as packed weights are multiplied with it: in groups of 32, whole numbers of a 127th of the largest."""
    groups = x.double().view(len(x), -1, 32)
    step = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-30)
    return ((groups / step).round() * step).view(x.shape)


@PACKINGS
@SHAPES
def test_what_is_packed_comes_back(packing: Packing, shape: tuple[int, int]) -> None:
    weight = random_matrix(*shape)
    packed = pack(quantise(weight, packing), packing)
    assert packed.shape == packing.shape(*shape)
    assert packed.nbytes == packing.nbytes(*shape)
    assert torch.allclose(unpack(packed, packing, shape[1])[: shape[0]], held(weight, packing), atol=1e-6)


@PACKINGS
def test_no_number_is_further_off_than_half_a_step(packing: Packing) -> None:
    weight = random_matrix(16, 64)
    step = quantise(weight, packing).scale.float().repeat_interleave(32, 1)
    assert ((held(weight, packing) - weight).abs() <= 0.52 * step + 1e-3).all()


@PACKINGS
def test_a_group_of_equal_numbers_is_kept(packing: Packing) -> None:
    zeros = torch.zeros(16, 64)
    assert torch.equal(held(zeros, packing), zeros)


@PACKINGS
@SHAPES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [1, 3, 130], ids="{} rows".format)
def test_a_product_is_that_of_the_numbers_held(
    packing: Packing, shape: tuple[int, int], dtype: torch.dtype, count: int
) -> None:
    weight = random_matrix(*shape)
    x = random_matrix(count, shape[1]).to(dtype)
    y = PackedLinear(packed_matrix(weight, packing), None)(x)
    expected = (x.double() if native_kernels() is None else in_groups(x)) @ held(weight, packing).double().T
    assert y.dtype is dtype
    tolerance = 1e-4 if dtype is torch.float32 else 0.02
    assert torch.allclose(y.double(), expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())


@PACKINGS
def test_without_a_compiler_the_product_is_nearly_the_same(packing: Packing, monkeypatch) -> None:
    weight, x = random_matrix(21, 96), random_matrix(1, 96)
    matrix = packed_matrix(weight, packing)
    native = matrix.times(x)
    monkeypatch.setattr(packed_linear, "native_kernels", lambda: None)
    assert torch.allclose(matrix.times(x), native, atol=0.01 * native.abs().max().item())


@pytest.mark.skipif(native_kernels() is None, reason="no C compiler")
@PACKINGS
@pytest.mark.parametrize("strange", [torch.nan, torch.inf], ids=str)
def test_what_is_no_finite_number_gives_none(packing: Packing, strange: float) -> None:
    matrix = packed_matrix(random_matrix(21, 96), packing)
    x = torch.ones(2, 96)
    x[0, 40] = strange
    y = matrix.times(x)
    assert not y[0].isfinite().any()
    assert y[1].isfinite().all()


@PACKINGS
@pytest.mark.skipif(native_kernels() is None, reason="no C compiler")
def test_a_row_does_not_depend_on_the_rows_beside_it(packing: Packing) -> None:
    matrix = packed_matrix(random_matrix(40, 128), packing)
    x = random_matrix(130, 128).bfloat16()
    together = matrix.times(x)
    assert all(torch.equal(together[i : i + 1], matrix.times(x[i : i + 1])) for i in range(len(x)))


@pytest.mark.skipif(native_kernels() is None, reason="no C compiler")
@pytest.mark.parametrize("flag", ["-DKAFILA_PORTABLE", "-mno-avx512vnni"])
def test_other_instructions_give_the_same_bits(tmp_path, monkeypatch, flag: str) -> None:
    if flag.startswith("-m") and platform.machine() != "x86_64":
        pytest.skip("an option of x86 compilers")
    monkeypatch.setattr(library, "_COMPILE", (*library._COMPILE, flag))
    monkeypatch.setattr(library, "_SOURCES", [library._HERE / "products.c"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = ctypes.CDLL(str(library._compiled()))
    other.kafila_product.argtypes = native_kernels().kafila_product.argtypes
    x = random_matrix(5, 128)
    for packing in (INT8, INT4):
        matrix = packed_matrix(random_matrix(40, 128), packing)
        expected = matrix.times(x)
        with monkeypatch.context() as here:
            here.setattr(packed_linear, "native_kernels", lambda: other)
            assert torch.equal(matrix.times(x), expected)


@PACKINGS
def test_an_embedding_gives_the_rows_asked_for(packing: Packing) -> None:
    weight = random_matrix(50, 64)
    embedding = PackedEmbedding(packed_matrix(weight, packing), torch.bfloat16)
    ids = torch.tensor([[49, 0, 17]])
    assert torch.equal(embedding(ids), held(weight, packing)[ids].bfloat16())
