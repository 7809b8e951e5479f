from dataclasses import replace

import pytest

from kafila_proto import PROTOCOL
from kafila_proto.pake import Exchange, PakeError, Role, Transcript

WORDS = ("walnut", "otter")
TRANSCRIPT = Transcript(
    session_id=b"s" * 16,
    host_name="desk",
    host_fingerprint=b"h" * 32,
    joiner_name="lap",
    joiner_fingerprint=b"j" * 32,
    rendezvous_fingerprint=b"r" * 32,
)


def run(joiner_words=WORDS, joiner_transcript=TRANSCRIPT):
    host, joiner = Exchange(Role.HOST, WORDS), Exchange(Role.JOINER, joiner_words)
    return host.agree(joiner.element, TRANSCRIPT), joiner.agree(host.element, joiner_transcript)


def test_same_words_same_transcript():
    host, joiner = run()
    host.check(joiner.mine)
    joiner.check(host.mine)
    assert host.mine != host.theirs  # neither can be answered with itself


@pytest.mark.parametrize("words", [("walnut", "acorn"), ("otter", "walnut")])
def test_other_words(words):
    host, joiner = run(joiner_words=words)
    with pytest.raises(PakeError):
        host.check(joiner.mine)
    with pytest.raises(PakeError):
        joiner.check(host.mine)


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": b"t" * 16},
        {"host_name": "desk2"},
        {"host_fingerprint": b"x" * 32},
        {"joiner_name": "lap2"},
        {"joiner_fingerprint": b"x" * 32},
        {"rendezvous_fingerprint": b"x" * 32},
    ],
)
def test_everything_in_the_transcript_is_bound(change):
    host, joiner = run(joiner_transcript=replace(TRANSCRIPT, **change))
    with pytest.raises(PakeError):
        host.check(joiner.mine)


def test_another_protocol_version_does_not_agree(monkeypatch):
    host, joiner = Exchange(Role.HOST, WORDS), Exchange(Role.JOINER, WORDS)
    old = host.agree(joiner.element, TRANSCRIPT)
    monkeypatch.setattr("kafila_proto.pake.PROTOCOL", PROTOCOL + 1)
    with pytest.raises(PakeError):
        old.check(joiner.agree(host.element, TRANSCRIPT).mine)


def test_fields_have_one_reading():
    one = replace(TRANSCRIPT, host_name="ab", joiner_name="c")
    other = replace(TRANSCRIPT, host_name="a", joiner_name="bc")
    assert one.encode() != other.encode()


@pytest.mark.parametrize(
    "element",
    [
        b"",
        b"B",
        b"A" + b"\1" * 32,
        b"B" + b"\0" * 32,
        b"B" + b"\xff" * 32,
        b"B" + b"\1" + b"\0" * 31,
        b"S" * 33,
    ],
)
def test_what_is_no_element_is_refused(element):
    host = Exchange(Role.HOST, WORDS)
    with pytest.raises(PakeError):
        host.agree(element, TRANSCRIPT)


def test_an_element_sent_back_is_refused():
    host = Exchange(Role.HOST, WORDS)
    with pytest.raises(PakeError):
        host.agree(host.element, TRANSCRIPT)
    with pytest.raises(PakeError):
        Exchange(Role.HOST, WORDS).agree(b"B" + host.element[1:], TRANSCRIPT).check(b"")


def test_one_exchange_is_one_guess():
    host, joiner = Exchange(Role.HOST, WORDS), Exchange(Role.JOINER, WORDS)
    host.agree(joiner.element, TRANSCRIPT)
    with pytest.raises(PakeError):
        host.agree(joiner.element, TRANSCRIPT)
