"""A stage of the model's own blocks with made-up weights: to measure serving before any weight is read."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from kafila_agent.kernels.packing import PACKINGS, TILE_ROWS, pack, quantise
from kafila_agent.model.blocks import StageModel, fill, stage_of
from kafila_agent.model.families import FAMILIES, causal_lm_class, skeleton
from kafila_agent.model.kv import describe_kv, narrow
from kafila_agent.model.packed import choose_packings
from kafila_agent.model.routing import HeldTensor, bytes_read

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# Widths that make a block large, halved until it is small enough; heads keep their number and their size.
_INNER_WIDTHS = ("intermediate_size", "moe_intermediate_size", "num_experts", "num_local_experts")
# What is left of a block whose weights cost nothing: the fixed cost of running it.
_SHRUNKEN = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def random_stage(
    config: PreTrainedConfig, blocks: int, dtype: torch.dtype, device: str = "cpu", quant: str = "none"
) -> StageModel:
    """Blocks ``[0, blocks)`` of ``config`` with small random weights, built the way a checkpoint is loaded."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = copy.deepcopy(config)
    narrow(config, 0, blocks)
    family = FAMILIES[config.model_type]
    stage_class = _stage_class(config, quant)
    state = {name: _Random(tensor, dtype) for name, tensor in _state(stage_class, config, dtype).items()}
    model, _ = fill(stage_class, config, state, dtype)
    return StageModel(model.to(device), family, describe_kv(config, family.name), 0, blocks, is_head=False)


def bounded_block(
    config: PreTrainedConfig, dtype: torch.dtype, most_bytes: int, quant: str = "none"
) -> PreTrainedConfig:
    """``config``, its inner widths halved as often as one block needs to fit ``most_bytes``."""
    config = copy.deepcopy(config)
    while sum(t.nbytes for t in block_tensors(config, dtype, quant)) > most_bytes:
        halved = {name: getattr(config, name, None) for name in _INNER_WIDTHS}
        smaller = {
            name: value // 2 for name, value in halved.items() if isinstance(value, int) and value >= 64
        }
        if not smaller:
            break
        for name, value in smaller.items():
            setattr(config, name, value)
    return config


def shrunken(config: PreTrainedConfig) -> PreTrainedConfig:
    """The family's block with next to no weights."""
    config = copy.deepcopy(config)
    for name, most in _SHRUNKEN.items():
        if isinstance(value := getattr(config, name, None), int):
            setattr(config, name, min(value, most))
    return config


def block_tensors(config: PreTrainedConfig, dtype: torch.dtype, quant: str = "none") -> list[HeldTensor]:
    """The tensors of block 0 as ``dtype`` holds them; nothing is allocated."""
    one = copy.deepcopy(config)
    narrow(one, 0, 1)
    return [
        HeldTensor(name, tuple(tensor.shape), tensor.nbytes)
        for name, tensor in _state(_stage_class(one, quant), one, dtype).items()
    ]


def block_read_bytes(config: PreTrainedConfig, dtype: torch.dtype, quant: str = "none") -> int:
    """Bytes of block 0 that a one-row step reads."""
    return bytes_read(block_tensors(config, dtype, quant), config)


def _stage_class(config: PreTrainedConfig, quant: str) -> type[PreTrainedModel]:
    packings = choose_packings(skeleton(config), quant) if quant in PACKINGS else {}
    cls = causal_lm_class(config.model_type)
    return stage_of(cls, 0, config.num_hidden_layers, is_head=False, packings=packings)


def _state(
    stage_class: type[PreTrainedModel], config: PreTrainedConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        return stage_class(config).to(dtype).state_dict()


class _Random:
    """A tensor made when the loader asks for it: one small random run, repeated; norms are near one."""

    def __init__(self, like: torch.Tensor, dtype: torch.dtype) -> None:
        self.shape, self._dtype = like.shape, dtype
        self._is_packed = like.dtype is torch.int32

    def __getitem__(self, _whole: object) -> torch.Tensor:
        if self._is_packed:
            return self._packed()
        tensor = torch.empty(self.shape, dtype=self._dtype)
        if tensor.dim() == 1:
            return tensor.fill_(1.0)
        run = (torch.randn(1 << 12) * 0.02).to(self._dtype)
        flat = tensor.view(-1)
        whole = flat.numel() // run.numel() * run.numel()
        flat[:whole].view(-1, run.numel()).copy_(run)
        flat[whole:] = run[: flat.numel() - whole]
        return tensor

    def _packed(self) -> torch.Tensor:
        tiles, pieces, words = self.shape
        packing = next(one for one in PACKINGS.values() if one.piece_words == words)
        one = quantise(torch.randn(TILE_ROWS, pieces * packing.piece_columns) * 0.02, packing)
        return pack(one, packing).expand(tiles, -1, -1).contiguous()
