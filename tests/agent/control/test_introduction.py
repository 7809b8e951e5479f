"""Host and joiner introduce themselves through a rendezvous that may do anything to what it carries."""

from __future__ import annotations

import random

import pytest

from kafila_agent.control.introduction import (
    ATTEMPT_S,
    CALL_S,
    NO_SUCH_CODE,
    Admitted,
    AttemptFailed,
    HostIntroduction,
    HostState,
    IllegalEvent,
    Joined,
    JoinerIntroduction,
    JoinerState,
    Party,
    Refused,
    Send,
    Stopped,
    Tick,
    Withdrawn,
)
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import fingerprint, make_certificate
from kafila_proto.session_code import SessionCode

CODE = SessionCode("123456", ("walnut", "otter"))
WRONG = SessionCode("123456", ("walnut", "acorn"))
SESSION_ID = b"s" * 16
PIN = b"r" * 32
Introduction = pb.Introduction


def make_party(name: str, pin: bytes = PIN) -> Party:
    return Party(name, make_certificate("kafila-agent").certificate_der, pin)


def fingerprint_of(party: Party) -> bytes:
    return fingerprint(party.certificate_der)


def make_host(members: int = 3, pin: bytes = PIN) -> HostIntroduction:
    return HostIntroduction(make_party("desk", pin), SESSION_ID, CODE.words, members)


def make_joiner(name: str = "lap", pin: bytes = PIN) -> JoinerIntroduction:
    return JoinerIntroduction(make_party(name, pin))


def said(commands) -> list[pb.Introduction]:
    """The introductions among ``commands``."""
    sent = [c.message for c in commands if isinstance(c, Send)]
    return [m.introduction for m in sent if m.WhichOneof("message") == "introduction"]


