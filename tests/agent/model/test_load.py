from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kafila_agent.model import weights
from kafila_agent.model.blocks import load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.families import FAMILIES
from kafila_agent.model.kv import SLIDING_SLACK_TOKENS
from kafila_agent.model.large_pages import use_large_pages
from kafila_agent.model.manifest import ModelError, read_manifest
from kafila_agent.probe.random_stage import random_stage


@pytest.fixture
def read_tensors(monkeypatch) -> list:
    """Every tensor read from a file, in order."""
    seen = []
    read_bytes = weights.read_bytes

    def counting(entry, into):
        seen.append(entry)
        return read_bytes(entry, into)

    monkeypatch.setattr(weights, "read_bytes", counting)
    return seen


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "phi3"])
def test_a_stage_reads_its_own_tensors_once_and_no_others(checkpoint, read_tensors, family: str) -> None:
    manifest = read_manifest(checkpoint(family, shard_bytes=200_000))
    progress = []
    stage = load_stage(
        manifest, 2, 4, is_head=False, dtype="float32", on_progress=lambda *step: progress.append(step)
    )
    assert sorted(t.name for t in read_tensors) == sorted(t.name for t in manifest.block_tensors(2, 4))
    read = sum(t.nbytes for t in read_tensors)
    assert read == stage.loaded_bytes
    assert len(progress) == len(read_tensors)
    assert [loaded for loaded, _ in progress] == sorted(loaded for loaded, _ in progress)
    assert progress[-1] == (read, read)


def test_a_head_reads_its_blocks_and_what_surrounds_them(checkpoint, read_tensors) -> None:
    manifest = read_manifest(checkpoint("llama"))
    load_stage(manifest, 0, 1, is_head=True, dtype="float32")
    outside = {t.name for t in read_tensors if t.block is None}
    assert outside == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert {t.block for t in read_tensors} == {None, 0}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "phi3", "qwen3_moe"])
def test_what_is_loaded_is_what_was_described(checkpoint, family: str, tied: bool, dtype: str) -> None:
    manifest = read_manifest(checkpoint(family, tied=tied))
    facts = describe_model(manifest, dtype, context_tokens=64, concurrency=1)
    head = load_stage(manifest, 0, 2, is_head=True, dtype=dtype)
    stage = load_stage(manifest, 2, 6, is_head=False, dtype=dtype)
    assert head.loaded_bytes == facts.head_bytes + sum(facts.block_bytes[:2])
    assert stage.loaded_bytes == sum(facts.block_bytes[2:])


def test_of_an_untied_embedding_one_row_is_read(checkpoint) -> None:
    tied, untied = (
        describe_model(
            read_manifest(checkpoint("llama", tied=tied)), "bfloat16", context_tokens=8, concurrency=1
        )
        for tied in (True, False)
    )
    matrix, norm = 128 * 64 * 2, 64 * 2
    assert tied.head_bytes == tied.head_read_bytes == matrix + norm
    assert (untied.head_bytes, untied.head_read_bytes) == (2 * matrix + norm, matrix + norm + 64 * 2)


def test_of_a_mixture_the_routed_experts_are_read(checkpoint) -> None:
    facts = describe_model(read_manifest(checkpoint("qwen3_moe")), "float32", context_tokens=8, concurrency=1)
    experts = 4 * 3 * 32 * 64 * 4
    assert facts.block_bytes[0] - facts.block_read_bytes[0] == experts // 2  # 2 of 4
    assert facts.block_bytes[1] == facts.block_read_bytes[1]  # a dense block


def test_a_window_is_kept_and_its_slack_and_no_more(checkpoint) -> None:
    facts = describe_model(read_manifest(checkpoint("gemma2")), "float32", context_tokens=5000, concurrency=1)
    window = 8 - 1 + SLIDING_SLACK_TOKENS
    assert facts.kv_tokens_per_block == (window, 5000) * 3
    assert facts.kv_bytes_per_token_per_block == (2 * 2 * 16 * 4,) * 6


