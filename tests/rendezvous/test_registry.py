"""Sessions without a network: what each message leads to, and what is refused to whom."""

from __future__ import annotations

import json

import pytest

from kafila_proto import rendezvous_pb2 as pb
from kafila_proto.names import MAX_SHOWN_LENGTH
from kafila_rendezvous.introduction import ATTEMPT_S
from kafila_rendezvous.limits import Limits
from kafila_rendezvous.outcome import RequestRefused
from kafila_rendezvous.session import SessionState

SESSION_ID = b"s" * 16


@pytest.fixture(scope="module")
def agents(world_module):
    return [world_module.Agent(name) for name in ("desk", "lap", "attic", "spare")]


@pytest.fixture
def world(world_module, agents):
    made = world_module.World(agents)
    for agent in agents:
        made.attach(agent)
    return made


@pytest.fixture
def session_of(world):
    return lambda: world.registry.sessions[SESSION_ID].session


def test_a_session_of_one(world, agents, session_of):
    desk = agents[0]
    world.form(desk)
    world.progress(desk, pb.LOADING)
    assert session_of().state is SessionState.LOADING
    world.progress(desk, pb.READY)
    assert session_of().state is SessionState.SERVING
    assert world.heard(desk, "serve")[0].epoch == 1


def test_from_the_number_to_serving(world, agents, session_of):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    assert number.isdigit()
    assert len(number) == 6
    assert world.heard(desk, "created")[0].valid_s == 3600
    for joiner in (lap, attic):
        world.admit(desk, joiner, number)
    world.charter(desk, [desk, lap, attic])
    assert [len(world.heard(m, "charter")) for m in (desk, lap, attic)] == [1, 1, 1]
    world.report(attic)
    world.report(desk)
    assert world.plans == []
    world.report(lap)
    world.plan()
    complete = world.heard(desk, "reports")[0]
    assert (complete.epoch, len(complete.reports)) == (1, 3)
    assert [m["name"] for m in json.loads(complete.fleet_json)["members"]] == ["desk", "lap", "attic"]
    assert sorted(json.loads(complete.plan_json)["ring"]) == ["attic", "desk", "lap"]
    assert session_of().state is SessionState.FORMING
    world.countersign(desk)
    assert session_of().state is SessionState.CONNECTING
    assert [len(world.heard(m, "plan")) for m in (desk, lap, attic)] == [1, 1, 1]
    for member in (desk, lap, attic):
        world.progress(member, pb.READY)
    assert session_of().state is SessionState.SERVING
    assert [len(world.heard(m, "serve")) for m in (desk, lap, attic)] == [1, 1, 1]


