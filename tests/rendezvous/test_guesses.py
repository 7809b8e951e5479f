"""An automated stranger that goes on guessing: none in, the host told, everybody else served as before."""

from __future__ import annotations

import random

import pytest

from kafila_agent.control import introduction as intro
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.session_code import SessionCode, word_list

GUESSES = 1000
GUESSES_AN_IDENTITY = 50
RENEWALS = 20


@pytest.fixture
def network(monkeypatch):
    """``network(name)``: who attaches from now on comes from there, as the rendezvous sees it."""
    source = "home"
    monkeypatch.setattr("kafila_rendezvous.service.source_of", lambda peer: source)

    def choose(name: str) -> None:
        nonlocal source
        source = name

    return choose


def wrong_words(code: SessionCode, dice: random.Random) -> tuple[str, ...]:
    while (words := tuple(dice.choices(word_list(), k=2))) == code.words:
        pass
    return words


async def test_a_thousand_wrong_guesses_at_a_code(make_party, network):
    dice = random.Random(5)
    desk = await make_party("desk")
    code = await desk.create(3)
    reasons = set()
    for guess in range(GUESSES):
        if guess % GUESSES_AN_IDENTITY == 0:  # a new identity, from another network
            network(f"botnet {guess}")
            stranger = await make_party(f"stranger{guess}")
        stranger.introducing = None  # it does not stop after three, as an honest agent does
        stranger.join_soon(SessionCode(code.number, wrong_words(code, dice)))
        reasons.add((await stranger.expect("Refused")).reason.split(" from")[0])
    assert reasons == {intro.NO_SUCH_CODE, "too many wrong codes"}
    assert list(desk.introducing.roster) == ["desk"]
    failures = [(await desk.expect("AttemptFailed")).failures for _ in range(3)]
    assert failures == [1, 2, 3]
    assert "kafila-ctl session code" in (await desk.expect("Stopped")).reason
    # One more may have been on its way when the host stopped: refused unheard. The others never reached it.
    late = [desk.inbox.get_nowait() for _ in range(desk.inbox.qsize())]
    assert [sent.message.introduction.step for _, sent in late] in ([], [pb.Introduction.FAILED])

    network("home")
    friend = await make_party("friend")
    await friend.join(await desk.renew())
    assert list(desk.introducing.roster) == ["desk", "friend"]
    other = await make_party("other")
    await (await make_party("guest")).join(await other.create(2))
    assert list(other.introducing.roster) == ["other", "guest"]


def test_a_stranger_that_learns_every_new_number_has_three_guesses_at_each():
    """As the rendezvous itself would."""
    dice = random.Random(6)
    pin = b"r" * 32
    code = SessionCode("123456", ("walnut", "otter"))
    desk = intro.Party("desk", make_certificate("kafila-agent").certificate_der, pin)
    liar = intro.Party("liar", make_certificate("kafila-agent").certificate_der, pin)
    host = intro.HostIntroduction(desk, b"s" * 16, code.words, 3)
    attempt = tried = 0
    for _ in range(RENEWALS):
        while host.state is not intro.HostState.STOPPED:
            attempt, tried = attempt + 1, tried + 1
            opened = pb.Introduction(attempt=attempt, step=pb.Introduction.OPENED)
            joiner = intro.JoinerIntroduction(liar)
            joiner.join(SessionCode(code.number, wrong_words(code, dice)), 0.0)
            (proof,) = joiner.handle(host.handle(opened, 0.0)[0].message.introduction, 0.0)
            assert intro.AttemptFailed in map(type, host.handle(proof.message.introduction, 0.0))
        opened = pb.Introduction(attempt=attempt + 1, step=pb.Introduction.OPENED)
        (away,) = host.handle(opened, 0.0)
        assert away.message.introduction.element == b""
        host.renew(code.words)
    assert tried == 3 * RENEWALS
    assert list(host.roster) == ["desk"]