def test_scaled_rotary_positions_do_not_hide_the_cache(checkpoint) -> None:
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    manifest = read_manifest(checkpoint("phi3"))
    manifest = dataclasses.replace(manifest, config=manifest.config | {"rope_parameters": scaling})
    assert manifest.kv[0].elements_per_token == 2 * 2 * 16


def test_a_file_cut_after_it_was_described_is_named(checkpoint, tmp_path: Path) -> None:
    directory = shutil.copytree(checkpoint("llama"), tmp_path / "model")
    manifest = read_manifest(directory)
    os.truncate(directory / "model.safetensors", 150_000)
    with pytest.raises(ModelError, match=r"model\.safetensors: ends inside tensor .*; fetch the model again"):
        load_stage(manifest, 0, 6, is_head=False, dtype="float32")


def test_a_tensor_that_the_family_needs_is_missed_by_name(checkpoint) -> None:
    manifest = read_manifest(checkpoint("llama"))
    kept = tuple(t for t in manifest.tensors if t.name != "model.layers.3.mlp.up_proj.weight")
    lacking = dataclasses.replace(manifest, tensors=kept)
    with pytest.raises(ModelError, match=r"lacks or misshapes model\.layers\.3\.mlp\.up_proj\.weight"):
        load_stage(lacking, 2, 4, is_head=False, dtype="float32")


def test_shapes_that_the_configuration_contradicts_are_refused(checkpoint) -> None:
    manifest = read_manifest(checkpoint("llama"))
    other = dataclasses.replace(manifest, config=manifest.config | {"intermediate_size": 128})
    with pytest.raises(ModelError, match=r"fetch the model again|cannot be loaded"):
        load_stage(other, 0, 2, is_head=False, dtype="float32")


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 2), (3, 2), (0, 7)])
def test_a_range_outside_the_model_is_refused(checkpoint, start: int, end: int) -> None:
    with pytest.raises(ModelError, match="are not within its 6 blocks"):
        load_stage(read_manifest(checkpoint("llama")), start, end, is_head=False, dtype="float32")


def test_a_dtype_that_is_not_served_is_refused(checkpoint) -> None:
    with pytest.raises(ModelError, match="dtype 'int4' is not served; choose one of bfloat16"):
        load_stage(read_manifest(checkpoint("llama")), 0, 1, is_head=False, dtype="int4")


def test_every_served_family_is_known_to_transformers() -> None:
    from kafila_agent.model.families import causal_lm_class

    for family in FAMILIES:
        assert issubclass(causal_lm_class(family), torch.nn.Module)


def test_stages_are_loaded_beside_each_other(checkpoint) -> None:
    """A session may begin while what another was loading still loads; and the probe builds its blocks the same way."""
    manifest = read_manifest(checkpoint("llama", tied=True))

    def load(number: int) -> int:
        if number % 3 == 0:
            return random_stage(manifest.model_config, 1, torch.float32).end
        return load_stage(manifest, 0, 2, is_head=True, dtype="float32").end

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(load, range(12))) == [1, 2, 2] * 4


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists()
    or tuple(map(int, platform.release().split(".")[:2])) < (6, 1),
    reason="gathering pages takes Linux 6.1, made with large pages",
)
def test_weights_lie_in_large_pages() -> None:
    tensor = torch.ones(8 << 20, dtype=torch.uint8)

    def large_kib() -> int:
        is_it, found = False, 0
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if borders := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
                is_it = int(borders[1], 16) <= tensor.data_ptr() < int(borders[2], 16)
            elif is_it and line.startswith("AnonHugePages:"):
                found = int(line.split()[1])
        return found

    before = large_kib()
    use_large_pages([tensor])
    assert large_kib() - before >= 6 << 10
    assert bool((tensor == 1).all())
