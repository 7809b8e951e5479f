"""Sessions without a network: what is refused, and to whom."""

from __future__ import annotations

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.names import MAX_SHOWN_LENGTH
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.outcome import RequestRefused

SESSION_ID = b"s" * 16


def test_circuits_are_for_two_members_of_the_plan_in_force(world, agents):
    desk, lap, attic, spare = agents
    world.form(desk, lap, attic)
    world.say(lap, circuit=pb.CircuitRequest(epoch=1, peer=attic.id))
    (grant,) = world.circuits
    assert (grant.session_id, grant.epoch, grant.member, grant.peer) == (SESSION_ID, 1, lap.id, attic.id)
    for epoch, peer in ((0, attic.id), (2, attic.id), (1, lap.id), (1, spare.id), (1, b"")):
        world.say(lap, circuit=pb.CircuitRequest(epoch=epoch, peer=peer))
        assert world.problem(lap).request == "circuit"
    assert len(world.circuits) == 1


def test_only_the_host_rules(world, agents, world_module):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.charter(desk, [desk, lap])
    for fields in (
        {"charter": world_module.signed_charter(lap, [lap, desk], revision=2)},
        {"admit": pb.Admit(attempt=1)},
        {"stop_admitting": pb.StopAdmitting()},
        {"plan": world_module.signed_plan(lap, pb.ReportsComplete(epoch=1))},
    ):
        world.say(lap, **fields)
        assert world.problem(lap).code == "forbidden"
    world.say(lap, create=pb.CreateSession(session_id=SESSION_ID, expected_members=2))
    assert world.problem(lap).code == "forbidden"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"revision": 0}, "revision 0 is not new"),
        ({"session_id": b"t" * 16}, "another session"),
        ({"expected_members": 5}, "another session"),
        ({"roster": []}, "start with the host"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"objective": "speed"}, "objective"),
        ({"division": "fair"}, "division"),
        ({"model": pb.ModelReference(facts_json="{}")}, "model"),
        ({"model": pb.ModelReference(facts_json="[")}, "not JSON"),
    ],
)
def test_charters_that_nobody_would_believe_are_refused(world, agents, changes, why):
    world.create(agents[0], 1)
    world.charter(agents[0], [agents[0]], **changes)
    assert why in world.problem(agents[0]).detail
    assert world.heard(agents[0], "charter") == []


def test_a_charter_names_only_who_was_admitted(world, agents):
    desk, lap, *_ = agents
    world.create(desk, 2)
    world.charter(desk, [desk, lap])
    assert "'lap' of the roster was not admitted, or is gone" in world.problem(desk).detail


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "lap"}, "about 'lap'"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"session_id": b"t" * 16}, "another session"),
    ],
)
def test_reports_that_cannot_be_planned_from_are_refused(world, agents, changes, why):
    world.create(agents[0], 1)
    world.charter(agents[0], [agents[0]])
    world.report(agents[0], **changes)
    assert why in world.problem(agents[0]).detail
    assert world.plans == []


def test_statements_of_others_are_refused(world, agents, world_module):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.say(lap, report=world_module.signed_report(desk, SESSION_ID))
    assert "signed by" in world.problem(lap).detail


def test_a_plan_of_an_epoch_that_is_not_being_planned_is_refused(world, agents):
    desk = agents[0]
    world.form(desk)
    world.countersign(desk)
    assert "cannot come while the session is connecting" in world.problem(desk).detail
    world.countersign(desk, epoch=7)
    assert "epoch 7" in world.problem(desk).detail


@pytest.mark.parametrize(
    "request_", ["charter", "report", "plan", "circuit", "progress", "admit", "stop_admitting"]
)
def test_out_of_a_session_nothing_is_heard(world, agents, request_):
    message = pb.FromAgent()
    getattr(message, request_).SetInParent()
    world.note(world.registry.receive(agents[0].id, message, 0.0))
    assert world.problem(agents[0]).code == "not_found"
    assert world.problem(agents[0]).request == request_


def test_nothing_and_hello_again_are_refused(world, agents):
    world.say(agents[0])
    assert world.problem(agents[0]).code == "invalid"
    world.say(agents[0], hello=pb.Hello())
    assert world.problem(agents[0]).request == "hello"


