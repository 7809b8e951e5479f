from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kafila_agent.kernels.packed_linear import PackedEmbedding, PackedLinear
from kafila_agent.kernels.packing import INT4, INT8, PACKINGS, unpack
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.families import skeleton
from kafila_agent.model.manifest import read_manifest
from kafila_agent.model.packed import choose_packings, read_packed
from kafila_agent.model.tensors import TensorEntry
from kafila_agent.model.weights import read_tensor

QUANTS = pytest.mark.parametrize("quant", ["int8", "int4"])


@QUANTS
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3_text"])
def test_what_is_loaded_is_what_was_described(checkpoint, family: str, tied: bool, quant: str) -> None:
    manifest = read_manifest(checkpoint(family, tied=tied))
    facts = describe_model(manifest, f"bfloat16/{quant}", context_tokens=64, concurrency=1)
    plain = describe_model(manifest, "bfloat16", context_tokens=64, concurrency=1)
    head = load_stage(manifest, 0, 2, is_head=True, dtype=f"bfloat16/{quant}")
    stage = load_stage(manifest, 2, 6, is_head=False, dtype=f"bfloat16/{quant}")
    assert head.loaded_bytes == sum(facts.block_bytes[:2]) + facts.head_bytes
    assert stage.loaded_bytes == sum(facts.block_bytes[2:])
    assert sum(facts.block_bytes) < sum(plain.block_bytes)


@QUANTS
def test_which_matrices_are_packed(checkpoint, quant: str) -> None:
    manifest = read_manifest(checkpoint("mixtral", tied=False))
    packings = manifest.packings(quant)
    assert packings["model.layers.0.self_attn.q_proj"] is PACKINGS[quant]
    assert packings["model.layers.0.self_attn.v_proj"] is INT8
    assert packings["model.embed_tokens"] is packings["lm_head"] is INT8
    assert not any(name.endswith((".gate", "norm")) for name in packings)


def test_what_a_file_holds_in_4_bits_stays_so_where_all_else_is_sensitive(checkpoint) -> None:
    model = skeleton(read_manifest(checkpoint("llama", tied=False)).model_config)
    down, values = "model.layers.0.mlp.down_proj", "model.layers.0.self_attn.v_proj"
    packings = choose_packings(model, "int4", {down: "Q4_1", values: "Q6_K"})
    assert (packings[down], packings[values]) == (INT4, INT8)


@QUANTS
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_packed_stage_computes_nearly_what_a_plain_one_does(checkpoint, tied: bool, quant: str) -> None:
    manifest = read_manifest(checkpoint("llama", tied=tied))
    packed = load_stage(manifest, 0, 1, is_head=True, dtype=f"float32/{quant}")
    plain = load_stage(manifest, 0, 1, is_head=True, dtype="float32")
    assert any(isinstance(module, PackedLinear) for module in packed._body.modules())
    assert isinstance(packed._embed_tokens, PackedEmbedding)
    ids = torch.tensor([5, 9, 77])
    with torch.inference_mode():
        a, b = (stage.logits(stage.embed(ids)) for stage in (packed, plain))
    assert (a - b).norm() < 0.02 * b.norm()


def test_a_tied_head_and_its_embedding_hold_one_matrix(checkpoint) -> None:
    stage = load_stage(
        read_manifest(checkpoint("llama", tied=True)), 0, 1, is_head=True, dtype="bfloat16/int8"
    )
    matrices = [m.packed.data_ptr() for m in stage._tail.modules() if hasattr(m, "packed")]
    assert matrices
    assert len(set(matrices)) == 1


@pytest.mark.parametrize(("encoding", "packing"), [("Q8_0", INT8), ("Q4_0", INT4), ("Q4_1", INT4)])
def test_ggufs_own_blocks_are_taken_over_without_loss(tmp_path: Path, encoding: str, packing) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    values = np.random.default_rng(1).standard_normal((40, 96), np.float32)
    blocks = quantize(values, GGMLQuantizationType[encoding])
    file = tmp_path / "blocks"
    file.write_bytes(b"abc" + blocks.tobytes())
    entry = TensorEntry("x.weight", (40, 96), encoding, file, 3, blocks.nbytes)
    packed = read_packed(entry, packing, None)
    expected = read_tensor(entry, torch.float32)
    assert torch.allclose(unpack(packed, packing, 96)[:40], expected, rtol=1e-6, atol=1e-6)


def test_rows_that_the_converter_moved_are_moved_back(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    weight = torch.randn(32, 64)
    file.write_bytes(weight.numpy().tobytes())
    entry = TensorEntry("x.weight", (32, 64), "F32", file, 0, weight.nbytes, "stored")
    straight = read_packed(entry, INT8, None)
    turned = read_packed(entry, INT8, lambda name, tensor: tensor.flip(0))
    assert torch.equal(unpack(turned, INT8, 64), unpack(straight, INT8, 64).flip(0))