def test_progress_is_passed_on_by_name_and_newcomers_catch_up(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    world.admit(desk, lap, number)
    world.progress(lap, pb.PROBING, epoch=0)
    (update,) = world.heard(desk, "member")
    assert (update.name, update.member, update.progress.state) == ("lap", lap.id, pb.PROBING)
    assert world.heard(lap, "member") == []
    world.admit(desk, attic, number)
    assert [u.name for u in world.heard(attic, "member")] == ["lap"]


def test_progress_of_a_stale_epoch_is_dropped(world, agents, session_of):
    desk, lap, *_ = agents
    world.form(desk, lap)
    assert world.progress(lap, pb.WAITING, epoch=0) == []
    assert world.progress(lap, pb.READY, epoch=2) == []
    assert session_of().state is SessionState.CONNECTING


def test_progress_cannot_stand_for_leaving(world, agents):
    world.form(agents[0], agents[1])
    world.progress(agents[1], pb.LEFT)
    assert "Leave" in world.problem(agents[1]).detail


def test_wrong_number(world, agents):
    number = world.create(agents[0], 2)
    wrong = f"{(int(number) + 1) % 10**6:06}"
    world.say(agents[1], join=pb.JoinSession(number=wrong))
    problem = world.problem(agents[1])
    assert (problem.code, problem.request) == ("not_found", "join")


def test_one_friend_too_many_is_told(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.say(desk, stop_admitting=pb.StopAdmitting())
    world.say(attic, join=pb.JoinSession(number=number))
    assert world.problem(attic).code == "full"
    assert "2 members already" in world.problem(attic).detail


def test_who_waits_at_the_door_when_the_last_seat_goes_is_told(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(attic, join=pb.JoinSession(number=number))
    attempt = world.heard(desk, "introduction")[-1].attempt
    for sender, step in ((desk, "HOST_ELEMENT"), (lap, "JOINER_PROOF"), (desk, "HOST_PROOF")):
        world.say(sender, introduction=pb.Introduction(attempt=attempt, step=step))
    world.say(desk, admit=pb.Admit(attempt=attempt))
    assert world.problem(attic).code == "full"
    world.create(attic, 1, b"t" * 16)  # it is free again


def test_a_host_that_stops_admitting_cannot_be_told_from_no_host(world, agents):
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(attic, join=pb.JoinSession(number=number))
    world.say(desk, stop_admitting=pb.StopAdmitting())
    assert world.problem(attic).code == "not_found"
    world.say(agents[3], join=pb.JoinSession(number=number))
    assert world.problem(agents[3]) == world.problem(attic)


def test_a_new_number_voids_the_old_and_unseats_nobody(world, agents, session_of):
    desk, lap, attic, _ = agents
    old = world.create(desk, 3)
    world.admit(desk, lap, old)
    new = world.create(desk, 3)
    assert new != old
    assert list(session_of().members) == [desk.id, lap.id]
    world.say(attic, join=pb.JoinSession(number=old))
    assert world.problem(attic).code == "not_found"
    world.admit(desk, attic, new)
    assert session_of().is_full


def test_numbers_expire_and_the_host_is_told(world, agents):
    number = world.create(agents[0], 2)
    assert world.tick(3599.0) == []
    world.tick(3600.0)
    assert world.problem(agents[0]).code == "expired"
    world.say(agents[1], join=pb.JoinSession(number=number))
    assert world.problem(agents[1]).code == "not_found"


def test_a_silent_attempt_ends_and_its_joiner_may_call_again(world, agents):
    number = world.create(agents[0], 2)
    world.say(agents[1], join=pb.JoinSession(number=number))
    world.tick(ATTEMPT_S)
    assert world.heard(agents[1], "introduction")[-1].step == pb.Introduction.FAILED
    assert world.registry.introductions_failed == 1
    world.admit(agents[0], agents[1], number)


@pytest.mark.parametrize("gone", ["leaves", "is lost"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_member_that_goes_ends_the_session_by_name(world, agents, gone, who):
    desk, lap, attic, _ = agents
    world.form(desk, lap, attic)
    goer = agents[who]
    if gone == "leaves":
        world.say(goer, leave=pb.Leave(reason="bedtime"))
        reason = "left the session: bedtime"
    else:
        world.detach(goer)
        reason = "lost its connection to the rendezvous"
    name = "desk, the host," if who == 0 else "lap"
    others = [agent for agent in (desk, lap, attic) if agent is not goer]
    assert {world.heard(other, "closed")[0].reason for other in others} == {f"{name} {reason}"}
    assert world.heard(goer, "closed") == []
    assert [over.session_id for over in world.over] == [SESSION_ID]
    assert world.registry.sessions == {}
    world.create(others[0], 1, b"t" * 16)  # free for another


@pytest.fixture
def reported(world, agents):
    """Three members that have all reported: the planner is at work."""
    desk, lap, attic, _ = agents
    number = world.create(desk, 3)
    for joiner in (lap, attic):
        world.admit(desk, joiner, number)
    world.charter(desk, [desk, lap, attic])
    for member in (desk, lap, attic):
        world.report(member)
    return desk, lap, attic


def test_who_leaves_while_it_is_planned_takes_the_plan_along(world, reported, session_of):
    desk, lap, attic = reported
    world.say(lap, leave=pb.Leave())
    world.plan()
    assert world.heard(desk, "reports") == []
    assert session_of().state is SessionState.FORMING
    for member in (desk, attic):
        gone = world.heard(member, "member")[-1]
        assert (gone.name, gone.progress.state, gone.progress.detail) == ("lap", pb.LEFT, "left the session")
    assert session_of().epoch == 2


def test_what_the_host_said_before_it_heard_that_someone_left_is_dropped(world, reported, session_of):
    desk, lap, attic = reported
    world.plan()
    world.say(lap, leave=pb.Leave())
    world.countersign(desk)
    world.charter(desk, [desk, lap, attic], revision=2)
    assert world.heard(desk, "problem") == []
    assert world.heard(attic, "plan") == []
    world.charter(desk, [desk, attic], revision=3, expected_members=3)
    assert len(world.heard(attic, "charter")) == 2
    world.say(desk, plan=pb.Signed())  # what is not of an older epoch is refused as ever
    assert world.problem(desk).request == "plan"


def test_a_code_that_was_used_up_stays_so_when_somebody_leaves(world, reported, agents):
    desk, lap, _ = reported
    world.say(lap, leave=pb.Leave())
    number = world.heard(desk, "created")[-1].number
    world.say(agents[3], join=pb.JoinSession(number=number))
    assert world.problem(agents[3]).code == "not_found"
    renewed = world.create(desk, 3)
    world.admit(desk, agents[3], renewed)
    assert agents[3].id in world.registry.sessions[SESSION_ID].session.members


def test_a_joiner_that_goes_ends_only_its_attempt(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.detach(lap)
    assert world.heard(desk, "introduction")[-1].step == pb.Introduction.FAILED
    assert SESSION_ID in world.registry.sessions


def test_a_session_that_ends_tells_who_waits_at_its_door(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.say(lap, join=pb.JoinSession(number=number))
    world.say(desk, leave=pb.Leave())
    assert world.problem(lap).code == "not_found"
    world.create(lap, 1, b"t" * 16)


def test_a_member_that_cannot_take_part_ends_it_by_name(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.charter(desk, [desk, lap])
    world.report(lap, problem="no model m here: download it")
    for member in (desk, lap):
        assert world.heard(member, "closed")[0].reason == "lap cannot take part: no model m here: download it"


def test_a_refusal_goes_to_everyone_and_ends_it(world, agents):
    desk, lap, *_ = agents
    number = world.create(desk, 2)
    world.admit(desk, lap, number)
    world.charter(desk, [desk, lap])
    for member in (desk, lap):
        world.report(member, memory_bytes=12)
    world.plan()
    world.countersign(desk)
    for member in (desk, lap):
        kinds = [m.WhichOneof("message") for m in world.inbox[member.id]][-2:]
        assert kinds == ["plan", "closed"]
    reason = json.loads(world.heard(desk, "reports")[0].plan_json)["reason"]
    assert world.heard(lap, "closed")[0].reason == reason


def test_a_planner_that_fails_ends_the_session(world, agents):
    world.create(agents[0], 1)
    world.charter(agents[0], [agents[0]])
    world.report(agents[0])
    work = world.plans.pop()
    world.note(world.registry.plan_failed(work.session_id, work.epoch, "members: odd"))
    assert world.heard(agents[0], "closed")[0].reason == "the session cannot be planned: members: odd"
    assert world.registry.planned(work.session_id, work.epoch, "", "") == []


def test_a_report_that_changes_while_it_is_planned_is_planned_anew(world, agents):
    desk = agents[0]
    world.create(desk, 1)
    world.charter(desk, [desk])
    world.report(desk)
    world.report(desk, memory_bytes=999)
    first, second = world.plans
    assert (first.epoch, second.epoch) == (1, 2)
    world.plan()
    assert world.heard(desk, "reports") == []
    world.plan()
    assert world.heard(desk, "reports")[0].epoch == 2


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
