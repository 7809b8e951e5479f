from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_proto import stun
from kafila_rendezvous.reflector import reflect

SOURCE, LOCAL, OTHER = ("198.18.0.9", 4000), ("203.0.113.1", 7000), ("203.0.113.1", 7001)


def ask(change: int = 0):
    data, transaction = stun.encode_request(change)
    reflection = reflect(data, SOURCE, LOCAL, OTHER)
    message = stun.parse_stun(reflection.data)
    assert message.transaction_id == transaction
    return reflection, message


def test_a_plain_request_is_told_its_address_and_nothing_else():
    reflection, message = ask()
    assert message.attributes == {"XOR-MAPPED-ADDRESS": SOURCE}
    assert not reflection.from_other_port
    assert len(reflection.data) == 32


def test_an_answer_from_the_other_port_says_so():
    reflection, message = ask(stun.CHANGE_PORT)
    assert reflection.from_other_port
    assert message.attributes == {
        "XOR-MAPPED-ADDRESS": SOURCE,
        "RESPONSE-ORIGIN": OTHER,
        "OTHER-ADDRESS": OTHER,
    }


@pytest.mark.parametrize("change", [stun.CHANGE_ADDRESS, stun.CHANGE_ADDRESS | stun.CHANGE_PORT])
def test_an_answer_from_another_address_is_refused_aloud(change):
    reflection, message = ask(change)
    assert message.error_code == 420
    assert not reflection.from_other_port


def test_a_member_behind_a_socket_for_both_families_is_told_its_ipv4_address():
    data, _ = stun.encode_request()
    reflection = reflect(data, ("::ffff:198.18.0.9", 4000), LOCAL, OTHER)
    assert stun.mapped_address(stun.parse_stun(reflection.data)) == SOURCE


def test_answers_are_not_answered():
    data, _ = stun.encode_request()
    response = reflect(data, SOURCE, LOCAL, OTHER).data
    assert reflect(response, SOURCE, LOCAL, OTHER) is None


@given(st.binary(max_size=100))
def test_garbage_is_not_answered(data):
    assert reflect(data, SOURCE, LOCAL, OTHER) is None