@pytest.mark.parametrize(
    ("session_id", "members", "why"),
    [(b"short", 2, "16 bytes"), (SESSION_ID, 0, "1 to 32 members, not 0"), (SESSION_ID, 33, "not 33")],
)
def test_sessions_that_cannot_be(world, agents, session_id, members, why):
    world.say(agents[0], create=pb.CreateSession(session_id=session_id, expected_members=members))
    assert why in world.problem(agents[0]).detail
    assert world.registry.sessions == {}


def test_one_session_at_a_time(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 3)
    world.say(desk, create=pb.CreateSession(session_id=b"t" * 16, expected_members=1))
    assert "leave it first" in world.problem(desk).detail
    world.say(desk, join=pb.JoinSession(number=number))
    assert world.problem(desk).code == "forbidden"
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(lap, join=pb.JoinSession(number=number))
    assert world.problem(lap).code == "forbidden"


def test_the_same_identity_twice_is_refused_by_name(world, agents):
    with pytest.raises(RequestRefused, match="desk is attached already"):
        world.attach(agents[0])


def test_limits_are_per_source(world_module, agents):
    limits = Limits(sessions_per_source=1, agents_per_source=3, wrong_numbers_per_source=2)
    world = world_module.World(agents, limits)
    for agent in agents[:3]:
        world.attach(agent)
    with pytest.raises(RequestRefused, match=r"3 agents from 192\.0\.2\.1"):
        world.attach(agents[3])
    world.attach(agents[3], "198.51.100.1")
    number = world.create(agents[0], 2)
    world.say(agents[1], create=pb.CreateSession(session_id=b"t" * 16, expected_members=1))
    assert world.problem(agents[1]).code == "limit"
    wrong = f"{(int(number) + 1) % 10**6:06}"
    for code in ("not_found", "not_found", "limit"):
        world.say(agents[1], join=pb.JoinSession(number=wrong))
        assert world.problem(agents[1]).code == code
    world.say(agents[2], join=pb.JoinSession(number=number))
    assert "wait 10 minutes" in world.problem(agents[2]).detail
    world.say(agents[3], join=pb.JoinSession(number=number))  # another network may
    assert len(world.heard(agents[0], "introduction")) == 1
    world.now = 601.0
    world.say(agents[1], join=pb.JoinSession(number=wrong))
    assert world.problem(agents[1]).code == "not_found"


def test_a_number_in_use_is_not_given_twice(world_module, agents):
    picks = iter(["000001", "000001", "000002"])
    world = world_module.World(agents)
    world.registry._pick_number = lambda: next(picks)
    for agent in agents:
        world.attach(agent)
    assert world.create(agents[0], 2) == "000001"
    assert world.create(agents[1], 2, b"t" * 16) == "000002"


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"progress": pb.Progress(state=pb.PROBING, detail="x" * (16 << 10))}, "16384"),
        ({"report": pb.Signed(payload=bytes(64 << 10))}, "65536"),
        ({"charter": pb.Signed(payload=bytes(256 << 10))}, "262144"),
        ({"introduction": pb.Introduction(certificate=bytes(16 << 10))}, "16384"),
        ({"progress": pb.Progress(state=pb.PROBING, edges=[pb.EdgeState()] * 65)}, "65 edges, at most 64"),
        ({"progress": pb.Progress(state=pb.PROBING, candidates=[pb.Candidate()] * 65)}, "65 candidates"),
    ],
)
def test_what_is_kept_or_passed_on_has_a_size(world, agents, fields, allowed):
    world.create(agents[0], 2)
    world.say(agents[0], **fields)
    assert world.problem(agents[0]).code == "limit"
    assert allowed in world.problem(agents[0]).detail


def test_a_reason_is_one_line_of_bounded_length(world, agents):
    world.form(*agents[:2])
    world.say(agents[1], leave=pb.Leave(reason="x" * 10_000 + "\n"))
    (closed,) = world.heard(agents[0], "closed")
    assert closed.reason.startswith("lap left the session: xxx")
    assert len(closed.reason) == MAX_SHOWN_LENGTH
