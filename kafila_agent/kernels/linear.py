"""transformers' Linear with the kernel that suits how many rows it is given."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from kafila_agent.kernels.library import native_kernels

# Up to as many rows each is computed as if it were alone, to the last bit.
ALIKE_ROWS = 8


class Linear(nn.Linear):
    """``nn.Linear``, its few-row products by the C kernels (bfloat16) or as matrix times vector (one row)."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        rows = input.numel() // self.in_features
        weight = self.weight
        if rows <= ALIKE_ROWS and weight.device.type == "cpu":
            if self._is_native():
                return dense(input, weight, self.bias, rows)
            if rows == 1 and self.bias is None:
                return torch.mv(weight, input.reshape(-1)).view(*input.shape[:-1], -1)
        return functional.linear(input, weight, self.bias)

    def _is_native(self) -> bool:
        weight = self.weight
        return (
            weight.dtype is torch.bfloat16
            and self.in_features % 32 == 0
            and weight.is_contiguous()
            and native_kernels() is not None
        )


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """bfloat16 ``x [..., in]`` times ``weight [out, in]`` plus ``bias``, by the native kernel."""
    library = native_kernels()
    assert library is not None
    out_features, in_features = weight.shape
    x = x.contiguous()
    y = torch.empty(*x.shape[:-1], out_features, dtype=torch.bfloat16)
    failed = library.kafila_dense(
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        x.data_ptr(),
        y.data_ptr(),
        rows,
        out_features,
        in_features,
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory for {rows} rows of {in_features}")
    return y


def use_kernels(model: nn.Module) -> None:
    """Give every plain ``nn.Linear`` of ``model`` the forward above; weights stay where they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
