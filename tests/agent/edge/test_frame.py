from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.frame import (
    Dtype,
    Frame,
    FrameError,
    Kind,
    StageTime,
    adopted_from,
    adoption_source,
    parse_frame,
)

HEADER_BYTES = 36

times = st.builds(StageTime, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))


@st.composite
def frames(draw) -> Frame:
    kind = draw(st.sampled_from(Kind))
    width = draw(st.integers(0, 9)) if kind is Kind.HIDDEN else 0
    dtype = {
        Kind.TOKENS: Dtype.INT32,
        Kind.HIDDEN: draw(st.sampled_from([Dtype.BFLOAT16, Dtype.FLOAT16, Dtype.FLOAT32])),
        Kind.RELEASE: Dtype.NONE,
        Kind.FAILED: Dtype.UINT8,
        Kind.ADOPT: Dtype.UINT8,
    }[kind]
    rows = draw(st.integers(0, 9))
    return Frame(
        kind,
        epoch=draw(st.integers(0, 2**32 - 1)),
        sequence=draw(st.integers(0, 2**64 - 1)),
        slot=draw(st.integers(0, 2**16 - 1)),
        position=draw(st.integers(0, 2**32 - 1)),
        rows=rows,
        dtype=dtype,
        width=width,
        fence=draw(st.integers(0, 2**32 - 1)),
        floor=draw(st.integers(0, 2**32 - 1)),
        rows_wanted=draw(st.integers(0, rows)),
        stage_times=tuple(draw(st.lists(times, max_size=4))),
        payload=bytes(rows * (width if kind is Kind.HIDDEN else 1) * dtype.nbytes),
    )


@given(frames())
def test_a_frame_comes_back_as_it_was(frame):
    parsed = parse_frame(frame.encode())
    assert dataclasses.replace(parsed, payload=bytes(parsed.payload)) == frame


@given(st.binary(max_size=200))
def test_garbage_is_a_frame_error_or_a_frame_that_encodes_to_itself(data):
    try:
        frame = parse_frame(data)
    except FrameError:
        return
    assert frame.encode() == data


@given(frames(), st.data())
def test_a_flipped_byte_never_raises_anything_else(frame, data):
    encoded = bytearray(frame.encode())
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        parse_frame(bytes(encoded))
    except FrameError:
        pass


def hidden(**changes) -> Frame:
    frame = Frame(
        Kind.HIDDEN,
        epoch=1,
        sequence=2,
        slot=3,
        position=4,
        rows=2,
        dtype=Dtype.BFLOAT16,
        width=3,
        payload=b"x" * 12,
    )
    return dataclasses.replace(frame, **changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"payload": b"x" * 11}, "payload of 11 bytes, 2 rows take 12"),
        ({"slot": 65536}, "out of range"),
        ({"rows_wanted": 3}, "3 rows wanted of 2"),
        ({"dtype": Dtype.INT32, "payload": b"x" * 24}, "HIDDEN frame of INT32"),
        ({"stage_times": (StageTime(1, 1),) * 65}, "65 stages in a frame"),
        ({"rows": 65535, "width": 65535}, "smaller chunks"),
    ],
)
def test_a_wrong_frame_is_not_encoded(changes, complaint):
    with pytest.raises(FrameError, match=complaint):
        hidden(**changes).encode()


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (0, 9, "unknown frame kind"),
        (1, 9, "unknown frame kind or dtype"),
        (1, 4, "HIDDEN frame of INT32"),
        (2, 1, "unknown frame flags"),
        (3, 65, "65 stages"),
        (3, 1, "its header says"),
        (23, 3, "its header says"),
    ],
)
def test_what_is_wrong_with_received_bytes_is_named(offset, value, complaint):
    data = bytearray(hidden().encode())
    data[offset] = value
    with pytest.raises(FrameError, match=complaint):
        parse_frame(bytes(data))


def test_the_payload_is_a_view_and_an_array_of_wider_elements_will_do():
    import array

    payload = array.array("f", [1.0, 2.0])
    data = hidden(dtype=Dtype.FLOAT32, rows=1, width=2, payload=memoryview(payload)).encode()
    parsed = parse_frame(data)
    assert parsed.payload.obj is data
    assert array.array("f", bytes(parsed.payload)) == payload
    assert len(data) == HEADER_BYTES + 8


def test_an_adoption_names_its_source():
    frame = Frame(Kind.ADOPT, 1, 2, 3, 512, **adopted_from(7, 2**63))
    assert adoption_source(parse_frame(frame.encode())) == (7, 2**63)
    with pytest.raises(FrameError, match="takes 10 bytes, here are 4"):
        adoption_source(dataclasses.replace(frame, rows=4, payload=b"four"))
