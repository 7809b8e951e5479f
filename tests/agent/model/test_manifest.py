from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kafila_agent.model.manifest import ModelError, read_manifest

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def single(checkpoint, tmp_path: Path) -> Path:
    """A checkpoint in one file, the test's own to break."""
    return shutil.copytree(checkpoint("llama"), tmp_path / "single")


@pytest.fixture
def sharded(checkpoint, tmp_path: Path) -> Path:
    """A checkpoint in several shards, the test's own to break."""
    return shutil.copytree(checkpoint("llama", shard_bytes=200_000), tmp_path / "sharded")


def _rewrite_header(file: Path, change: Callable[[dict], object]) -> None:
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _change_json(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_manifest_of_one_file_and_of_shards_is_the_same_table(single: Path, sharded: Path) -> None:
    one, many = read_manifest(single), read_manifest(sharded)
    assert one.family == "llama"
    assert one.blocks == 6
    assert len({entry.file for entry in many.tensors}) > 1
    assert {(t.name, t.shape, t.encoding) for t in one.tensors} == {
        (t.name, t.shape, t.encoding) for t in many.tensors
    }


def test_tensors_beyond_the_last_block_and_old_buffers_are_no_part_of_serving(single: Path) -> None:
    _change_json(single / "config.json", num_hidden_layers=4)
    manifest = read_manifest(single)
    assert {t.block for t in manifest.tensors} == {None, 0, 1, 2, 3}


@pytest.mark.parametrize("size", [0, 5, 8, 100, 5000])
def test_a_half_written_file_is_named(single: Path, size: int) -> None:
    os.truncate(single / SINGLE, size)
    with pytest.raises(ModelError, match=r"model\.safetensors: .*fetch the model again"):
        read_manifest(single)


@pytest.mark.parametrize("length", [0, 1, 1 << 40, (1 << 64) - 1])
def test_a_header_length_is_checked_before_it_is_believed(single: Path, length: int) -> None:
    data = (single / SINGLE).read_bytes()
    (single / SINGLE).write_bytes(struct.pack("<Q", length) + data[8:])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        read_manifest(single)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"data_offsets": [0, 1 << 50]}, "lies beyond the end"),
        ({"data_offsets": [-4, 4]}, "lies beyond the end"),
        ({"data_offsets": [8, 4]}, "lies beyond the end"),
        ({"data_offsets": [0]}, "is malformed"),
        ({"data_offsets": None}, "is malformed"),
        ({"shape": [1 << 40, 1 << 40]}, "not what its shape"),
        ({"shape": [-1, -64]}, "not what its shape"),
        ({"shape": "ab"}, "is malformed"),
        ({"dtype": "F8_E4M3"}, "stored as F8_E4M3; take a bfloat16"),
    ],
)
def test_a_false_header_entry_is_named(single: Path, fields: dict, complaint: str) -> None:
    _rewrite_header(single / SINGLE, lambda header: header["model.norm.weight"].update(fields))
    with pytest.raises(ModelError, match=rf"model\.norm\.weight.*{complaint}"):
        read_manifest(single)


def test_a_header_that_is_not_json_is_named(single: Path) -> None:
    data = bytearray((single / SINGLE).read_bytes())
    data[8:20] = b"\xff" * 12
    (single / SINGLE).write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors: its header is not JSON"):
        read_manifest(single)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=rf"{shard.name}: cannot read \(No such file.*fetch the model again"):
        read_manifest(sharded)


def test_a_shard_that_lacks_a_tensor_of_the_index_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*"))[0]
    _rewrite_header(shard, lambda header: header.pop(next(iter(header.keys() - {"__metadata__"}))))
    with pytest.raises(ModelError, match=rf"{shard.name}: lacks tensor"):
        read_manifest(sharded)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_may_not_point_elsewhere(sharded: Path, file: str) -> None:
    _change_json(sharded / INDEX, weight_map={"model.norm.weight": file})
    with pytest.raises(ModelError, match="is not a plain file name"):
        read_manifest(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}', "[" * 100_000])
def test_a_broken_index_is_named(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    with pytest.raises(ModelError, match=r"index\.json: .*fetch the model again"):
        read_manifest(sharded)


def test_pickled_weights_are_refused_by_name(single: Path) -> None:
    (single / SINGLE).rename(single / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickled weights can run code; convert"):
        read_manifest(single)


def test_a_family_that_is_not_served_is_refused_by_name(single: Path) -> None:
    _change_json(single / "config.json", model_type="mamba")
    with pytest.raises(ModelError, match=r"family 'mamba' is not served; choose a model of: .*llama"):
        read_manifest(single)


def test_packed_weights_are_refused_by_name(single: Path) -> None:
    _change_json(single / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelError, match="packed as gptq"):
        read_manifest(single)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"model_type": 3}', '{"model_type": "llama"}', "[" * 100_000]
)
def test_a_broken_configuration_is_named(single: Path, text: str) -> None:
    (single / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_manifest(single)


def test_a_checkpoint_without_one_of_its_blocks_is_named(single: Path) -> None:
    _change_json(single / "config.json", num_hidden_layers=9)
    with pytest.raises(ModelError, match="no tensor of block 6 of 9"):
        read_manifest(single)


def test_nothing_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither a model directory nor"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(ModelError, match="give a whole model directory"):
        read_manifest(tmp_path)
