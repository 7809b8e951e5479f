from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.edge.messages import HEADER_BYTES, MessageError, MessageKind, MessageReader, message_header

messages = st.lists(st.tuples(st.sampled_from(MessageKind), st.binary(max_size=50)), max_size=8)


def encode(each: tuple[MessageKind, bytes]) -> bytes:
    return message_header(each[0], len(each[1])) + each[1]


@given(messages, st.lists(st.integers(1, 20)))
def test_messages_come_out_whole_however_the_stream_is_cut(sent, cuts):
    stream = b"".join(encode(each) for each in sent)
    reader, received = MessageReader(50), []
    for cut in [*cuts, len(stream)]:
        received += [(kind, bytes(body)) for kind, body in reader.feed(stream[:cut])]
        stream = stream[cut:]
    assert received == sent


@given(st.binary(max_size=300))
def test_garbage_is_messages_or_a_message_error(data):
    reader = MessageReader(64)
    try:
        for kind, body in reader.feed(data):
            assert isinstance(kind, MessageKind)
            assert len(body) <= 64
    except MessageError:
        pass


def test_a_length_over_the_limit_is_refused_before_there_is_room_for_it():
    with pytest.raises(MessageError, match="4294967295 bytes where 1024"):
        list(MessageReader(1024).feed(bytes([MessageKind.FRAME]) + b"\xff" * 4))


def test_an_unknown_kind_is_refused():
    with pytest.raises(MessageError, match="unknown message kind 77"):
        list(MessageReader(1024).feed(bytes([77]) + bytes(HEADER_BYTES)))


def test_a_raised_limit_holds_for_the_next_message_of_the_same_piece():
    reader, received = MessageReader(4), []
    for kind, body in reader.feed(
        encode((MessageKind.ACCEPTED, b"")) + encode((MessageKind.FRAME, b"longer"))
    ):
        received.append((kind, bytes(body)))
        reader.limit = 100
    assert received == [(MessageKind.ACCEPTED, b""), (MessageKind.FRAME, b"longer")]


def test_each_message_has_memory_of_its_own():
    data = bytearray(encode((MessageKind.FRAME, b"abc")))
    ((_, body),) = MessageReader(10).feed(data)
    data[-1] = 0
    assert bytes(body) == b"abc"
