"""Which matrices of a model are held packed, and how they are read so, a slice of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kafila_agent.kernels.packed_linear import PackedEmbedding, PackedLinear, PackedMatrix
from kafila_agent.kernels.packing import (
    GROUP_COLUMNS,
    INT4,
    INT8,
    PACKINGS,
    TILE_ROWS,
    Packing,
    Quantised,
    pack,
    quantise,
    slice_tiles,
)
from kafila_agent.model.tensors import TensorEntry
from kafila_agent.model.weights import WeightReader, read_raw, read_tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What decides where a token goes is small and sensitive.
_ROUTER = re.compile(r"\.(gate|router)$")
# The values that attention mixes, and what leaves the MLP: rounded to 4 bits they lose more than twice what all else
# together loses (SmolLM2: 0.20 of 0.29 nats of mean KL), and they are a quarter of the bytes.
_SENSITIVE = re.compile(r"\.(v_proj|qkv_proj|down_proj|c_proj)$")
# GGUF encodings that are the same numbers as a packing's.
_LOSSLESS = {"Q8_0": INT8, "Q4_0": INT4, "Q4_1": INT4}


def choose_packings(
    model: nn.Module, quant: str, encodings: Mapping[str, str] | None = None
) -> dict[str, Packing]:
    """Name of the module -> packing, for the matrices of ``model`` (on any device) that ``quant`` packs.

    Those are plain linears and the plain embedding, with whole groups of columns. Embedding and LM head, values and
    what leaves the MLP keep 8 bits, unless ``encodings`` (GGUF's, by module) say that they are stored in the 4 that
    are wanted. Experts that a family holds in one tensor are no linears and stay as they are.
    """
    wanted = PACKINGS.get(quant)
    if wanted is None:
        return {}
    found = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and not _ROUTER.search(name):
            columns = module.in_features
        elif type(module) is nn.Embedding:
            columns = module.embedding_dim
        else:
            continue
        is_stored_so = _LOSSLESS.get((encodings or {}).get(name, "")) is wanted
        if columns % GROUP_COLUMNS == 0:
            is_robust = ".layers." in name and not _SENSITIVE.search(name)
            found[name] = wanted if is_robust or is_stored_so else INT8
    return found


def put_packed(model: PreTrainedModel, packings: Mapping[str, Packing]) -> None:
    """Put packed modules, their matrices still to be loaded, in the places that ``packings`` name and ``model`` has.

    An LM head that is tied to a packed embedding is nothing until ``tie_packed_head``.
    """
    modules = dict(model.named_modules())
    tied = model.config.tie_word_embeddings and isinstance(model.get_input_embeddings(), nn.Embedding)
    for name, packing in packings.items():
        module = modules.get(name)
        parent, _, child = name.rpartition(".")
        if isinstance(module, nn.Embedding):
            matrix = PackedMatrix(module.num_embeddings, module.embedding_dim, packing)
            setattr(modules[parent], child, PackedEmbedding(matrix, model.dtype))
        elif tied and module is model.get_output_embeddings():
            model.all_tied_weights_keys = {}
            setattr(modules[parent], child, nn.Identity())
        elif isinstance(module, nn.Linear):
            matrix = PackedMatrix(module.out_features, module.in_features, packing)
            setattr(modules[parent], child, PackedLinear(matrix, module.bias))


def tie_packed_head(model: PreTrainedModel) -> None:
    """Where the embedding is packed and the LM head tied to it, have the head compute with the same matrix."""
    embedding = model.get_input_embeddings()
    if isinstance(embedding, PackedEmbedding) and model.config.tie_word_embeddings:
        model.set_output_embeddings(PackedLinear(embedding.matrix, None))


class PackedReader(WeightReader):
    """Reads the matrices that ``packings`` names (by module) packed, everything else as it is."""

    def __init__(self, packings: Mapping[str, Packing], *args: Any) -> None:
        super().__init__(*args)
        self._packings = packings

    def place(self, entry: TensorEntry) -> tuple[str, tuple[int, ...]]:
        """A packed matrix lies one module deeper."""
        if (packing := self._packings.get(entry.module)) is None:
            return super().place(entry)
        return f"{entry.module}.matrix.packed", packing.shape(*entry.shape)

    def make(self, entry: TensorEntry) -> torch.Tensor:
        """Packed or as it is."""
        if (packing := self._packings.get(entry.module)) is None:
            return super().make(entry)
        return read_packed(entry, packing, self.transform)


def read_packed(
    entry: TensorEntry, packing: Packing, transform: Callable[[str, torch.Tensor], torch.Tensor] | None
) -> torch.Tensor:
    """The matrix of ``entry`` as ``PackedMatrix.packed``; GGUF's own blocks of that width without loss."""
    rows, columns = entry.shape
    order = torch.arange(rows)
    if transform is not None:  # of a matrix it only ever moves rows
        order = transform(entry.stored_name, order)
    if not torch.equal(order, torch.arange(rows)):
        whole = _quantised(entry, packing)
        low = None if whole.low is None else whole.low[order]
        return pack(Quantised(whole.q[order], whole.scale[order], low), packing)
    out = torch.empty(packing.shape(rows, columns), dtype=torch.int32)
    step = slice_tiles(columns) * TILE_ROWS
    for first in range(0, rows, step):
        count = min(step, rows - first)
        part = pack(_quantised(_rows_of(entry, first, count), packing), packing)
        out[first // TILE_ROWS : first // TILE_ROWS + len(part)] = part
    return out


def _rows_of(entry: TensorEntry, first: int, count: int) -> TensorEntry:
    row_bytes = entry.nbytes // entry.shape[0]
    return replace(
        entry,
        shape=(count, entry.shape[1]),
        offset=entry.offset + first * row_bytes,
        nbytes=count * row_bytes,
    )


def _quantised(entry: TensorEntry, packing: Packing) -> Quantised:
    if _LOSSLESS.get(entry.encoding) is packing:
        return _taken_over(read_raw(entry).view(entry.shape[0], -1), entry)
    return quantise(read_tensor(entry, torch.float32), packing)


def _taken_over(raw: torch.Tensor, entry: TensorEntry) -> Quantised:
    """GGUF's blocks of 32: scale, for Q4_1 the least value, then the weights (4 bits: 0-15 low, 16-31 high)."""
    rows, columns = entry.shape
    groups = columns // GROUP_COLUMNS
    blocks = raw.view(rows, groups, -1)
    scale = _float16(blocks, 0)
    if entry.encoding == "Q8_0":
        return Quantised(blocks[..., 2:].contiguous().view(torch.int8).view(rows, columns), scale, None)
    low, start = (_float16(blocks, 2), 4) if entry.encoding == "Q4_1" else (scale * -8, 2)
    nibbles = blocks[..., start:]
    q = torch.cat([nibbles & 15, nibbles >> 4], -1)
    return Quantised(q.view(rows, columns), scale, low)


def _float16(blocks: torch.Tensor, at: int) -> torch.Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)
