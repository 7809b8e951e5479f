"""A decoding step in one call against transformers' own modules, row against rows, and where it is not for."""

from __future__ import annotations

import pytest
import torch

from kafila_agent.kernels.library import native_kernels
from kafila_agent.kernels.linear import ALIKE_ROWS
from kafila_agent.model.blocks import StageModel
from kafila_agent.model.families import FAMILIES
from kafila_agent.probe.random_stage import random_stage
from kafila_agent.stage.kv_cache import KvReservation
from tests.checkpoints import tiny_config

NATIVE = pytest.mark.skipif(native_kernels() is None, reason="no C compiler")
STANDARD = sorted(family.name for family in FAMILIES.values() if family.is_standard)
CONTEXT, PROMPT, BLOCKS = 64, 21, 3
SHAPE = {"head_dim": 32, "max_position_embeddings": 512}


def made(
    family: str, quant: str = "none", dtype: torch.dtype = torch.bfloat16, **changes: object
) -> StageModel:
    """A stage of random weights, norms and biases among them."""
    torch.manual_seed(3)
    stage = random_stage(tiny_config(family, tied=False, **(SHAPE | changes)), BLOCKS, dtype, quant=quant)
    for tensor in stage._body.state_dict().values():
        if tensor.is_floating_point():
            tensor += (0.2 * torch.randn(tensor.shape)).to(dtype)
    return stage


def run(stage: StageModel, *chunks: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Rows after a prompt, in chunks of so many: what comes out of the blocks, and what the caches hold then."""
    kv = KvReservation(stage.kv, slots=1, context_tokens=CONTEXT, dtype=stage.dtype, device=stage.device)
    slot, position, out = kv.slots[0], 0, []
    rows = torch.randn(CONTEXT, stage.hidden_size, generator=torch.Generator().manual_seed(1)).to(stage.dtype)
    with torch.inference_mode():
        for count in (PROMPT, *chunks):
            slot.seek(0, position)
            out.append(stage.forward(rows[position : position + count], position, slot))
            slot.advance(count)
            position += count
    kept = [buffer[:, :, :position].clone() for layer in slot.layers for buffer in (layer.keys, layer.values)]
    return torch.cat(out[1:]), kept


def by_modules(stage: StageModel, *chunks: int) -> torch.Tensor:
    program, stage._program = stage._program, None
    try:
        return run(stage, *chunks)[0]
    finally:
        stage._program = program


def assert_close(own: torch.Tensor, expected: torch.Tensor) -> None:
    """The roundings are the same; of a sum in another order a number now and then falls on the other side."""
    error = (own.float() - expected.float()).pow(2).mean()
    assert error <= 3e-4 * expected.float().pow(2).mean()


@NATIVE
@pytest.mark.parametrize(
    ("family", "quant"), [*((family, "none") for family in STANDARD), ("qwen2", "int8"), ("qwen3", "int4")]
)
def test_a_step_is_that_of_the_familys_own_modules(family: str, quant: str) -> None:
    stage = made(family, quant)
    assert stage._program is not None
    assert_close(run(stage, *[1] * 6)[0], by_modules(stage, *[1] * 6))


@NATIVE
@pytest.mark.parametrize(
    ("heads", "rope"),
    [
        ((4, 4), {"rope_type": "default", "rope_theta": 100.0}),
        (
            (8, 1),
            {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        (
            (6, 2),
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        ((4, 2), {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ],
    ids=lambda one: one["rope_type"] if isinstance(one, dict) else str(one),
)
def test_shares_of_heads_and_kinds_of_positions(heads: tuple[int, int], rope: dict) -> None:
    shape = {"hidden_size": 192, "num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    stage = made("llama", rope_parameters=rope, **shape)
    assert_close(run(stage, *[1] * 6)[0], by_modules(stage, *[1] * 6))


@NATIVE
@pytest.mark.parametrize(
    ("family", "quant"), [("qwen3", "none"), ("qwen2", "int8"), ("llama", "int4"), ("mistral", "none")]
)  # mistral's has a window
def test_a_row_depends_on_no_other_and_on_no_number_of_threads(family: str, quant: str) -> None:
    stage = made(family, quant)
    alone, kept = run(stage, *[1] * 16)
    threads = torch.get_num_threads()
    for chunks, count in (((ALIKE_ROWS, ALIKE_ROWS), 1), ((2, 3, 4, 7), 2), ((5, 6, 5), 3)):
        torch.set_num_threads(count)
        try:
            together, kept_together = run(stage, *chunks)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(together, alone)
        # Before the rows: the prompt's keys and values, by torch, whose results depend on its threads.
        assert all(
            torch.equal(a[:, :, PROMPT:], b[:, :, PROMPT:]) for a, b in zip(kept, kept_together, strict=True)
        )


@pytest.mark.parametrize(
    ("family", "dtype", "changes"),
    [
        ("llama", torch.float32, {}),
        ("llama", torch.float16, {}),
        ("llama", torch.bfloat16, {"head_dim": 16}),
        ("llama", torch.bfloat16, {"hidden_act": "gelu"}),
        ("gemma", torch.bfloat16, {}),
    ],
    ids=str,
)
def test_what_it_is_not_made_for_is_left_to_the_modules(
    family: str, dtype: torch.dtype, changes: dict
) -> None:
    assert made(family, dtype=dtype, **changes)._program is None


def test_without_a_compiler_the_modules_do_the_work(monkeypatch) -> None:
    monkeypatch.setattr("kafila_agent.kernels.program.native_kernels", lambda: None)
    stage = made("llama")
    assert stage._program is None
    assert run(stage, 1, 2)[0].isfinite().all()
