"""One row of a checkpoint's tensor table, whatever the file format."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kafila_agent.model.errors import ModelError

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies and how it is stored.

    ``name`` is the checkpoint's name in the family's own scheme (GGUF names are translated), ``shape``
    is in torch order, ``encoding`` is the stored element type (``BF16``, ``Q4_1``, ...), ``offset``
    counts from the file's start.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    file: Path
    offset: int
    nbytes: int
    stored_name: str = ""

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def module(self) -> str:
        """The module whose weight it is; empty if it is no module's ``weight``."""
        return self.name.removesuffix(".weight") if self.name.endswith(".weight") else ""

    @property
    def block(self) -> int | None:
        """Index of the block it belongs to, or None for embedding, final norm and LM head."""
        match = _BLOCK.search(self.name)
        return int(match[1]) if match else None


def read_bytes(entry: TensorEntry, into: memoryview) -> None:
    """Fill ``into`` (``entry.nbytes`` long). Raises ModelError if the file is gone or cut short."""
    try:
        descriptor = os.open(entry.file, os.O_RDONLY)
    except OSError as error:
        raise ModelError(f"{entry.file}: cannot open ({error.strerror}); fetch the model again") from error
    try:
        done = 0
        while done < entry.nbytes:
            count = os.preadv(descriptor, [into[done:]], entry.offset + done)
            if count == 0:
                raise ModelError(f"{entry.file}: ends inside tensor {entry.name}; fetch the model again")
            done += count
    except OSError as error:
        raise ModelError(f"{entry.file}: cannot read tensor {entry.name} ({error.strerror})") from error
    finally:
        os.close(descriptor)
