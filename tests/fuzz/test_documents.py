"""Planning files, plans, session codes, addresses and certificates: understood, or refused with their own error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.control.pin import AddressError, parse_address
from kafila_planner.facts import fleet_to_json, parse_fleet
from kafila_planner.fields import FieldError
from kafila_planner.planner import plan_ring
from kafila_planner.ring import plan_from_json, plan_to_json
from kafila_proto.certificate import CertificateError, common_name, make_certificate, public_key
from kafila_proto.session_code import SessionCodeError, parse_session_code, word_list
from kafila_proto.signed import SignatureError, verify_signature
from tests.fuzz.values import JSON, mutated, spoilt

FLEET = {
    "model": {
        "name": "m",
        "blocks": 4,
        "block_bytes": [10, 20, 10, 20],
        "head_bytes": 5,
        "kv_bytes_per_token_per_block": 1,
    },
    "context_tokens": 16,
    "concurrency": 2,
    "anchor": "a",
    "members": [
        {
            "name": name,
            "bandwidth_bytes_per_s": 1e9,
            "overhead_s": 1e-4,
            "flops_per_s": 1e10,
            "memory_bytes": 10**6,
            "rendezvous_rtt_s": 0.01,
            "mapping": "endpoint-independent",
            "filtering": "endpoint-independent",
        }
        for name in ("a", "b", "c")
    ],
}
PLAN = plan_to_json(plan_ring(parse_fleet(FLEET))) | {
    "unseated": ["d"],
    "unseated_reasons": {"d": "too small"},
    "notes": ["a note"],
}
TOO_LARGE = FLEET | {"model": FLEET["model"] | {"block_bytes": 10**9}}
REFUSAL = plan_to_json(plan_ring(parse_fleet(TOO_LARGE)))
CERTIFICATE = make_certificate("kafila-agent").certificate_der
STRANGE = CERTIFICATE.replace(
    b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"
)  # of a version that there is not


@given(JSON | spoilt(FLEET))
def test_a_planning_file_is_planned_or_refused(document):
    try:
        fleet = parse_fleet(document)
    except FieldError:
        return
    plan = plan_ring(fleet)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert parse_fleet(json.loads(json.dumps(fleet_to_json(fleet)))) == fleet


@given(JSON | spoilt(PLAN) | spoilt(REFUSAL))
def test_a_plan_is_read_or_refused(document):
    try:
        plan = plan_from_json(document)
    except FieldError:
        return
    assert plan_from_json(plan_to_json(plan)) == plan


@given(st.text(max_size=40) | st.lists(st.sampled_from([*word_list()[:9], "123456", "-", " "])).map("".join))
def test_a_session_code_is_read_or_refused(text):
    try:
        code = parse_session_code(text)
    except SessionCodeError:
        return
    assert parse_session_code(str(code)) == code


@given(st.text(max_size=40) | st.from_regex(r"\[?[0-9a-f:.]{0,20}\]?(:[0-9]{0,6})?(#[0-9a-f:]{0,70})?"))
def test_an_address_is_read_or_refused(text):
    try:
        address = parse_address(text)
    except AddressError:
        return
    assert parse_address(str(address)).port == address.port


@given(mutated([CERTIFICATE, STRANGE]))
def test_a_certificate_is_read_or_refused(data):
    for read in (public_key, common_name):
        try:
            read(data)
        except CertificateError:
            continue
    with pytest.raises(SignatureError):
        verify_signature(data, "label", b"payload", b"signature")
