from __future__ import annotations

import contextlib
import functools
import math
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
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


@pytest.mark.parametrize("encoding", ["Q8_0", "Q5_0", "BF16"])
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


def _llama3_factors() -> list[float]:
    """What llama.cpp's converter stores for the scaling below (its set_gguf_parameters of Llama)."""
    factors = []
    for frequency in 10000.0 ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16):
        wavelength = 2 * math.pi / float(frequency)
        smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
        low, high = 64 / 1.0, 64 / 4.0
        factors.append(
            1.0 if wavelength < high else 8.0 if wavelength > low else 1 / ((1 - smooth) / 8.0 + smooth)
        )
    return factors


_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("family", "parameters", "metadata", "rope_factors"),
    [
        ("llama", _LLAMA3, {}, _llama3_factors()),
        ("llama", _LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, None),
        (
            "qwen3",
            _YARN,
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
            None,
        ),
        (
            "gemma3_text",
            {
                "full_attention": _LINEAR | {"rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            None,
        ),
    ],
    ids=["llama3", "linear", "yarn", "gemma3"],
)
def test_scaled_positions_are_those_of_the_checkpoint(
    checkpoint, tmp_path: Path, family: str, parameters: dict, metadata: dict, rope_factors
) -> None:
    from tests.checkpoints import make_checkpoint
    from tests.gguf_files import make_gguf

    directory = make_checkpoint(tmp_path / "model", family, tied=True, rope_parameters=parameters)
    plain = checkpoint(family, tied=True)
    file = make_gguf(tmp_path / "scaled.gguf", directory, metadata=metadata, rope_factors=rope_factors)
    scaled, expected, unscaled = (_logits(path) for path in (file, directory, plain))
    torch.testing.assert_close(scaled, expected, rtol=1e-4, atol=1e-4)
    assert (scaled - unscaled).abs().max() > 0.01  # the scaling is there to be seen


def _logits(path: Path) -> torch.Tensor:
    stage = load_stage(read_manifest(path), 0, 6, is_head=True, dtype="float32")
    with torch.inference_mode():
        return stage.logits(
            stage.forward(stage.embed(torch.arange(3, 43)), 0, DynamicCache(config=stage.config))
        )


def test_another_scaling_is_refused_by_name(checkpoint, tmp_path: Path) -> None:
    from tests.gguf_files import make_gguf

    metadata = {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}
    file = make_gguf(tmp_path / "odd.gguf", checkpoint("qwen2", tied=True), metadata=metadata)
    with pytest.raises(ModelError, match=r"odd\.gguf: scales positions as 'longrope'.*take a safetensors"):
        read_manifest(file)


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


@pytest.mark.parametrize("field", ["attention.head_count", "attention.head_count_kv", "embedding_length"])
def test_a_header_that_makes_no_model_is_refused(gguf, tmp_path: Path, field: str) -> None:
    """Well formed, and nonsense: the family's own arithmetic would divide by it."""
    data = bytearray(gguf("llama").read_bytes())
    key = f"llama.{field}".encode()
    value = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    assert struct.unpack_from("<I", data, value) == (4,)  # a 32-bit number follows
    struct.pack_into("<I", data, value + 4, 0)
    file = tmp_path / "zero.gguf"
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"fetch the (model|file) again"):
        describe_model(read_manifest(file), "float32", context_tokens=16, concurrency=1)
