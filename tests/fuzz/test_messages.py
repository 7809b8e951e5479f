"""Messages that are well-formed and mean nothing, or lie: each is refused to its sender and changes nothing else."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from kafila_agent.control import introduction as intro
from kafila_agent.control.charter import (
    StatementError,
    countersign,
    verify_charter,
    verify_plan,
    verify_reports,
)
from kafila_agent.identity import Identity
from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.certificate import make_certificate
from kafila_proto.session_code import SessionCode
from kafila_proto.signed import Label, seal
from kafila_rendezvous.outcome import Send
from kafila_rendezvous.registry import Registry

SESSION = b"s" * 16
DESK, LAP = (Identity(name, make_certificate("kafila-agent")) for name in ("desk", "lap"))
BYTES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([SESSION, DESK.fingerprint, LAP.fingerprint, DESK.certificate_der, bytes(32), bytes(33)]),
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["desk", "lap", "{}", "[]", "null", "throughput", "bfloat16", '{"name": "desk"}', "1e400", "[" * 5000]
    ),
)
SCALARS = {
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_UINT32: st.sampled_from([0, 1, 2, 3, 2**32 - 1]),
    FieldDescriptor.TYPE_UINT64: st.sampled_from([0, 1, 2, 3, 2**64 - 1]),
}
SIGNED = {Label.CHARTER: pb.Charter, Label.REPORT: pb.Report, Label.PLAN: pb.Plan}


@st.composite
def meaningless(draw, cls):
    """A message of ``cls`` with some of its fields filled with anything; what is Signed is truly signed."""
    if cls is pb.Signed:
        label = draw(st.sampled_from(list(SIGNED)))
        payload = draw(meaningless(SIGNED[label])).SerializeToString() if draw(st.booleans()) else draw(BYTES)
        return seal(draw(st.sampled_from([DESK, LAP])), label, payload)
    message = cls()
    for field in cls.DESCRIPTOR.fields:
        if not draw(st.integers(0, 3)):
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(value_of(field), max_size=3)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(value_of(field)))
        else:
            setattr(message, field.name, draw(value_of(field)))
    return message


def value_of(field):
    if field.message_type is not None:
        return meaningless(getattr(pb, field.message_type.name))
    if field.enum_type is not None:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99])
    return SCALARS[field.type]


@st.composite
def requests(draw):
    """A FromAgent with one of its messages."""
    field = draw(st.sampled_from(list(pb.FromAgent.DESCRIPTOR.oneofs[0].fields)))
    return pb.FromAgent(**{field.name: draw(value_of(field))})


@given(st.lists(st.tuples(st.sampled_from([DESK, LAP]), requests()), max_size=25))
def test_the_rendezvous_answers_everything_and_stays_whole(said):
    registry = Registry(pick_number=iter([f"{n:06}" for n in range(1000)]).__next__)
    for agent in (DESK, LAP):
        registry.attach(agent.fingerprint, agent.name, "home", bytes(16), 0.0)
    create = pb.CreateSession(session_id=SESSION, expected_members=2)
    registry.receive(DESK.fingerprint, pb.FromAgent(create=create), 0.0)
    for now, (agent, message) in enumerate(said):
        for command in registry.receive(agent.fingerprint, message, float(now)):
            assert not isinstance(command, Send) or command.to in registry.attached
    registry.tick(1e6)
    for agent in (DESK, LAP):
        registry.detach(agent.fingerprint, 1e6)
    assert not registry.sessions
    assert not registry._numbers


@given(st.lists(meaningless(pb.Introduction), max_size=8))
def test_introductions_that_mean_nothing_admit_nobody(messages):
    party = intro.Party("desk", DESK.certificate_der, bytes(32))
    host = intro.HostIntroduction(party, SESSION, ("walnut", "otter"), 3)
    joiner = intro.JoinerIntroduction(intro.Party("lap", LAP.certificate_der, bytes(32)))
    joiner.join(SessionCode("123456", ("walnut", "otter")), 0.0)
    for message in messages:
        for core in (host, joiner):
            try:
                commands = core.handle(message, 0.0)
            except intro.IllegalEvent:
                continue
            assert not [c for c in commands if isinstance(c, intro.Admitted | intro.Joined)]
    assert list(host.roster) == ["desk"]


@given(meaningless(pb.Signed), meaningless(pb.Charter), meaningless(pb.ReportsComplete))
def test_statements_that_mean_nothing_are_not_believed(signed, charter, complete):
    known = pb.Charter(session_id=SESSION, revision=1, expected_members=1)
    known.roster.add(name="desk", fingerprint=DESK.fingerprint)
    with pytest.raises(StatementError):
        verify_plan(signed, known, seal(DESK, Label.REPORT, b""), 0)
    with pytest.raises(StatementError):
        countersign(complete, known, DESK)
    for refuse in (
        lambda: verify_charter(signed, DESK.fingerprint, 0, session_id=SESSION),
        lambda: verify_reports(complete.reports, charter),
    ):
        try:
            refuse()
        except StatementError:
            continue
