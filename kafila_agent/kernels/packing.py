"""Weights of 8 and 4 bits: what they are, how matrices become such, and how they lie in memory for the kernels.

Along its columns a matrix is cut into groups of 32. A group of 8 bits is ``scale * q`` with q in -127 ... 127; one
of 4 bits ``scale * q + low`` with q in 0 ... 15; scale and low are float16. GGUF's Q8_0, Q4_0 and Q4_1 are the same
numbers and so are taken over without loss. How they lie is drawn in ``products.c``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

GROUP_COLUMNS = 32
TILE_ROWS = 16
_SLICE_ELEMENTS = 1 << 22


@dataclass(frozen=True, slots=True)
class Packing:
    """How one matrix is held: ``bits`` a weight, in pieces of ``piece_columns`` columns by 16 rows."""

    bits: int
    piece_columns: int

    @property
    def piece_words(self) -> int:
        """32-bit words of one piece: 16 of scales, then the weights."""
        return TILE_ROWS + TILE_ROWS * self.piece_columns * self.bits // 32

    def shape(self, rows: int, columns: int) -> tuple[int, int, int]:
        """(tiles, pieces, words) of a matrix ``[rows, columns]``."""
        return -(-rows // TILE_ROWS), -(-columns // self.piece_columns), self.piece_words

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes held for a matrix ``[rows, columns]``."""
        tiles, pieces, words = self.shape(rows, columns)
        return tiles * pieces * words * 4


INT8 = Packing(8, 64)
INT4 = Packing(4, 32)
PACKINGS = {"int8": INT8, "int4": INT4}


@dataclass(frozen=True, slots=True)
class Quantised:
    """``q [rows, columns]`` int8 (uint8 of 0 ... 15 for 4 bits), ``scale`` and ``low [rows, columns / 32]`` float16."""

    q: torch.Tensor
    scale: torch.Tensor
    low: torch.Tensor | None


def quantise(weight: torch.Tensor, packing: Packing) -> Quantised:
    """The nearest numbers to ``weight [rows, columns]``, columns a multiple of 32, group by group."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP_COLUMNS)
    if packing is INT8:
        scale = (groups.abs().amax(-1) / 127).half()
        q = (groups / _divisor(scale)).round_().clamp_(-127, 127).to(torch.int8)
        return Quantised(q.reshape(weight.shape), scale, None)
    low = groups.amin(-1).half()
    scale = ((groups.amax(-1) - low.float()) / 15).half()
    q = ((groups - low.float()[..., None]) / _divisor(scale)).round_().clamp_(0, 15).to(torch.uint8)
    return Quantised(q.reshape(weight.shape), scale, low)


def _divisor(scale: torch.Tensor) -> torch.Tensor:
    """A group of equal numbers has scale 0, and q 0."""
    return scale.float().masked_fill(scale == 0, 1.0)[..., None]


def pack(quantised: Quantised, packing: Packing) -> torch.Tensor:
    """The numbers as the kernels read them: int32 ``[tiles, pieces, words]``; what is missing to whole pieces is 0."""
    tiles, pieces, words = packing.shape(*quantised.q.shape)
    q = _padded(quantised.q, tiles * TILE_ROWS, pieces * packing.piece_columns)
    q = q.view(torch.uint8) if packing is INT8 else q[:, 0::2] | (q[:, 1::2] << 4)
    weights = q.view(tiles, TILE_ROWS, pieces, -1, 4).permute(0, 2, 3, 1, 4).contiguous().view(torch.int32)
    out = torch.empty(tiles, pieces, words, dtype=torch.int32)
    out[..., :TILE_ROWS] = _scales(quantised, tiles, pieces)
    out[..., TILE_ROWS:] = weights.view(tiles, pieces, -1)
    return out


def _scales(quantised: Quantised, tiles: int, pieces: int) -> torch.Tensor:
    """Words ``[tiles, pieces, 16]`` of two float16 each: two groups' scales, or a group's scale and least value."""
    if quantised.low is None:
        halves = _padded(quantised.scale, tiles * TILE_ROWS, pieces * 2)
    else:
        both = (quantised.scale, quantised.low)
        halves = torch.stack([_padded(one, tiles * TILE_ROWS, pieces) for one in both], -1)
    halves = halves.view(tiles, TILE_ROWS, pieces, 2).transpose(1, 2).contiguous()
    return halves.view(torch.int32).view(tiles, pieces, TILE_ROWS)


def _padded(tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    if tensor.shape == (rows, columns):
        return tensor.contiguous()
    out = torch.zeros(rows, columns, dtype=tensor.dtype)
    out[: tensor.shape[0], : tensor.shape[1]] = tensor
    return out


def slice_tiles(columns: int) -> int:
    """How many tiles of ``columns`` are packed or unpacked at a time, to need little memory beside the matrix."""
    return max(1, _SLICE_ELEMENTS // (TILE_ROWS * columns))


def unpack(tiles: torch.Tensor, packing: Packing, columns: int) -> torch.Tensor:
    """float32 ``[16 * tiles, columns]`` of packed ``tiles [tiles, pieces, words]``."""
    count, pieces, _ = tiles.shape
    halves = tiles[..., :TILE_ROWS].contiguous().view(torch.float16).view(count, pieces, TILE_ROWS, 2)
    first, second = halves.float().transpose(1, 2).unbind(-1)  # [tiles, 16, pieces] each
    raw = tiles[..., TILE_ROWS:].contiguous().view(torch.uint8).view(count, pieces, -1, TILE_ROWS, 4)
    raw = raw.permute(0, 3, 1, 2, 4).reshape(count, TILE_ROWS, pieces, -1)
    if packing is INT8:
        scale = torch.stack([first, second], -1)[..., None]
        values = raw.view(torch.int8).view(count, TILE_ROWS, pieces, 2, GROUP_COLUMNS) * scale
    else:
        nibbles = torch.stack([raw & 15, raw >> 4], -1).view(count, TILE_ROWS, pieces, GROUP_COLUMNS)
        values = torch.addcmul(second[..., None], nibbles.float(), first[..., None])
    return values.reshape(count * TILE_ROWS, -1)[:, :columns]


def unpacked_slices(
    packed: torch.Tensor, packing: Packing, rows: int, columns: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """The matrix by slices of rows: (first row, float32 ``[some rows, columns]``), bounded in size."""
    step = slice_tiles(columns)
    for first in range(0, packed.shape[0], step):
        start = first * TILE_ROWS
        yield start, unpack(packed[first : first + step], packing, columns)[: rows - start]
