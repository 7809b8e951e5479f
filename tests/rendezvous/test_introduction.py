"""Whose turn it is, as a transcript: events in, commands out."""

from __future__ import annotations

import itertools

import pytest

from kafila_proto.rendezvous_pb2 import Introduction
from kafila_rendezvous.introduction import ATTEMPT_S, Introductions
from kafila_rendezvous.outcome import RequestRefused

HOST, LAP, ATTIC = b"host", b"lap", b"attic"


@pytest.fixture
def introductions():
    return Introductions(HOST, itertools.count(1).__next__)


def told(commands):
    """(to, attempt, step) of each introduction sent."""
    return [
        (c.to, c.message.introduction.attempt, Introduction.Step.Name(c.message.introduction.step))
        for c in commands
    ]


def step(attempt: int, name: str) -> Introduction:
    return Introduction(attempt=attempt, step=name)


def confirm(introductions, joiner: bytes, attempt: int) -> None:
    introductions.carry(HOST, step(attempt, "HOST_ELEMENT"), 0.0)
    introductions.carry(joiner, step(attempt, "JOINER_PROOF"), 0.0)
    introductions.carry(HOST, step(attempt, "HOST_PROOF"), 0.0)


def test_from_a_call_to_a_member(introductions):
    assert told(introductions.call(LAP, 0.0)) == [(HOST, 1, "OPENED")]
    assert told(introductions.carry(HOST, step(1, "HOST_ELEMENT"), 0.0)) == [(LAP, 1, "HOST_ELEMENT")]
    assert told(introductions.carry(LAP, step(1, "JOINER_PROOF"), 0.0)) == [(HOST, 1, "JOINER_PROOF")]
    assert told(introductions.carry(HOST, step(1, "HOST_PROOF"), 0.0)) == [(LAP, 1, "HOST_PROOF")]
    assert introductions.admit(1) == LAP
    assert introductions.joiners == []


def test_one_at_a_time_in_the_order_of_calls(introductions):
    introductions.call(LAP, 0.0)
    assert introductions.call(ATTIC, 0.0) == []
    confirm(introductions, LAP, 1)
    assert introductions.admit(1) == LAP
    assert told(introductions.open_next(0.0)) == [(HOST, 2, "OPENED")]
    assert introductions.joiners == [ATTIC]


def test_a_failure_gives_the_next_a_turn(introductions):
    introductions.call(LAP, 0.0)
    introductions.call(ATTIC, 0.0)
    commands = introductions.carry(HOST, step(1, "FAILED"), 0.0)
    assert told(commands) == [(LAP, 1, "FAILED"), (HOST, 2, "OPENED")]
    assert introductions.failed == 1


def test_who_goes_away_is_skipped_and_the_host_is_told(introductions):
    introductions.call(LAP, 0.0)
    introductions.call(ATTIC, 0.0)
    assert introductions.remove(ATTIC, 0.0) == []
    assert told(introductions.remove(LAP, 0.0)) == [(HOST, 1, "FAILED")]
    assert introductions.joiners == []


def test_silence_ends_an_attempt_for_both(introductions):
    introductions.call(LAP, 0.0)
    assert introductions.tick(ATTEMPT_S - 1) == []
    assert told(introductions.tick(ATTEMPT_S)) == [(LAP, 1, "FAILED"), (HOST, 1, "FAILED")]


@pytest.mark.parametrize(
    ("sender", "name"),
    [
        (HOST, "HOST_PROOF"),
        (HOST, "JOINER_PROOF"),
        (LAP, "HOST_ELEMENT"),
        (LAP, "JOINER_PROOF"),
        (HOST, "OPENED"),
    ],
)
def test_out_of_turn_is_refused_to_the_sender(introductions, sender, name):
    introductions.call(LAP, 0.0)
    with pytest.raises(RequestRefused, match=f"{name} cannot come while the attempt is OPENED"):
        introductions.carry(sender, step(1, name), 0.0)


@pytest.mark.parametrize("name", ["FAILED", "JOINER_PROOF"])
def test_nobody_speaks_in_anothers_introduction(introductions, name):
    introductions.call(LAP, 0.0)
    introductions.carry(HOST, step(1, "HOST_ELEMENT"), 0.0)
    with pytest.raises(RequestRefused, match="between others"):
        introductions.carry(ATTIC, step(1, name), 0.0)
    assert introductions.joiners == [LAP]


def test_what_crosses_the_end_of_its_attempt_is_dropped(introductions):
    introductions.call(LAP, 0.0)
    introductions.carry(LAP, step(1, "FAILED"), 0.0)
    assert introductions.carry(HOST, step(1, "HOST_ELEMENT"), 0.0) == []


def test_nobody_is_admitted_unconfirmed(introductions):
    with pytest.raises(RequestRefused):
        introductions.admit(1)
    introductions.call(LAP, 0.0)
    with pytest.raises(RequestRefused, match="not been confirmed"):
        introductions.admit(1)
    confirm(introductions, LAP, 1)
    with pytest.raises(RequestRefused):
        introductions.admit(2)
