from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_proto import relay, stun
from kafila_proto.relay import RelayKind

KEY, CIRCUIT = b"k" * 32, b"circuit1"
BINDINGS = tuple(kind for kind in RelayKind if kind is not RelayKind.DATA)
TOKENS = st.binary(min_size=relay.TOKEN_BYTES, max_size=relay.TOKEN_BYTES)


@given(st.sampled_from(BINDINGS), st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1), TOKENS)
def test_a_binding_comes_back_as_it_was(kind, circuit_id, counter, token):
    data = relay.encode_binding(kind, circuit_id, counter, KEY, token)
    binding = relay.parse_binding(data)
    assert (binding.kind, binding.circuit_id, binding.counter) == (kind, circuit_id, counter)
    assert binding.token == token
    assert binding.is_authentic(KEY)
    assert not binding.is_authentic(b"x" * 32)


@given(st.integers(0, 43), st.integers(1, 255))
def test_no_byte_of_a_binding_can_be_changed(position, flip):
    data = bytearray(relay.encode_binding(RelayKind.BIND, CIRCUIT, 1, KEY))
    data[position] ^= flip
    binding = relay.parse_binding(bytes(data))
    assert binding is None or not binding.is_authentic(KEY)


@given(st.binary(max_size=100))
def test_garbage_is_no_binding_under_our_key(data):
    for each in (data, relay.MAGIC + data):
        binding = relay.parse_binding(each)
        assert binding is None or not binding.is_authentic(KEY)


def test_data_is_no_binding_and_carries_its_circuit():
    data = relay.data_header(CIRCUIT) + b"payload"
    assert relay.is_relay(data)
    assert data[4 : relay.HEADER_BYTES] == CIRCUIT
    assert relay.parse_binding(relay.data_header(CIRCUIT) + bytes(32)) is None


@pytest.mark.parametrize("data", [b"", relay.MAGIC, relay.data_header(CIRCUIT)[:-1]])
def test_what_is_shorter_than_a_header_is_no_relay_datagram(data):
    assert not relay.is_relay(data)


def test_the_magic_begins_neither_stun_nor_quic():
    first = relay.MAGIC[0]
    assert first & 0xC0 == 0x80
    assert not stun.is_stun(relay.data_header(CIRCUIT) + bytes(20))
