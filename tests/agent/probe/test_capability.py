from __future__ import annotations

import dataclasses
import json
import time

import pytest
import torch
from transformers import CONFIG_MAPPING

from kafila_agent.edge.frame import Dtype, Frame, Kind
from kafila_agent.kernels.packed_linear import PackedMatrix
from kafila_agent.model.families import FAMILIES
from kafila_agent.model.manifest import ModelError, read_manifest
from kafila_agent.probe import capability as capability_module
from kafila_agent.probe.arithmetic import measure_flops_per_s
from kafila_agent.probe.capability import measure_capability
from kafila_agent.probe.random_stage import (
    block_read_bytes,
    block_tensors,
    bounded_block,
    random_stage,
    shrunken,
)
from kafila_agent.stage.executor import StageExecutor, payload_of

ORDINARY = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 32}


@pytest.fixture(scope="module")
def config(checkpoint) -> dict:
    """A model of ordinary shape, so that reading its weights is most of a step."""
    return (
        json.loads((checkpoint("llama") / "config.json").read_text()) | ORDINARY | {"num_hidden_layers": 24}
    )


def test_everything_is_measured_and_of_a_machines_size(config) -> None:
    started = time.monotonic()
    measured = measure_capability(config, "bfloat16", 1)
    assert time.monotonic() - started < 30  # about two seconds on a machine that does nothing else
    assert 1e8 < measured.bandwidth_bytes_per_s < 1e13
    assert 0 <= measured.overhead_s < 0.1
    assert 1e-6 < measured.block_overhead_s < 0.1
    assert 1e8 < measured.flops_per_s < 1e15
    assert measured.memory_bytes > 1 << 28


@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_arithmetic_is_timed_with_what_a_stage_multiplies_with(quant, monkeypatch) -> None:
    times, products = PackedMatrix.times, []
    monkeypatch.setattr(PackedMatrix, "times", lambda *given: products.append(given) or times(*given))
    assert 1e8 < measure_flops_per_s(64, 96, torch.bfloat16, quant=quant) < 1e15
    assert bool(products) == (quant != "none")


def test_a_measurement_that_fails_is_unknown_and_the_others_stand(config, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such counter")

    monkeypatch.setattr(capability_module, "measure_step_cost", fail)
    monkeypatch.setattr(capability_module, "measure_room_bytes", fail)
    measured = measure_capability(config, "bfloat16", 1)
    assert measured.memory_bytes is measured.bandwidth_bytes_per_s is measured.overhead_s is None
    assert measured.block_overhead_s is None
    assert measured.flops_per_s > 0


def test_a_machine_that_another_probe_keeps_busy_is_unknown(config, monkeypatch) -> None:
    def busy():
        raise TimeoutError("another probe has held this machine")

    monkeypatch.setattr(capability_module, "machine_lock", busy)
    measured = measure_capability(config, "bfloat16", 1, limit_bytes=1 << 20)
    assert dataclasses.astuple(measured) == (None, None, None, None, 1 << 20)


def test_a_family_or_dtype_that_is_not_served_is_refused() -> None:
    with pytest.raises(ModelError, match="family 'mamba' is not served"):
        measure_capability({"model_type": "mamba"}, "bfloat16", 1)
    with pytest.raises(ModelError, match="dtype 'int3' is not served"):
        measure_capability(None, "int3", 1)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "phi3", "qwen3_moe"])
def test_a_made_up_stage_weighs_what_a_loaded_one_does(checkpoint, family: str) -> None:
    manifest = read_manifest(checkpoint(family))
    stage = random_stage(manifest.model_config, 2, torch.float32)
    assert stage.loaded_bytes == sum(t.elements * 4 for t in manifest.block_tensors(0, 2))
    held = sum(t.nbytes for t in block_tensors(manifest.model_config, torch.float32))
    assert held == sum(t.elements * 4 for t in manifest.block_tensors(0, 1))
    read = block_read_bytes(manifest.model_config, torch.float32)
    assert (read < held) == (family in ("gpt_oss", "qwen3_moe"))


@pytest.mark.parametrize("family", ["llama", "gemma2", "smollm3"])
def test_a_model_of_few_blocks_is_measured_too(checkpoint, family: str) -> None:
    """The fixed cost of a block is told from many blocks, which are the model's own over and over."""
    config = json.loads((checkpoint(family) / "config.json").read_text()) | ORDINARY
    assert measure_capability(config, "bfloat16", 1).block_overhead_s is not None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_familys_block_can_be_shrunken_and_stepped(family: str) -> None:
    """From the family's own default widths, which are those of a published model."""
    config = CONFIG_MAPPING[family]()
    config.num_key_value_heads = config.num_key_value_heads or config.num_attention_heads
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    small = shrunken(config)
    assert sum(t.nbytes for t in block_tensors(small, torch.bfloat16)) * 20 < sum(
        t.nbytes for t in block_tensors(config, torch.bfloat16)
    )
    stage = random_stage(small, 2, torch.bfloat16)
    executor = StageExecutor(stage, slots=1, context_tokens=4, threads=1)
    row = torch.randn(1, stage.hidden_size, dtype=torch.bfloat16)
    frame = Frame(
        Kind.HIDDEN, 0, 1, 0, 0, 1, Dtype.BFLOAT16, stage.hidden_size, rows_wanted=1, payload=payload_of(row)
    )
    assert executor.run_blocks(frame).isfinite().all()


def test_a_large_block_is_made_to_fit(checkpoint) -> None:
    config = read_manifest(checkpoint("llama")).model_config
    config.intermediate_size = 1 << 14
    bounded = bounded_block(config, torch.float32, 1 << 20)
    assert sum(t.nbytes for t in block_tensors(bounded, torch.float32)) <= 1 << 20
    assert config.intermediate_size == 1 << 14
