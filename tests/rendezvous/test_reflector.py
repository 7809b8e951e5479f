from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_proto import stun
from kafila_rendezvous.reflector import BOTH, reflect

SOURCE, LOCAL, OTHER = ("198.18.0.9", 4000), ("203.0.113.1", 7000), ("203.0.113.1", 7001)
ONE = {0: LOCAL, stun.CHANGE_PORT: OTHER}
TWO = ONE | {stun.CHANGE_ADDRESS: ("203.0.113.2", 7000), BOTH: ("203.0.113.2", 7001)}


def ask(change: int | None = None, places=ONE):
    data, transaction = stun.encode_request(change)
    reflection = reflect(data, SOURCE, places)
    message = stun.parse_stun(reflection.data)
    assert message.transaction_id == transaction
    return reflection, message


def test_a_plain_request_is_told_its_address_and_nothing_else():
    reflection, message = ask()
    assert message.attributes == {"XOR-MAPPED-ADDRESS": SOURCE}
    assert reflection.change == 0
    assert len(reflection.data) == 32


def test_an_answer_from_the_other_port_says_so():
    reflection, message = ask(stun.CHANGE_PORT)
    assert reflection.change == stun.CHANGE_PORT
    assert message.attributes == {
        "XOR-MAPPED-ADDRESS": SOURCE,
        "RESPONSE-ORIGIN": OTHER,
        "OTHER-ADDRESS": OTHER,
    }


@pytest.mark.parametrize("change", [stun.CHANGE_ADDRESS, stun.CHANGE_ADDRESS | stun.CHANGE_PORT])
def test_an_answer_from_another_address_is_refused_aloud(change):
    reflection, message = ask(change)
    assert message.error_code == 420
    assert reflection.change == 0


def test_a_member_behind_a_socket_for_both_families_is_told_its_ipv4_address():
    data, _ = stun.encode_request()
    reflection = reflect(data, ("::ffff:198.18.0.9", 4000), ONE)
    assert stun.mapped_address(stun.parse_stun(reflection.data)) == SOURCE


@pytest.mark.parametrize("change", list(TWO))
def test_with_two_addresses_every_change_is_honoured(change):
    reflection, message = ask(change, TWO)
    assert reflection.change == change
    assert message.attributes == {
        "XOR-MAPPED-ADDRESS": SOURCE,
        "RESPONSE-ORIGIN": TWO[change],
        "OTHER-ADDRESS": TWO[BOTH],
    }


def test_answers_are_not_answered():
    data, _ = stun.encode_request()
    response = reflect(data, SOURCE, ONE).data
    assert reflect(response, SOURCE, ONE) is None


@given(st.binary(max_size=100))
def test_garbage_is_not_answered(data):
    assert reflect(data, SOURCE, ONE) is None


@pytest.mark.parametrize("change", [None, *TWO])
def test_nobody_is_amplified(change):
    """A forged source gets at most two bytes for each that was sent."""
    data, _ = stun.encode_request(change)
    packet = 28  # of IP and UDP
    assert len(reflect(data, SOURCE, TWO).data) + packet <= 2 * (len(data) + packet)
