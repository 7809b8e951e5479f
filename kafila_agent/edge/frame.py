"""The frame that goes round the ring: one launch of one sequence, its rows and the stages' durations.

     0        1        2        3
    +--------+--------+--------+--------+
    | kind   | dtype  | flags  | stages |   stages: how many durations follow the header
    +--------+--------+--------+--------+
    |               epoch               |   number of the plan in force; a stale one is dropped
    +-----------------------------------+
    |               fence               |   per sequence: voids what a wrong draft put in flight
    +-----------------------------------+
    |             sequence              |
    |            (64 bits)              |
    +-----------------+-----------------+
    |      slot       |      rows       |   rows: tokens in this launch, at position ... position + rows - 1
    +-----------------+-----------------+
    |             position              |   always explicit, never derived from how full a cache is
    +-----------------------------------+
    |               floor               |   tokens before this position are settled: no crop goes below it
    +-----------------+-----------------+
    |   rows_wanted   |     width       |   trailing rows the head wants back; width: elements a row
    +-----------------+-----------------+
    |  stages x (compute_ns, queue_ns), each 64 bits, by each stage's own monotonic clock               |
    +---------------------------------------------------------------------------------------------------+
    |  payload: rows x width elements of dtype, rows token ids (INT32) or rows bytes of text (UINT8)    |
    +---------------------------------------------------------------------------------------------------+

All header integers are big-endian, all payloads little-endian. Absolute times never cross a machine.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("!BBBBIIQHHIIHH")
_DURATIONS = struct.Struct("!QQ")
_SOURCE = struct.Struct("<HQ")

MAX_STAGES = 64
MAX_PAYLOAD_BYTES = 256 << 20


class FrameError(ValueError):
    """Bytes that are not a frame."""


class Kind(enum.IntEnum):
    """What the payload is."""

    TOKENS = 1  # ids, engine -> the head's own stage; never on the wire
    HIDDEN = 2  # activations, stage -> next stage, and last stage -> head
    RELEASE = 3  # the sequence is over: every stage frees its slot; no payload
    FAILED = 4  # a stage could not run a frame of this sequence; goes on to the head; payload: UTF-8 text
    ADOPT = 5  # the sequence begins with what another left in a slot, up to position; payload: see ``adopted_from``


class Dtype(enum.IntEnum):
    """Element types on the wire: the compute dtype, unchanged."""

    NONE = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    FLOAT32 = 3
    INT32 = 4
    UINT8 = 5

    @property
    def nbytes(self) -> int:
        """Bytes an element."""
        return (0, 2, 2, 4, 4, 1)[self]


_DTYPES = {
    Kind.TOKENS: {Dtype.INT32},
    Kind.HIDDEN: {Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.FLOAT32},
    Kind.RELEASE: {Dtype.NONE},
    Kind.FAILED: {Dtype.UINT8},
    Kind.ADOPT: {Dtype.UINT8},
}


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage's share of a step, in ns of its own monotonic clock."""

    compute_ns: int
    queue_ns: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One launch. ``payload`` holds ``rows * width`` elements of ``dtype`` for HIDDEN, else ``rows``."""

    kind: Kind
    epoch: int
    sequence: int
    slot: int
    position: int
    rows: int
    dtype: Dtype = Dtype.NONE
    width: int = 0
    fence: int = 0
    rows_wanted: int = 0
    stage_times: tuple[StageTime, ...] = ()
    payload: bytes | memoryview = b""
    floor: int = 0

    def encode(self) -> bytes:
        """The bytes of this frame. Raises FrameError for a field out of range or a payload of wrong size."""
        _check(self.kind, self.dtype, len(self.stage_times), self.rows, self.rows_wanted)
        expected = _payload_bytes(self.kind, self.dtype, self.rows, self.width)
        payload = memoryview(self.payload)
        if payload.nbytes != expected:
            raise FrameError(f"payload of {payload.nbytes} bytes, {self.rows} rows take {expected}")
        try:
            header = _HEADER.pack(
                self.kind,
                self.dtype,
                0,
                len(self.stage_times),
                self.epoch,
                self.fence,
                self.sequence,
                self.slot,
                self.rows,
                self.position,
                self.floor,
                self.rows_wanted,
                self.width,
            )
            times = b"".join(_DURATIONS.pack(t.compute_ns, t.queue_ns) for t in self.stage_times)
        except struct.error as error:
            raise FrameError(f"frame field out of range: {error}") from error
        return b"".join((header, times, payload))


def parse_frame(data: bytes | memoryview) -> Frame:
    """The frame in ``data``; its payload is a view, not a copy. Raises FrameError naming what is wrong."""
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise FrameError(f"frame of {len(view)} bytes is shorter than its {_HEADER.size}-byte header")
    (kind, dtype, flags, stages, epoch, fence, sequence, slot, rows, position, floor, wanted, width) = (
        _HEADER.unpack_from(view)
    )
    try:
        kind, dtype = Kind(kind), Dtype(dtype)
    except ValueError as error:
        raise FrameError(f"unknown frame kind or dtype: {error}") from None
    if flags:
        raise FrameError(f"unknown frame flags {flags:#x}")
    _check(kind, dtype, stages, rows, wanted)
    start = _HEADER.size + stages * _DURATIONS.size
    expected = _payload_bytes(kind, dtype, rows, width)
    if len(view) != start + expected:
        raise FrameError(f"frame of {len(view)} bytes, its header says {start + expected}")
    times = tuple(
        StageTime(*_DURATIONS.unpack_from(view, _HEADER.size + i * _DURATIONS.size)) for i in range(stages)
    )
    return Frame(
        kind, epoch, sequence, slot, position, rows, dtype, width, fence, wanted, times, view[start:], floor
    )


def adopted_from(slot: int, sequence: int) -> dict[str, Any]:
    """The fields of an ADOPT frame that say whose tokens, and in which slot."""
    return {"dtype": Dtype.UINT8, "rows": _SOURCE.size, "payload": _SOURCE.pack(slot, sequence)}


def adoption_source(frame: Frame) -> tuple[int, int]:
    """(slot, sequence) of an ADOPT frame. Raises FrameError."""
    if len(frame.payload) != _SOURCE.size:
        raise FrameError(f"an adoption's source takes {_SOURCE.size} bytes, here are {len(frame.payload)}")
    slot, sequence = _SOURCE.unpack(frame.payload)
    return slot, sequence


def _check(kind: Kind, dtype: Dtype, stages: int, rows: int, wanted: int) -> None:
    if dtype not in _DTYPES[kind]:
        raise FrameError(f"{kind.name} frame of {dtype.name}")
    if stages > MAX_STAGES:
        raise FrameError(f"{stages} stages in a frame, at most {MAX_STAGES}")
    if wanted > rows:
        raise FrameError(f"{wanted} rows wanted of {rows}")


def _payload_bytes(kind: Kind, dtype: Dtype, rows: int, width: int) -> int:
    size = rows * (width if kind is Kind.HIDDEN else 1) * dtype.nbytes
    if size > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload of {size} bytes, at most {MAX_PAYLOAD_BYTES}: use smaller chunks")
    return size
