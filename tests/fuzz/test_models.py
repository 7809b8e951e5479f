"""Checkpoints made to harm: headers that lie are refused before anything is allocated, read or computed for them."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc

import pytest
from hypothesis import given

from kafila_agent.model.errors import ModelError
from kafila_agent.model.facts import describe_model
from kafila_agent.model.manifest import read_manifest
from kafila_agent.model.safetensors_file import read_table
from tests.fuzz.values import JSON, mutated, spoilt
from tests.gguf_files import make_gguf

LARGEST_ALLOCATION_BYTES = 64 << 20


@pytest.fixture(scope="module")
def llama(checkpoint, tmp_path_factory):
    """A directory of safetensors that each example may spoil."""
    directory = tmp_path_factory.mktemp("spoilt") / "llama"
    shutil.copytree(checkpoint("llama"), directory)
    return directory


@pytest.fixture(scope="module")
def gguf_bytes(checkpoint, tmp_path_factory):
    return make_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", checkpoint("llama")).read_bytes()


def describe(path) -> None:
    """All that an agent does with a model before it loads a weight."""
    manifest = read_manifest(path)
    describe_model(manifest, "float32", context_tokens=64, concurrency=2)


def header_of(file) -> dict:
    data = file.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def write_table(file, header: object) -> None:
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4096))


def test_a_safetensors_table_is_read_or_refused(llama, tmp_path):
    file = tmp_path / "t.safetensors"
    first = dict(list(header_of(llama / "model.safetensors").items())[:2])

    @given(JSON | spoilt(first))
    def run(header):
        write_table(file, header)
        try:
            table = read_table(file)
        except ModelError:
            return
        size = file.stat().st_size
        assert all(0 <= entry.offset <= entry.offset + entry.nbytes <= size for entry in table)

    run()


def test_a_configuration_is_taken_or_refused(llama):
    config = json.loads((llama / "config.json").read_text())

    @given(spoilt(config))
    def run(document):
        (llama / "config.json").write_text(json.dumps(document))
        try:
            describe(llama)
        except ModelError:
            pass

    run()


def test_a_gguf_file_is_read_or_refused(gguf_bytes, tmp_path):
    file = tmp_path / "m.gguf"
    head, tail = gguf_bytes[:6000], gguf_bytes[6000:]

    @given(mutated([head]))
    def run(data):
        file.write_bytes(data + tail)
        try:
            describe(file)
        except ModelError:
            pass

    run()


def gguf_header(values: bytes, count: int, tensors: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + values


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


ARCHITECTURE = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")


@pytest.mark.parametrize(
    "data",
    [
        gguf_header(b"", 2**63),
        gguf_header(struct.pack("<Q", 2**63), 1),
        gguf_header(text(b"k") + struct.pack("<IIQ", 9, 4, 2**60), 1),  # an array of 2^60 numbers
        gguf_header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**60), 1),  # of as many texts
        gguf_header(ARCHITECTURE, 1, 2**63),
        gguf_header(ARCHITECTURE + text(b"t") + struct.pack("<I", 2**31), 1, 1),  # of as many dimensions
        # A table as long as the file and numbers that grow with every dimension:
        gguf_header(ARCHITECTURE + text(b"t") + struct.pack("<I", 10**6) + b"\xff" * (8 * 10**6 + 12), 1, 1),
        # Numbers in a header beyond reason, all within the file:
        gguf_header(text(b"k") + struct.pack("<IIQ", 9, 0, 100 << 20) + bytes(100 << 20), 1),
    ],
    ids=["values", "text", "numbers", "texts", "tensors", "dimensions", "shape", "header"],
)
@pytest.mark.timeout(20)
def test_a_gguf_header_that_lies_allocates_nothing(tmp_path, data):
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    refused_in_little_memory(file)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**63] * 4, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**62] * 50_000, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 2**63]},
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [True, 5]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
    ],
)
@pytest.mark.timeout(20)
def test_a_safetensors_header_that_lies_allocates_nothing(tmp_path, entry):
    write_table(tmp_path / "model.safetensors", {"model.embed_tokens.weight": entry})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    refused_in_little_memory(tmp_path)


def refused_in_little_memory(path) -> None:
    tracemalloc.start()
    with pytest.raises(ModelError):
        read_manifest(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < LARGEST_ALLOCATION_BYTES
