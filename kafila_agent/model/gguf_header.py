"""The header of a GGUF file, every count held against a bound and the file's end before it is believed.

    "GGUF"  version u32  tensors u64  values u64
    each value:   key (text)  type u32  value
    each tensor:  name (text)  dimensions u32  each u64, fastest first  type u32  offset u64 from the data's start
    a text: bytes u64, UTF-8    an array: element type u32  count u64  elements

All little-endian. Source: ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

# What no model in use comes near. A text may be a chat template; an array of numbers, the vocabulary's scores.
MAX_VALUES = 1 << 12
MAX_TENSORS = 1 << 17
MAX_TEXT_BYTES = 1 << 22
MAX_NUMBERS = 1 << 20
MAX_TEXTS = 1 << 22
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 16

_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


class Stored(NamedTuple):
    """One row of the file's own table; ``shape`` in torch order, ``offset`` from the start of the data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


def read_header(file: Path) -> tuple[dict[str, Any], dict[str, Stored], int]:
    """(metadata, table, start of the data); of an array of texts, the metadata holds how many there are.

    Raises OSError, or ValueError or struct.error for what is no header.
    """
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        reader = _Reader(blob)
        if blob[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        reader.position = 4
        version, tensors, values = reader.numbers("IQQ")
        if version not in _VERSIONS:
            raise ValueError(f"version {version}, not {' or '.join(map(str, _VERSIONS))}")
        reader.bound(values, MAX_VALUES, "metadata values")
        reader.bound(tensors, MAX_TENSORS, "tensors")
        metadata = dict(reader.value() for _ in range(values))
        rows = [reader.row() for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
        raise ValueError(f"alignment {alignment}")
    table = {row.name: row for row in rows}
    if len(table) < len(rows):
        raise ValueError("two tensors have one name")
    return metadata, table, -(-reader.position // alignment) * alignment


class _Reader:
    """Takes one thing after the other off the mapped file."""

    def __init__(self, blob: mmap.mmap) -> None:
        self.position = 0
        self._blob = blob

    @staticmethod
    def bound(count: int, most: int, what: str) -> None:
        """Raise ValueError if there are more than can be."""
        if count > most:
            raise ValueError(f"{count} {what}")

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """What ``layout`` (struct, little-endian) says; struct.error beyond the end."""
        values = struct.unpack_from(f"<{layout}", self._blob, self.position)
        self.position += struct.calcsize(f"<{layout}")
        return values

    def text(self) -> str:
        """A text of bounded length."""
        (length,) = self.numbers("Q")
        self.bound(length, MAX_TEXT_BYTES, "bytes of text")
        data = self._blob[self.position : self.position + length]
        if len(data) < length:
            raise ValueError("a text beyond the end")
        self.position += length
        return data.decode()

    def value(self) -> tuple[str, Any]:
        """A metadata key with its value."""
        key = self.text()
        (kind,) = self.numbers("I")
        if kind in _NUMBERS:
            return key, self.numbers(_NUMBERS[kind])[0]
        if kind == _TEXT:
            return key, self.text()
        if kind == _ARRAY:
            return key, self._array()
        raise ValueError(f"{key} is of unknown type {kind}")

    def row(self) -> Stored:
        """One row of the tensor table."""
        name = self.text()
        (dimensions,) = self.numbers("I")
        self.bound(dimensions, MAX_DIMENSIONS, f"dimensions of {name}")
        shape = self.numbers(f"{dimensions}Q")
        return Stored(name, shape[::-1], *self.numbers("IQ"))

    def _array(self) -> Any:
        kind, count = self.numbers("IQ")
        if kind in _NUMBERS:
            self.bound(count, MAX_NUMBERS, "numbers in an array")
            return list(self.numbers(f"{count}{_NUMBERS[kind]}"))
        if kind != _TEXT:
            raise ValueError(f"an array of type {kind}")
        self.bound(count, MAX_TEXTS, "texts in an array")
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self._blob, self.position)
            self.position += 8 + length
        return count