def of(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


class Carrier:
    """The rendezvous between them: delivers, and changes what ``alter(message)`` changes."""

    def __init__(self, host, joiner, alter=lambda message: message):
        self.host, self.joiner, self.alter = host, joiner, alter
        self.attempt = 0
        self.log: list[pb.Introduction] = []
        self.commands: list = []

    def introduce(self, code=CODE, now: float = 0.0) -> list:
        """One attempt from its call to its end; everything both sides decided."""
        self.attempt += 1
        self.commands = list(self.joiner.join(code, now))
        opened = Introduction(attempt=self.attempt, step=Introduction.OPENED)
        queue = [(self.host, opened)]
        while queue:
            party, message = queue.pop(0)
            self.log.append(message)
            commands = party.handle(message, now)
            self.commands += commands
            other = self.joiner if party is self.host else self.host
            queue += [(other, self.alter(m)) for m in said(commands)]
        return self.commands


def changing(step: int, **fields):
    """An ``alter`` that sets fields of the messages of one step."""

    def alter(message):
        changed = Introduction.FromString(message.SerializeToString())
        if message.step == step:
            for name, value in fields.items():
                setattr(changed, name, value)
        return changed

    return alter


def test_the_right_words_admit_and_tell_each_who_the_other_is():
    host, joiner = make_host(), make_joiner()
    commands = Carrier(host, joiner).introduce()
    (joined,), (admitted,) = of(commands, Joined), of(commands, Admitted)
    assert joined == Joined(SESSION_ID, "desk", host.roster["desk"])
    assert admitted == Admitted("lap", host.roster["lap"])
    assert list(host.roster) == ["desk", "lap"]
    assert (host.state, host.failures, host.deadline) == (HostState.ADMITTING, 0, None)
    assert joiner.state is JoinerState.JOINED
    kinds = [c.message.WhichOneof("message") for c in of(commands, Send)]
    assert kinds == ["join", "introduction", "introduction", "introduction", "admit"]


def test_the_last_seat_stops_admission():
    host = make_host(members=2)
    commands = Carrier(host, make_joiner()).introduce()
    assert of(commands, Stopped) == [Stopped("everyone is here")]
    assert any(c.message.WhichOneof("message") == "stop_admitting" for c in of(commands, Send))
    late = host.handle(Introduction(attempt=2, step=Introduction.OPENED), 0.0)
    assert [m.step for m in said(late)] == [Introduction.FAILED]


def test_wrong_words_read_as_a_wrong_number_and_stop_the_host_after_three():
    host = make_host()
    for failures in (1, 2, 3):
        carrier = Carrier(host, make_joiner())
        commands = carrier.introduce(WRONG)
        assert of(commands, AttemptFailed) == [AttemptFailed(failures)]
        assert of(commands, Refused) == [Refused(NO_SUCH_CODE)]
        assert len(of(commands, Stopped)) == (failures == 3)
    wrong_number = make_joiner()
    wrong_number.join(CODE, 0.0)
    assert wrong_number.refuse("not_found", "x") == [Refused(NO_SUCH_CODE)]
    commands = Carrier(host, make_joiner()).introduce(CODE)  # the right words are too late
    assert not of(commands, Joined)
    assert host.state is HostState.STOPPED


def test_a_new_code_unseats_nobody():
    host = make_host()
    Carrier(host, make_joiner()).introduce()
    for _ in range(3):
        Carrier(host, make_joiner("x")).introduce(WRONG)
    host.renew(("zebra", "acorn"))
    assert list(host.roster) == ["desk", "lap"]
    assert not of(Carrier(host, make_joiner("attic")).introduce(CODE), Joined)
    assert of(Carrier(host, make_joiner("attic")).introduce(SessionCode("9" * 6, ("zebra", "acorn"))), Joined)


def test_a_new_code_ends_the_attempt_under_the_old_one():
    host = make_host()
    host.handle(Introduction(attempt=4, step=Introduction.OPENED), 0.0)
    (ended,) = said(host.renew(("zebra", "acorn")))
    assert (ended.attempt, ended.step) == (4, Introduction.FAILED)
    assert (host.state, host.failures, host.deadline) == (HostState.ADMITTING, 0, None)


def test_who_vanishes_while_its_admission_is_on_its_way_is_off_the_roster():
    host = make_host(members=2)
    Carrier(host, make_joiner()).introduce()
    gone = Introduction(attempt=1, step=Introduction.FAILED)
    assert host.handle(gone, 1.0) == [Withdrawn("lap")]
    assert host.handle(gone, 1.0) == []
    assert list(host.roster) == ["desk"]
    assert host.state is HostState.STOPPED  # its code is used up
    host.renew(("zebra", "acorn"))
    again = Carrier(host, make_joiner("attic")).introduce(SessionCode("9" * 6, ("zebra", "acorn")))
    assert of(again, Joined)


def test_who_leaves_is_struck_off_and_nobody_else_is():
    host = make_host()
    Carrier(host, make_joiner()).introduce()
    assert host.depart(b"x" * 32) is None
    assert host.depart(host.roster["desk"]) is None  # the host itself
    assert host.depart(host.roster["lap"]) == "lap"
    assert list(host.roster) == ["desk"]
    assert host.state is HostState.ADMITTING


def test_a_joiner_that_gives_up_says_so():
    joiner = make_joiner()
    joiner.join(CODE, 0.0)
    left, refused = joiner.handle(Tick(), CALL_S)
    assert left.message.WhichOneof("message") == "leave"
    assert "did not answer" in refused.reason


def test_a_joiner_stops_after_three_on_one_number():
    joiner = make_joiner()
    for _ in range(3):
        assert of(Carrier(make_host(), joiner).introduce(WRONG), Refused)
    (refused,) = joiner.join(CODE, 0.0)
    assert "ask the host for a new code" in refused.reason
    assert of(Carrier(make_host(), joiner).introduce(SessionCode("654321", CODE.words)), Joined)


def test_every_attempt_that_got_the_element_counts():
    host = make_host()
    opened = Introduction(attempt=1, step=Introduction.OPENED)
    assert said(host.handle(opened, 0.0))[0].step == Introduction.HOST_ELEMENT
    assert host.handle(Tick(), ATTEMPT_S - 1) == []
    commands = host.handle(Tick(), ATTEMPT_S)
    assert of(commands, AttemptFailed) == [AttemptFailed(1)]
    assert [m.step for m in said(commands)] == [Introduction.FAILED]
    host.handle(Introduction(attempt=2, step=Introduction.OPENED), 100.0)
    gone = host.handle(Introduction(attempt=2, step=Introduction.FAILED), 101.0)
    assert of(gone, AttemptFailed) == [AttemptFailed(2)]


def test_one_at_a_time_and_who_is_turned_away_does_not_count():
    host = make_host()
    host.handle(Introduction(attempt=1, step=Introduction.OPENED), 0.0)
    (away,) = said(host.handle(Introduction(attempt=2, step=Introduction.OPENED), 0.0))
    assert (away.attempt, away.step, away.element) == (2, Introduction.FAILED, b"")
    assert host.failures == 0
    assert host.state is HostState.CHALLENGING


def test_a_joiner_waits_its_turn_but_not_for_ever():
    joiner = make_joiner()
    joiner.join(CODE, 0.0)
    assert joiner.handle(Tick(), CALL_S - 1) == []
    assert of(joiner.handle(Tick(), CALL_S), Refused)
    assert joiner.state is JoinerState.IDLE


@pytest.mark.parametrize(
    ("name", "hint"), [("desk", "--name"), ("not a name", "--name"), ("lap", "in this session already")]
)
def test_who_knows_the_words_and_still_cannot_be_seated_is_told_why(name, hint):
    host, party = make_host(), make_party("lap")
    Carrier(host, JoinerIntroduction(party)).introduce()
    joiner = JoinerIntroduction(
        Party(name, party.certificate_der, PIN) if name == "lap" else make_party(name)
    )
    commands = Carrier(host, joiner).introduce()
    assert hint in of(commands, Refused)[0].reason
    assert host.failures == 0
    assert list(host.roster) == ["desk", "lap"]


STRANGER = make_certificate("kafila-agent").certificate_der


@pytest.mark.parametrize(
    "alter",
    [
        changing(Introduction.JOINER_PROOF, certificate=STRANGER),
        changing(Introduction.HOST_ELEMENT, certificate=STRANGER),
        changing(Introduction.JOINER_PROOF, name="lap2"),
        changing(Introduction.HOST_ELEMENT, name="desk2"),
        changing(Introduction.HOST_ELEMENT, session_id=b"t" * 16),
        changing(Introduction.HOST_ELEMENT, session_id=b"short"),
        changing(Introduction.HOST_ELEMENT, element=b"A" + bytes(32)),
        changing(Introduction.HOST_ELEMENT, element=b""),
        changing(Introduction.JOINER_PROOF, element=b"B" + b"\xff" * 32),
        changing(Introduction.JOINER_PROOF, confirmation=bytes(32)),
        changing(Introduction.JOINER_PROOF, confirmation=b""),
    ],
)
def test_nothing_can_be_swapped_on_the_way(alter):
    host, joiner = make_host(), make_joiner()
    commands = Carrier(host, joiner, alter).introduce()
    assert not of(commands, Joined)
    assert not of(commands, Admitted)
    assert list(host.roster) == ["desk"]


def test_a_rendezvous_that_shows_each_side_another_certificate_is_noticed():
    commands = Carrier(make_host(pin=b"1" * 32), make_joiner(pin=b"2" * 32)).introduce()
    assert of(commands, AttemptFailed)
    assert not of(commands, Joined)


def test_a_forged_proof_of_the_host_is_not_believed():
    host, joiner = make_host(), make_joiner()
    commands = Carrier(host, joiner, changing(Introduction.HOST_PROOF, confirmation=bytes(32))).introduce()
    assert not of(commands, Joined)
    assert of(commands, Refused) == [Refused(NO_SUCH_CODE)]


def test_replayed_messages_admit_nobody():
    host = make_host()
    carrier = Carrier(host, make_joiner())
    carrier.introduce()
    proof = next(m for m in carrier.log if m.step == Introduction.JOINER_PROOF)
    assert host.handle(proof, 1.0) == []  # again in the attempt that is over
    host.handle(Introduction(attempt=9, step=Introduction.OPENED), 1.0)
    replay = Introduction.FromString(proof.SerializeToString())
    replay.attempt = 9
    commands = host.handle(replay, 1.0)
    assert of(commands, AttemptFailed) == [AttemptFailed(1)]
    element, host_proof = carrier.log[1], carrier.log[3]
    joiner = make_joiner("attic")
    joiner.join(CODE, 0.0)
    joiner.handle(element, 0.0)
    assert of(joiner.handle(host_proof, 0.0), Refused)


def test_the_hosts_own_element_sent_back_admits_nobody():
    host = make_host()
    (challenge,) = said(host.handle(Introduction(attempt=1, step=Introduction.OPENED), 0.0))
    for element in (challenge.element, b"B" + challenge.element[1:]):
        reflected = Introduction(
            attempt=1, step=Introduction.JOINER_PROOF, element=element, certificate=STRANGER, name="x"
        )
        commands = host.handle(reflected, 0.0)
        assert not of(commands, Admitted)
        host.handle(Introduction(attempt=1, step=Introduction.OPENED), 0.0)
    assert host.failures == 2


@pytest.mark.parametrize("step", [Introduction.HOST_ELEMENT, Introduction.HOST_PROOF, 0])
def test_what_cannot_come_to_a_host_raises(step):
    with pytest.raises(IllegalEvent, match="ADMITTING"):
        make_host().handle(Introduction(attempt=1, step=step), 0.0)


def test_what_cannot_come_to_a_joiner_raises():
    joiner = make_joiner()
    with pytest.raises(IllegalEvent, match=r"HOST_ELEMENT.*IDLE"):
        joiner.handle(Introduction(step=Introduction.HOST_ELEMENT), 0.0)
    joiner.join(CODE, 0.0)
    with pytest.raises(IllegalEvent, match="CALLING already"):
        joiner.join(CODE, 0.0)
    with pytest.raises(IllegalEvent, match=r"HOST_PROOF.*CALLING"):
        joiner.handle(Introduction(step=Introduction.HOST_PROOF), 0.0)
    carrier = Carrier(make_host(), make_joiner())
    carrier.introduce()
    with pytest.raises(IllegalEvent, match=r"HOST_ELEMENT.*JOINED"):
        carrier.joiner.handle(carrier.log[1], 0.0)


FIELDS = ("element", "confirmation", "certificate", "session_id", "name")


def test_whatever_is_lost_repeated_swapped_or_changed_nobody_is_deceived():
    outcomes = [carry_badly(seed) for seed in range(20)]
    # Neither too kind to prove anything, nor too cruel.
    assert {admitted for admitted, _ in outcomes} == {True, False}
    assert max(failures for _, failures in outcomes) == 3


def carry_badly(seed: int) -> tuple[bool, int]:
    """A seeded carrier. It may prevent an admission; it can never bring about a false one."""
    dice = random.Random(seed)
    host, joiner = make_host(), make_joiner()
    own = {"desk": fingerprint_of(host._party), "lap": fingerprint_of(joiner._party)}
    seen: list[tuple[object, pb.Introduction]] = []
    commands: list = []
    for attempt in range(1, 6):
        if joiner.state is JoinerState.IDLE:
            commands += joiner.join(CODE, 0.0)
        seen.append((host, Introduction(attempt=attempt, step=Introduction.OPENED)))
        queue = [seen[-1]]
        while queue:
            party, message = queue.pop(dice.randrange(len(queue)))
            if dice.random() < 0.15:
                continue
            if dice.random() < 0.15:
                party, message = dice.choice(seen)
            if dice.random() < 0.15:
                message = Introduction.FromString(message.SerializeToString())
                field = dice.choice(FIELDS)
                setattr(message, field, getattr(dice.choice(seen)[1], field))
            try:
                decided = party.handle(message, 0.0)
            except IllegalEvent:
                continue
            commands += decided
            other = joiner if party is host else host
            new = [(other, m) for m in said(decided)]
            seen += new
            queue += new
        commands += host.handle(Tick(), 1000.0) + joiner.handle(Tick(), 1000.0)
    for admitted in of(commands, Admitted):
        assert admitted == Admitted("lap", own["lap"])
    for joined in of(commands, Joined):
        assert joined == Joined(SESSION_ID, "desk", own["desk"])
    assert len(of(commands, Joined)) <= len(of(commands, Admitted)) <= 1
    assert host.failures <= 3
    return bool(of(commands, Admitted)), host.failures
