"""Standard decoder blocks, and what follows the last, by ``block.c``: a whole step of a few rows in one call."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import nn

from kafila_agent.kernels.library import Matrix, native_kernels
from kafila_agent.kernels.linear import Linear
from kafila_agent.kernels.packed_linear import PackedLinear

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_WHOLE = 32  # every width is a multiple of it


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What all blocks of a run have in common; ``scale`` is attention's, ``epsilon`` the norms'."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    epsilon: float
    scale: float

    def fits(self) -> bool:
        """Whether the kernels take these widths."""
        return not any(n % _WHOLE for n in (self.hidden, self.dim, self.inner))


@dataclass(frozen=True, slots=True)
class BlockParts:
    """One block: its linears, and its norms' weights; ``turns`` whether queries and keys are turned by position."""

    q: nn.Module
    k: nn.Module
    v: nn.Module
    out: nn.Module
    gate: nn.Module
    up: nn.Module
    down: nn.Module
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    turns: bool

    def linears(self) -> tuple[nn.Module, ...]:
        """In the order of ``block.c``."""
        return self.q, self.k, self.v, self.out, self.gate, self.up, self.down

    def norms(self) -> tuple[torch.Tensor | None, ...]:
        """In the order of ``block.c``."""
        return self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, _LONG) for name in ("hidden", "heads", "kv_heads", "dim", "inner")),
        ("epsilon", _FLOAT),
        ("scale", _FLOAT),
    )


class _Block(ctypes.Structure):
    _fields_ = (
        *((name, Matrix) for name in ("q", "k", "v", "out", "gate", "up", "down")),
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        ("turns", ctypes.c_int),
    )


class BlockProgram:
    """Rows through the blocks, each as if alone to the last bit. Weights stay where they are."""

    def __init__(self, library: ctypes.CDLL, shape: BlockShape, blocks: Sequence[BlockParts]) -> None:
        self._run, self._held, self._count = library.kafila_blocks, list(blocks), len(blocks)
        self._shape = _Shape(*astuple(shape))
        self._shape.scale = shape.scale * math.log2(math.e)
        self._blocks = (_Block * len(blocks))()
        for index, block in enumerate(blocks):
            matrices = [_matrix(linear) for linear in block.linears()]
            norms = [None if norm is None else norm.data_ptr() for norm in block.norms()]
            self._blocks[index] = _Block(*matrices, *norms, block.turns)

    def __call__(
        self,
        hidden: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        places: array[int],
        counts: array[int],
    ) -> torch.Tensor:
        """``hidden [rows, hidden]``: so many rows (``counts``) of each sequence, one sequence after the other.

        ``cosine, sine [rows, dim]`` of their positions; ``places``: ``SlotCache.places`` of each sequence. The result
        is written over ``hidden`` where that is contiguous.
        """
        out = hidden.contiguous()
        failed = self._run(
            ctypes.byref(self._shape),
            self._blocks,
            self._count,
            places.buffer_info()[0],
            counts.buffer_info()[0],
            len(counts),
            out.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for a step of {out.shape[0]} rows")
        return out


class HeadProgram:
    """Final norm and LM head for a few rows, each as if alone."""

    def __init__(self, library: ctypes.CDLL, head: nn.Module, norm: torch.Tensor, epsilon: float) -> None:
        self._run, self._held, self._epsilon = library.kafila_head, (head, norm), epsilon
        self._matrix, self._norm_at = _matrix(head), norm.data_ptr()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """``hidden [rows, hidden]`` to logits ``[rows, vocabulary]``, bfloat16."""
        hidden = hidden.contiguous()
        out = torch.empty(hidden.shape[0], self._matrix.rows, dtype=torch.bfloat16)
        failed = self._run(
            ctypes.byref(self._matrix),
            self._norm_at,
            self._epsilon,
            hidden.data_ptr(),
            out.data_ptr(),
            hidden.shape[0],
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the logits of {hidden.shape[0]} rows")
        return out


def block_program(shape: BlockShape, blocks: Sequence[BlockParts]) -> BlockProgram | None:
    """The program of ``blocks``, if there are kernels for what they are and where they lie."""
    library = native_kernels()
    if library is None or not shape.fits() or not all(map(_suits, blocks)):
        return None
    return BlockProgram(library, shape, blocks)


def head_program(head: nn.Module, norm: torch.Tensor, epsilon: float) -> HeadProgram | None:
    """The program of a head, if there are kernels for what it is and where it lies."""
    library = native_kernels()
    if library is None or _bits(head) is None or not _is_plain(norm):
        return None
    return HeadProgram(library, head, norm, epsilon)


def _suits(block: BlockParts) -> bool:
    """Whether the kernels take its parts; those that are multiplied with the same operands must hold the same bits."""
    bits = [_bits(linear) for linear in block.linears()]
    q, k, _, _, gate, up, _ = bits
    return None not in bits and q == k and gate == up and all(map(_is_plain, block.norms()))


def _is_plain(tensor: torch.Tensor | None) -> bool:
    return tensor is None or (
        tensor.dtype is torch.bfloat16 and tensor.device.type == "cpu" and tensor.is_contiguous()
    )


def _bits(linear: nn.Module) -> int | None:
    """Bits of a weight, or None where the kernels do not take it."""
    if isinstance(linear, Linear) and linear.native is not None:
        return linear.native.matrix.bits
    if (
        isinstance(linear, PackedLinear)
        and linear.matrix.packed.device.type == "cpu"
        and _is_plain(linear.bias)
    ):
        return linear.matrix.packing.bits
    return None


def _matrix(linear: nn.Module) -> Matrix:
    if isinstance(linear, Linear):
        assert linear.native is not None
        return linear.native.matrix
    assert isinstance(linear, PackedLinear)
    return linear.matrix.native(linear.bias)
