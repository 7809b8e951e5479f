from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from kafila_agent.model.blocks import load_stage
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import ModelError, read_manifest

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text")


@pytest.fixture(scope="session")
def gguf(checkpoint, tmp_path_factory) -> Callable[..., Path]:
    """``gguf(family, encoding, tied=True) -> file``, each written once."""
    from tests.gguf_files import make_gguf

    @functools.cache
    def make(family: str, encoding: str = "F32", *, tied: bool = True) -> Path:
        file = tmp_path_factory.mktemp(family) / f"{family}.gguf"
        return make_gguf(file, checkpoint(family, tied=tied), encoding)

    return make


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_values_are_those_of_the_checkpoint(checkpoint, gguf, family: str, tied: bool) -> None:
    from_gguf = load_stage(read_manifest(gguf(family, tied=tied)), 2, 5, is_head=True, dtype="float32")
    original = load_stage(read_manifest(checkpoint(family, tied=tied)), 2, 5, is_head=True, dtype="float32")
    ids = torch.arange(3, 9)
    with torch.inference_mode():
        assert torch.equal(from_gguf.embed(ids), original.embed(ids))
        assert from_gguf.loaded_bytes == original.loaded_bytes
        for name, tensor in original._body.state_dict().items():
            torch.testing.assert_close(from_gguf._body.state_dict()[name], tensor, rtol=0, atol=2e-7)


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_1", "BF16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_transformers_own_loading(gguf, family: str, encoding: str) -> None:
    file = gguf(family, encoding)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=skeleton)["tensors"]
    stage = load_stage(read_manifest(file), 0, 6, is_head=True, dtype="bfloat16")
    ours = {f"model.{name}": tensor for name, tensor in stage._body.state_dict().items()}
    ours |= stage._tail.state_dict()
    assert len(loaded) == len(ours) - 1  # the LM head is the embedding
    for name, tensor in loaded.items():
        assert torch.equal(ours[name], tensor.to(torch.bfloat16)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_computes_what_the_checkpoints_does(checkpoint, gguf, family: str) -> None:
    ours = read_manifest(gguf(family)).model_config.to_dict()
    original = read_manifest(checkpoint(family, tied=True)).model_config.to_dict()
    incidental = {
        "_name_or_path", "architectures", "dtype", "transformers_version", "bos_token_id", "eos_token_id",
        "pad_token_id", "initializer_range", "max_window_layers", "use_sliding_window",
    }  # fmt: skip
    differing = {key for key in original if ours.get(key) != original[key]} - incidental
    assert not {key: (ours.get(key), original[key]) for key in differing}


def test_smollm2_is_described_by_its_headers_and_loads_a_range(smollm2: Path) -> None:
    manifest = read_manifest(smollm2)
    facts = describe_model(manifest, "bfloat16", context_tokens=512, concurrency=2)
    assert (facts.blocks, facts.block_bytes[0]) == (30, 7080192)
    assert facts.head_bytes == facts.head_read_bytes == (49152 * 576 + 576) * 2
    assert facts.kv_bytes_per_token_per_block[0] == 2 * 3 * 64 * 2
    assert load_stage(manifest, 4, 6, is_head=False, dtype="bfloat16").loaded_bytes == 2 * 7080192


@pytest.mark.parametrize("cut", [3, 30, 2000, -100])
def test_a_cut_file_is_named(gguf, tmp_path: Path, cut: int) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(gguf("llama").read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"short\.gguf.*fetch the file again"):
        read_manifest(short)


@pytest.mark.parametrize("offset", range(4, 400, 17))
def test_a_corrupt_header_is_an_error_and_no_crash(gguf, tmp_path: Path, offset: int) -> None:
    broken = bytearray(gguf("llama").read_bytes())
    broken[offset : offset + 8] = b"\xff" * 8
    file = tmp_path / "broken.gguf"
    file.write_bytes(broken)
    with contextlib.suppress(ModelError):  # some fields do not matter, and the file is read
        read_manifest(file)


def test_other_architectures_are_refused_by_name(gguf, tmp_path: Path) -> None:
    file = tmp_path / "other.gguf"
    file.write_bytes(gguf("llama").read_bytes().replace(b"llama", b"bloom"))
    with pytest.raises(ModelError, match="architecture 'bloom' is not served; choose one of"):
        read_manifest(file)
