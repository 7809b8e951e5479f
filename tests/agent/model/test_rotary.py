"""Positions looked up are to the last bit those that transformers' module works out, one at a time."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kafila_agent.model.rotary import RotaryTable

KINDS = {
    "default": {},
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_modules_own_for_each_position_alone(kind, dtype):
    scaling = {"rope_type": kind, "rope_theta": 1e4} | KINDS[kind]
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=scaling)
    module = LlamaRotaryEmbedding(config)
    table = RotaryTable(module, dtype, torch.device("cpu"))
    for position, rows in ((0, 1), (5, 8), (126, 5), (255, 1), (1000, 300), (131_071, 2)):
        pieces = zip(*table.rows(position, rows), strict=True)
        cosine, sine = (torch.cat(each) for each in pieces)
        assert cosine.shape == sine.shape == (rows, 64)
        for row, place in zip(itertools.count(), range(position, position + rows), strict=False):
            alone = module(torch.empty(1, 1, 128, dtype=dtype), torch.tensor([[place]]))
            assert torch.equal(cosine[row], alone[0][0, 0])
            assert torch.equal(sine[row], alone[1][0, 0])
