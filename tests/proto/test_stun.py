from __future__ import annotations

import pytest
from aioice.stun import Class, Method
from hypothesis import given
from hypothesis import strategies as st

from kafila_proto import stun

ports = st.integers(0, 65535)
hosts = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)

# RFC 5769 section 2.2: a server's answer, mapped address 192.0.2.1 port 32853.
RFC_5769_RESPONSE = bytes.fromhex(
    "0101003c2112a442b7e7a701bc34d686fa87dfae8022000b7465737420766563746f7220002000080001a147e112a643"
    "000800142b91f599fd9e90c38c7489f92af9ba53f06be7d780280004c07d4c96"
)


def test_the_published_answer_is_read():
    assert stun.mapped_address(stun.parse_stun(RFC_5769_RESPONSE)) == ("192.0.2.1", 32853)


@given(hosts, ports)
def test_a_request_is_answered_with_where_it_came_from(host, port):
    data, transaction = stun.encode_request()
    request = stun.parse_stun(data)
    assert stun.is_request(request)
    assert stun.requested_change(request) is None
    response = stun.parse_stun(stun.encode_response(request, (host, port)))
    assert response.transaction_id == transaction
    assert stun.mapped_address(response) == stun.plain_address((host, port))


def test_a_request_may_ask_for_the_other_port():
    data, _ = stun.encode_request(stun.CHANGE_PORT)
    assert stun.requested_change(stun.parse_stun(data)) == stun.CHANGE_PORT


def test_only_a_success_tells_an_address():
    data, _ = stun.encode_request()
    request = stun.parse_stun(data)
    error = stun.parse_stun(stun.encode_unknown_attribute(request))
    assert (error.message_method, error.message_class) == (Method.BINDING, Class.ERROR)
    assert error.error_code == 420
    assert stun.mapped_address(error) is None
    assert stun.mapped_address(request) is None


@given(st.binary(max_size=120))
def test_garbage_is_a_stun_error_or_a_message(data):
    for each in (data, b"\x01\x01" + (len(data)).to_bytes(2) + b"\x21\x12\xa4\x42" + bytes(12) + data):
        try:
            stun.mapped_address(stun.parse_stun(each))
        except stun.StunError:
            pass


@given(st.integers(0, len(RFC_5769_RESPONSE) - 1), st.integers(1, 255))
def test_a_flipped_byte_never_raises_anything_else(position, flip):
    data = bytearray(RFC_5769_RESPONSE)
    data[position] ^= flip
    try:
        stun.parse_stun(bytes(data))
    except stun.StunError:
        pass


@pytest.mark.parametrize(
    ("host", "plain"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_addresses_are_written_one_way(host, plain):
    assert stun.plain_address((host, 5)) == (plain, 5)
