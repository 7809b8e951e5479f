"""Linear and embedding over packed weights (``packing``)."""

from __future__ import annotations

from ctypes import CDLL, byref

import torch
from torch import nn
from torch.nn import functional

from kafila_agent.kernels.library import BFLOAT16, FLOAT32, Matrix, native_kernels
from kafila_agent.kernels.packing import TILE_ROWS, Packing, unpack, unpacked_slices

_ELEMENTS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


class PackedMatrix(nn.Module):
    """A matrix ``[rows, columns]`` of 8 or 4 bits: the buffer ``packed``, as ``packing.pack`` makes it."""

    packed: torch.Tensor

    def __init__(self, rows: int, columns: int, packing: Packing) -> None:
        super().__init__()
        self.rows, self.columns, self.packing = rows, columns, packing
        self.register_buffer("packed", torch.empty(packing.shape(rows, columns), dtype=torch.int32))

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., columns]`` times the transpose, by the native kernel where there is one.

        That makes 60 to 100 GFLOP/s a thread of any number of rows (AVX-512 with VNNI), each as if it were alone, to
        the last bit; unpacking takes longer than a product of 256 rows.
        """
        library = native_kernels() if self.packed.device.type == "cpu" else None
        if library is not None and x.dtype in _ELEMENTS:
            return self._product(library, x.contiguous())
        if library is not None:
            return self._product(library, x.float().contiguous()).to(x.dtype)
        slices = unpacked_slices(self.packed, self.packing, self.rows, self.columns)
        return torch.cat([functional.linear(x, part.to(x.dtype)) for _, part in slices], -1)

    def native(self, bias: torch.Tensor | None = None) -> Matrix:
        """The matrix as the kernels take it, while it lies where it does; ``bias [rows]`` bfloat16."""
        bias_at = None if bias is None else bias.data_ptr()
        return Matrix(self.packed.data_ptr(), bias_at, self.rows, self.columns, self.packing.bits)

    def _product(self, library: CDLL, x: torch.Tensor) -> torch.Tensor:
        count = x.numel() // self.columns
        y = torch.empty(*x.shape[:-1], self.rows, dtype=x.dtype)
        matrix, element = self.native(), _ELEMENTS[x.dtype]
        failed = library.kafila_product(
            byref(matrix), x.data_ptr(), y.data_ptr(), count, element, torch.get_num_threads()
        )
        if failed:
            raise MemoryError(f"no memory for {count} rows of {self.columns}")
        return y

    def rows_at(self, indices: torch.Tensor) -> torch.Tensor:
        """float32 rows ``[..., columns]`` at ``indices [...]``."""
        flat = indices.reshape(-1)
        tiles = unpack(self.packed[flat // TILE_ROWS], self.packing, self.columns)
        each = tiles.view(-1, TILE_ROWS, self.columns)
        return each[torch.arange(len(flat), device=flat.device), flat % TILE_ROWS].view(*indices.shape, -1)


class PackedLinear(nn.Module):
    """``nn.Linear`` over a packed matrix."""

    def __init__(self, matrix: PackedMatrix, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.matrix, self.bias = matrix, bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., columns]`` to ``[..., rows]``."""
        y = self.matrix.times(x)
        return y if self.bias is None else y + self.bias


class PackedEmbedding(nn.Module):
    """``nn.Embedding`` over a packed matrix, whose rows it gives in ``dtype``."""

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix, self._dtype = matrix, dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids ``[...]`` to ``[..., columns]``."""
        return self.matrix.rows_at(ids).to(self._dtype)
