"""transformers' Linear with the kernel that suits how many rows it is given."""

from __future__ import annotations

import functools
import platform
import sys
from ctypes import CDLL, byref

import torch
from torch import nn
from torch.nn import functional

from kafila_agent.kernels.library import BFLOAT16, Matrix, native_kernels

# Up to as many rows each is computed as if it were alone, to the last bit.
ALIKE_ROWS = 8


class Linear(nn.Linear):
    """``nn.Linear``, its products by the C kernels (bfloat16) or, of one row, as matrix times vector."""

    native: Native | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        if self.native is not None and input.numel() <= self.native.most_rows * self.in_features:
            return self.native(input)
        if input.numel() == self.in_features and self.bias is None and input.device.type == "cpu":
            return torch.mv(self.weight, input.reshape(-1)).view(*input.shape[:-1], -1)
        return functional.linear(input, self.weight, self.bias)

    # Nobody hangs hooks on a stage, and looking for them takes as long as multiplying with a small matrix.
    __call__ = forward


class Native:
    """The native product with one matrix, which must neither move nor go while this is in use.

    Up to ``most_rows`` it is the quickest there is.
    """

    def __init__(self, library: CDLL, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product, self._held = library.kafila_product, (weight, bias)
        bias_at = None if bias is None else bias.data_ptr()
        self.matrix = Matrix(weight.data_ptr(), bias_at, *weight.shape, 16)
        self.most_rows = ALIKE_ROWS if _torch_has_bfloat16() else sys.maxsize

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """bfloat16 ``x [..., columns]`` times the transpose, plus the bias."""
        x = x.contiguous()
        rows = x.numel() // self.matrix.columns
        y = torch.empty(*x.shape[:-1], self.matrix.rows, dtype=torch.bfloat16)
        failed = self._product(
            byref(self.matrix), x.data_ptr(), y.data_ptr(), rows, BFLOAT16, torch.get_num_threads()
        )
        if failed:
            raise MemoryError(f"no memory for {x.numel()} numbers")
        return y


@functools.cache
def _torch_has_bfloat16() -> bool:
    """Whether torch multiplies many rows by instructions for bfloat16.

    On x86 without them it makes 20 GFLOP/s a thread where the native product makes 40 to 70 (AVX-512).
    """
    return platform.machine() not in {"x86_64", "AMD64"} or torch.cpu._is_avx512_bf16_supported()


def native_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Native | None:
    """The native product with ``weight [rows, columns]``, where there is one for what it is and where it lies."""
    suits = weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and weight.is_contiguous()
    if not suits or weight.shape[1] % 32:
        return None
    library = native_kernels()
    return None if library is None else Native(library, weight, bias)


def use_kernels(model: nn.Module) -> None:
    """Give every plain ``nn.Linear`` of ``model`` the forward above; weights are where they will stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
            module.__dict__["native"] = native_product(module.weight, module.bias)
