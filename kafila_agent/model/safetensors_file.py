"""The tensor tables of safetensors checkpoints, bounds-checked before anything is believed.

A file is an 8-byte little-endian header length, a JSON header ``{name: {dtype, shape, data_offsets}}``
and the data (https://github.com/huggingface/safetensors#format). Only headers are read here.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

from kafila_agent.model.errors import ModelError
from kafila_agent.model.tensors import TensorEntry

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 8
_MAX_NUMBER = 1 << 62
_ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_AGAIN = "fetch the model again"


def read_directory(directory: Path) -> tuple[TensorEntry, ...]:
    """The table of a checkpoint directory: one ``model.safetensors``, or shards with an index.

    Raises ModelError when a file is missing, cut short, inconsistent, or when there are only pickled weights.
    """
    index = directory / INDEX_NAME
    if not index.exists():
        single = directory / SINGLE_NAME
        if not single.exists():
            raise ModelError(_why_no_weights(directory))
        return read_table(single)
    names = _weight_map(index)
    tables = {
        file: {t.name: t for t in read_table(_shard(directory, file))} for file in sorted(set(names.values()))
    }
    for name, file in names.items():
        if name not in tables[file]:
            raise ModelError(f"{directory / file}: lacks tensor {name} that the index promises; {_AGAIN}")
    return tuple(tables[file][name] for name, file in names.items())


def shard_names(directory: Path) -> list[str]:
    """The files that a directory's index names. Raises ModelError if the index cannot be read."""
    return sorted(set(_weight_map(directory / INDEX_NAME).values()))


def read_table(file: Path) -> tuple[TensorEntry, ...]:
    """The tensors of one file. Raises ModelError unless each lies inside it with the size it claims."""
    header, data_start, data_bytes = _read_header(file)
    return tuple(
        _entry(file, name, fields, data_start, data_bytes)
        for name, fields in header.items()
        if name != "__metadata__"
    )


def _read_header(file: Path) -> tuple[dict[str, Any], int, int]:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{file}: not a whole safetensors file ({size} bytes); {_AGAIN}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"{file}: cannot read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: its header is not JSON; {_AGAIN}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{file}: its header is not a table; {_AGAIN}")
    return header, 8 + length, size - 8 - length


def _entry(file: Path, name: str, fields: Any, data_start: int, data_bytes: int) -> TensorEntry:
    try:
        encoding, shape = str(fields["dtype"]), tuple(_whole(n) for n in fields["shape"])
        begin, end = (_whole(n) for n in fields["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise ModelError(f"{file}: header entry {name} is malformed; {_AGAIN}") from error
    if encoding not in _ITEM_BYTES:
        raise ModelError(
            f"{file}: {name} is stored as {encoding}; take a bfloat16 or float16 checkpoint instead"
        )
    if not 0 <= begin <= end <= data_bytes:
        raise ModelError(f"{file}: {name} lies beyond the end of the file; {_AGAIN}")
    if (
        min(shape, default=1) < 0
        or len(shape) > MAX_DIMENSIONS
        or math.prod(shape) * _ITEM_BYTES[encoding] != end - begin
    ):
        raise ModelError(
            f"{file}: {name} has {end - begin} bytes, not what its shape {shape} needs; {_AGAIN}"
        )
    return TensorEntry(name, shape, encoding, file, data_start + begin, end - begin, name)


def _whole(number: Any) -> int:
    if type(number) is not int or abs(number) > _MAX_NUMBER:
        raise ValueError(number)
    return number


def _weight_map(index: Path) -> dict[str, str]:
    try:
        if index.stat().st_size > MAX_HEADER_BYTES:
            raise ModelError(f"{index}: too large for a shard index; {_AGAIN}")
        names = json.loads(index.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{index}: not a readable shard index; {_AGAIN}") from error
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise ModelError(f"{index}: its weight_map is not a table of file names; {_AGAIN}")
    return names


def _shard(directory: Path, file: str) -> Path:
    """A shard's path; an index may not point outside its directory."""
    if Path(file).name != file:
        raise ModelError(f"{directory / INDEX_NAME}: shard {file!r} is not a plain file name; {_AGAIN}")
    return directory / file


def _why_no_weights(directory: Path) -> str:
    pickled = sorted(p.name for p in directory.glob("*.bin")) + sorted(
        p.name for p in directory.glob("*.pt*")
    )
    if pickled:
        return f"{directory / pickled[0]}: pickled weights can run code; convert them to safetensors"
    return f"{directory}: no {SINGLE_NAME} and no {INDEX_NAME}; give a model directory or a GGUF file"
